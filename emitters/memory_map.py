"""memory_map.json: what emitted firmware keeps where (docs/firmware-interface.md, section 3).

Written by fadiff.emitters.gemmini, read by the report, by the functional model's runner and by layer checks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from fadiff.converter.errors import BadInput
from fadiff.costmodel.schedule.document import StateRecord
from fadiff.costmodel.target.record import Record

MEMORY_MAP = "memory_map.json"
"""Its name in a firmware folder; of one of several entries a name of its own."""
Role = Literal["I", "I2", "W", "bias", "psum", "O"]


class MemoryMapError(BadInput, ValueError):
    """A memory map that cannot be read; the message names file and field."""


class SymbolRecord(Record):
    """A static object of the firmware."""

    name: str
    bytes: int


class Symbols(Record):
    """The static objects of the firmware; zero bytes mean that the symbol does not exist."""

    arena: SymbolRecord
    weights: SymbolRecord
    tile_buffer: SymbolRecord
    state: SymbolRecord = SymbolRecord(name="", bytes=0)


class TensorPlace(Record):
    """An activation: where it is in full, or symbol None where it never is."""

    shape: tuple[int, ...]
    dtype: Literal["int8", "uint8", "int32", "float32"]
    scale: float | None = None
    zero: int = 0
    """The integer that stands for 0.0."""
    symbol: Literal["arena", "weights", "tile_buffer", "state", "input", "output"] | None
    index: int = 0
    offset: int = 0
    bytes: int = 0


class Region(Record):
    """DRAM that Gemmini may touch while a layer runs."""

    tensor: str
    role: Role
    memory: Literal["dram", "tile-buffer"]
    symbol: Literal["arena", "weights", "tile_buffer", "state", "input", "output"]
    index: int = 0
    offset: int
    bytes: int


class Tile(Record):
    """A box of a fused layer's output that its run number `visit` leaves behind; strides in elements."""

    visit: int
    origin: tuple[int, int, int]
    shape: tuple[int, int, int, int]
    symbol: Literal["tile_buffer"]
    offset: int
    strides: tuple[int, int, int, int]
    groups: tuple[int, int] | None = None
    """First group whose channels these are, and the one after the last (where the group tile has some of the
    channels: as many are a group); None: all."""


class Work(Record):
    """What the core does itself in a layer, over all its visits; priced by the target's core."""

    operator: str
    elements: int
    visits: int
    parts: int = 1
    """Of each visit: what Gemmini runs meanwhile is issued in between."""


class LayerPlace(Record):
    """One layer: its index in the list is what the observer gets."""

    name: str
    kind: Literal["tensor-core", "add", "copy", "host"]
    """`host`: the core does it; `copy`: Gemmini."""
    outputs: tuple[str, ...]
    group: int
    regions: tuple[Region, ...]
    work: Work | None = None
    """Of kind host."""
    reads: int | None = None
    """Of kind host in a pipeline: the layer whose box of this run it reads, while Gemmini stores others."""
    inputs: tuple[str, ...] | None = None
    """Of kind host beside a layer on Gemmini: the tensors that it reads while that one stores another."""
    image: tuple[int, int, int, int, int] = (1, 1, 1, 1, 1)
    """N, P, Q, groups and channels per group of the output that `tiles` are boxes of."""
    image_strides: tuple[int, int, int, int, int] = (1, 1, 1, 1, 1)
    """How the whole output is stored: element strides of the axes of `image`."""
    tiles: tuple[Tile, ...] = ()

    def part(self, tile: Tile) -> tuple[slice, slice, slice, slice]:
        """Where the box of one of `tiles` is in the output seen as `image`."""
        n, p, q = (slice(start, start + size) for start, size in zip(tile.origin, tile.shape, strict=False))
        return n, p, q, slice(*(tile.groups or (0, self.image[3])))


class MemoryMap(Record):
    """The whole file."""

    version: Literal[1]
    model: str
    symbols: Symbols
    stack_bytes: int = 0
    """More than one inference takes of the stack, below the frame of the caller."""
    live_bytes: int = 0
    """Most bytes of activations alive at once: no arena can be smaller."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    states: tuple[StateRecord, ...] = ()
    tensors: dict[str, TensorPlace]
    layers: tuple[LayerPlace, ...]


def memory_map_json(content: MemoryMap) -> str:
    """The file: what has its default value for lack of anything to say is left out."""
    return json.dumps(content.model_dump(mode="json", exclude_unset=True), indent=1) + "\n"


def read_memory_map(path: Path) -> MemoryMap:
    """Read and validate memory_map.json.

    Raises:
        MemoryMapError: unreadable, or a field that does not validate.
    """
    try:
        return MemoryMap.model_validate_json(path.read_bytes())
    except OSError as error:
        raise MemoryMapError(f"{path}: cannot read the memory map: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise MemoryMapError(f"{path}: {where}: {first['msg']}") from error
