"""The weight blob: every constant the firmware reads, aligned, in graph order."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from collections.abc import Mapping as MappingABC
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.converter.ir.stored import release
from fadiff.costmodel.group.allocation import align
from fadiff.costmodel.mapping.mapping import Mapping, ceil_div


@dataclass(frozen=True)
class BlobSums:
    """Of the file that holds the blob."""

    sha256: str = ""
    crc32: int = 0


def weight_name(layer: TensorCoreLayer) -> str:
    """The name of a layer's stationary operand in memory; of a depthwise layer, whose tiles are its own, one
    that no tensor has, also where layer and tensor are called alike."""
    return f"weights of {layer.name}" if layer.op == "depthwise" else layer.weight.tensor


@dataclass
class WeightBlob:
    """Content and the place of each constant.

    Depthwise weights are stored as the rows of block-diagonal tiles, [G, R, S, block], under the
    `weight_name` of their layer; everything else as the tensor is, under the tensor's name.
    """

    offsets: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    _arrays: list[np.ndarray] = field(default_factory=list, repr=False)
    nbytes: int = 0

    def add(self, name: str, content: np.ndarray) -> None:
        """Append a constant, unless it is there already."""
        if name in self.offsets:
            return
        self.offsets[name], self.sizes[name] = self.nbytes, content.nbytes
        self._arrays.append(content)
        self.nbytes += align(content.nbytes)

    def items(self) -> Iterator[tuple[str, np.ndarray]]:
        """Every constant, by name."""
        return zip(self.offsets, self._arrays, strict=True)

    def write(self, path: Path) -> BlobSums:
        """Stream the blob to a file: it may be larger than what memory should hold twice."""
        digest, crc32 = hashlib.sha256(), 0
        with path.open("wb") as file:
            for array in self._arrays:
                data = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
                padding = bytes(align(array.nbytes) - array.nbytes)
                for part in (data.reshape(-1).view(np.uint8).data, padding):
                    file.write(part)
                    digest.update(part)
                    crc32 = zlib.crc32(part, crc32)
                release(array)
        return BlobSums(digest.hexdigest(), crc32)


def block_diagonal(weights: np.ndarray, mapping: Mapping) -> np.ndarray:
    """Depthwise weights [G, R, S, 1, 1] as rows [G, R, S, block] of block-diagonal array tiles; of a hardware
    loop [blocks, R, S, block, block], as of one dense convolution per block.

    The column of a channel is its place in its block, and blocks start anew with every tile.
    """
    groups, r, s = weights.shape[:3]
    block = mapping.cols.G
    channel = np.arange(groups)
    if mapping.issue != "instructions":
        tiles = np.zeros((ceil_div(groups, block), r, s, block, block), weights.dtype)
        tiles[channel // block, :, :, channel % block, channel % block] = weights.reshape(groups, r, s)
        return tiles
    column = channel % mapping.tile_l2.G % mapping.tile_l1.G % block
    rows = np.zeros((groups, r, s, block), weights.dtype)
    rows[channel, :, :, column] = weights.reshape(groups, r, s)
    return rows


def build_blob(graph: Graph, mappings: MappingABC[str, Mapping], plain: AbstractSet[str]) -> WeightBlob:
    """Collect the constants of all layers; depthwise weights of `plain` layers stay [G, R, S]."""
    blob = WeightBlob()
    for layer in graph.layers:
        for name in layer.inputs:
            data = graph.tensors[name].data
            if data is None:
                continue
            if isinstance(layer, TensorCoreLayer) and layer.op == "depthwise" and name == layer.weight.tensor:
                expanded = data if layer.name in plain else block_diagonal(data, mappings[layer.name])
                blob.add(weight_name(layer), expanded)
            else:
                blob.add(name, data)
    return blob
