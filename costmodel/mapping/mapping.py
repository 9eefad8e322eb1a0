"""Mapping: how one tensor-core layer is tiled, ordered, unrolled on the array and issued.

The loop nest, outermost first (every `for` walks the tiles of the level below, last one ragged):

    for (o_L3) t3[d] = ceil(D / tile_l2)         DRAM loops: choose a scratchpad tile
      for (o_L2) t2[d] = ceil(. / tile_l1)       scratchpad loops: choose an accumulator tile
        for (o_L1) t1[d] = ceil(. / tile_l0)     accumulator loops: choose an array block
          for (o_L0) t0[d]                       stream: weights stay in the array
            spatial columns x rows               one multiply-accumulate per element and cycle

Tiles are *extents*: how many indices of each dimension one tile covers.  `tile_l0` is one array
block, spatial factors included: tile_l0[d] = cols[d] * rows[d] * t0[d].  A divisor mapping has
tile_l0 | tile_l1 | tile_l2 | D in every dimension; in a ragged one the last tile of a level is
smaller, and is counted and executed at its true size.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from fadiff.converter.errors import BadInput
from fadiff.converter.ir.loops import DIMS, RELEVANT, Dim, Dims

Level = Literal["L3", "L2", "L1", "L0"]
Order = tuple[Dim, ...]
Issue = Literal["instructions", "core_ws", "loop_ws", "loop_conv_ws"]
"""Who issues the moves and products of a tile: the core, one by one, or tile by tile laid out as by LOOP_WS
(core_ws), or a loop unit of Gemmini's, called once per scratchpad tile (LOOP_WS, LOOP_CONV_WS).
`fadiff.costmodel.group.issue` says which mappings can."""
AdditionIssue = Literal["instructions", "tiled_resadd"]
"""The same of a residual addition: gemmini.h's function runs it on the loop unit of matrix products
(`fadiff.costmodel.group.additions` says which)."""
ISSUED: dict[Issue | AdditionIssue, str] = {
    "instructions": "single instructions",
    "core_ws": "tiles of LOOP_WS by the core",
    "loop_ws": "one hardware loop LOOP_WS per scratchpad tile",
    "loop_conv_ws": "one hardware loop LOOP_CONV_WS per scratchpad tile",
    "tiled_resadd": "one call of tiled_resadd",
}
LOOPS: tuple[Issue, ...] = ("loop_ws", "loop_conv_ws")
"""Hardware loops."""
BY_CORE: tuple[Issue, ...] = ("instructions", "core_ws")
"""Every move and product by the core."""

STREAM_ORDER: Order = ("G", "K", "C", "R", "S", "N", "P", "Q")
"""DOSA's L1 order (outer to inner): weights change in the outer loops, pixels stream innermost."""

# DOSA's DRAM orders: the loops that do not move W, I or O are innermost, so that its tile stays.
WEIGHT_STATIONARY: Order = STREAM_ORDER
INPUT_STATIONARY: Order = ("G", "N", "P", "Q", "C", "R", "S", "K")
OUTPUT_STATIONARY: Order = ("G", "N", "P", "Q", "K", "C", "R", "S")

ONES = Dims()


class MappingError(BadInput, ValueError):
    """A mapping that is no legal loop nest; the message names the dimension and the rule."""


@lru_cache(maxsize=1 << 12)
def _is_permutation(order: Order) -> bool:
    """Whether it names every dimension once."""
    return sorted(order) == sorted(DIMS)


def ceil_div(a: int, b: int) -> int:
    """Quotient rounded up."""
    return -(-a // b)


@dataclass(frozen=True)
class Mapping:
    """One layer's intra-layer mapping.  See the module text for the meaning of each field.

    Orders are outermost first and are permutations of all eight dimensions.

    Raises:
        MappingError: tiles that do not nest, an order that is no permutation, or spatial factors
            that do not divide the array block.
    """

    tile_l2: Dims
    tile_l1: Dims
    tile_l0: Dims
    rows: Dims = ONES
    """Spatial factors along the array rows (L1 -> L0 fan-out): C, and S when row-packed."""
    cols: Dims = ONES
    """Spatial factors along the array columns (L2 -> L1 fan-out): K, of a depthwise layer G."""
    order_l3: Order = STREAM_ORDER
    order_l2: Order = STREAM_ORDER
    order_l1: Order = STREAM_ORDER
    order_l0: Order = STREAM_ORDER
    issue: Issue = "instructions"

    def __post_init__(self) -> None:
        for name in ("order_l3", "order_l2", "order_l1", "order_l0"):
            order = getattr(self, name)
            if not _is_permutation(order):
                raise MappingError(f"{name}={''.join(order)}: an order names each of {''.join(DIMS)} once")
        tiles = zip(DIMS, self.tile_l0, self.tile_l1, self.tile_l2, self.rows, self.cols, strict=True)
        for d, l0, l1, l2, rows, cols in tiles:
            if not l0 <= l1 <= l2:
                raise MappingError(f"{d}: tiles {l0} (L0), {l1} (L1), {l2} (L2) do not nest")
            if l0 % (rows * cols):
                raise MappingError(
                    f"{d}: array block {l0} is no multiple of its spatial factor {rows * cols}"
                )

    def tile(self, level: Level, bounds: Dims) -> Dims:
        """Extents held at `level`; at L3 the whole layer."""
        return {"L3": bounds, "L2": self.tile_l2, "L1": self.tile_l1, "L0": self.tile_l0}[level]

    def order(self, level: Level) -> Order:
        """Temporal loop order of `level`, outermost first."""
        return {"L3": self.order_l3, "L2": self.order_l2, "L1": self.order_l1, "L0": self.order_l0}[level]

    def trips(self, level: Level, bounds: Dims) -> Dims:
        """Temporal trip counts of a full (not ragged) tile of `level`."""
        if level == "L0":
            return Dims(*(self.tile_l0[d] // (self.rows[d] * self.cols[d]) for d in DIMS))
        outer, inner = {
            "L3": (bounds, self.tile_l2),
            "L2": (self.tile_l2, self.tile_l1),
            "L1": (self.tile_l1, self.tile_l0),
        }[level]
        return Dims(*map(ceil_div, outer, inner))

    @property
    def streams_pixels(self) -> bool:
        """Whether weights, once in the array, meet all pixels of an accumulator tile."""
        trips = self.trips("L1", self.tile_l1)
        inside = [d for d in self.order_l1 if trips[d] > 1]
        pixels = [i for i, d in enumerate(inside) if d in ("N", "P", "Q")]
        weights = [i for i, d in enumerate(inside) if d in RELEVANT["W"]]
        return not pixels or not weights or max(weights) < min(pixels)

    def is_divisor(self, bounds: Dims) -> bool:
        """Whether every tile divides the one above it (Timeloop's perfect factors)."""
        return all(
            bounds[d] % self.tile_l2[d] == 0
            and self.tile_l2[d] % self.tile_l1[d] == 0
            and self.tile_l1[d] % self.tile_l0[d] == 0
            for d in DIMS
        )


def as_single_instructions(mappings: MappingABC[str, Mapping]) -> dict[str, Mapping]:
    """The same mappings of layers in single instructions, which can do them all."""
    return {name: replace(mapping, issue="instructions") for name, mapping in mappings.items()}
