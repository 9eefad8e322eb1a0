"""What every layer leaves in memory for the test vector: checksums that the device compares (main.c)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fadiff.emitters.memory_map import LayerPlace, MemoryMap, TensorPlace, Tile

WHOLE = -1
"""`visit` of what is compared when the layer is complete."""
_PIECES = 8
_LEAST_BYTES = 256


@dataclass(frozen=True)
class LayerCheck:
    """Lines of bytes that a layer has written, at a place of the memory map, and their checksum."""

    layer: int
    visit: int
    """Group tile after which they are there; WHOLE: when the layer is complete."""
    tensor: str
    first: tuple[int, int, int]
    """Of a group tile: image, row and column of the first pixel; WHOLE: the first byte, 0, 0."""
    symbol: str
    """arena, tile_buffer or output<i>."""
    offset: int
    lines: tuple[int, int]
    strides: tuple[int, int]
    """Bytes from line to line."""
    nbytes: int
    """Of a line."""
    crc: int
    sum: float = 0.0
    """Of float32 targets, where sums are not rounded alike everywhere, instead of the checksum."""
    magnitude: float = -1.0
    """Sum of magnitudes; -1: compare the checksum."""


def layer_checks(memory: MemoryMap, values: Mapping[str, np.ndarray], *, exact: bool) -> list[LayerCheck]:
    """One or more checks for every layer whose output is in memory, in order of layers and visits.

    `values` has tensors in storage order; layers whose output is not among them have no checks.  What several
    layers write parts of (a concatenation, a border) is compared after the last of them, as groups run.
    Not `exact`: float tensors are compared by their sums.
    """
    found = []
    in_turn = sorted(enumerate(memory.layers), key=lambda place: place[1].group)
    last = {name: index for index, layer in in_turn for name in layer.outputs}
    for index, layer in enumerate(memory.layers):
        for name in layer.outputs:
            if name not in values or name not in memory.tensors:
                continue
            array = np.ascontiguousarray(values[name])
            for tile in layer.tiles:
                found.append(_tile(index, name, layer, tile, array, exact))
            if last[name] == index:
                found += _whole(index, name, memory.tensors[name], array, exact)
    return found


def _whole(index: int, name: str, place: TensorPlace, array: np.ndarray, exact: bool) -> Iterator[LayerCheck]:
    if place.symbol is None:
        return
    symbol = f"output{place.index}" if place.symbol == "output" else place.symbol
    content, size = array.reshape(-1), array.itemsize
    step = max(_LEAST_BYTES, -(-array.nbytes // _PIECES // 64) * 64) // size
    for start in range(0, content.size, step):
        piece = content[start : start + step]
        yield LayerCheck(
            index, WHOLE, name, (start * size, 0, 0), symbol, place.offset + start * size, (1, 1), (0, 0),
            piece.nbytes, *_sums(piece, exact),
        )  # fmt: skip


def _tile(
    index: int,
    name: str,
    layer: LayerPlace,
    tile: Tile,
    array: np.ndarray,
    exact: bool,
) -> LayerCheck:
    item = array.itemsize
    image = np.lib.stride_tricks.as_strided(
        array, layer.image, [item * stride for stride in layer.image_strides], writeable=False
    )
    (n, p, q), (dn, dp, dq, channels) = tile.origin, tile.shape
    box = image[layer.part(tile)]
    image_step, line, pixel, _ = tile.strides
    assert pixel == channels, f"{name}: pixels of a line do not adjoin"
    return LayerCheck(
        index, tile.visit, name, (n, p, q), "tile_buffer", tile.offset, (dn, dp),
        (item * image_step, item * line), dq * channels * item, *_sums(box, exact),
    )  # fmt: skip


def _sums(values: np.ndarray, exact: bool) -> tuple[int, float, float]:
    crc = zlib.crc32(np.ascontiguousarray(values).tobytes())
    if exact or values.dtype != np.float32:
        return crc, 0.0, -1.0
    return crc, float(np.sum(values, dtype=np.float64)), float(np.sum(np.abs(values), dtype=np.float64))
