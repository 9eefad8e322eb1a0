"""A `Mapping` in Timeloop's terms and back: loop factors per level, inner loops first.

Timeloop writes a nest as six groups of loops, innermost first: temporal at Registers, spatial at
Accumulator (the array rows), temporal at Accumulator, spatial at Scratchpad (the array columns),
temporal at Scratchpad and at DRAM.  A dimension has one factor in each.  A factor that does not
divide is *imperfect*: `P=13,4` runs 13 times, and 4 times in the last iteration of all loops
around it, so the last index of the dimension, written in the mixed radix of the full factors, has
the digits `last - 1` (Timeloop: src/mapping/parser.cpp, "Validity checks").

A dimension's outermost factor has nothing around it, so only its `last` would count; Timeloop stops at
such a factor where it is spatial (src/loop-analysis/nest-analysis.cpp, InitNumSpatialElems).  30 channels
in one block of 16 columns and one of 14 are therefore written as two of 15: as many steps, the same words.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fadiff.converter.ir.loops import DIMS, Dim, Dims
from fadiff.costmodel.mapping.mapping import Level, Mapping, MappingError, Order, ceil_div

StorageLevel = Literal["Registers", "Accumulator", "Scratchpad", "DRAM"]
Kind = Literal["temporal", "spatial"]

STORAGE: dict[Level, StorageLevel] = {
    "L0": "Registers",
    "L1": "Accumulator",
    "L2": "Scratchpad",
    "L3": "DRAM",
}
"""Our level names and the component names of the emitted architecture, innermost first."""

KEPT: dict[StorageLevel, str] = {"Registers": "W", "Accumulator": "O", "Scratchpad": "WI", "DRAM": "WIO"}
"""Operands kept at each level; the others pass by."""

OPERANDS: dict[str, str] = {"Weights": "W", "Inputs": "I", "Outputs": "O"}
"""Operand letter of each data space."""


class Loops(NamedTuple):
    """One group of loops: the level it belongs to and whether it runs in time or in space."""

    level: StorageLevel
    kind: Kind

    def __str__(self) -> str:
        return f"{self.level} {self.kind}"


LOOPS: tuple[Loops, ...] = (
    Loops("Registers", "temporal"),
    Loops("Accumulator", "spatial"),
    Loops("Accumulator", "temporal"),
    Loops("Scratchpad", "spatial"),
    Loops("Scratchpad", "temporal"),
    Loops("DRAM", "temporal"),
)
"""Innermost first.  The array rows lie between accumulator and registers, the columns above."""
_L0, _ROWS, _L1, _COLS, _L2, _L3 = LOOPS


class NoTimeloopForm(MappingError):
    """A legal mapping that Timeloop's factors cannot express; the message says which tile and why."""


class Factor(NamedTuple):
    """Iterations of a loop: `full` normally, `last` in the last iteration of all loops around it."""

    full: int
    last: int

    def __str__(self) -> str:
        return str(self.full) if self.full == self.last else f"{self.full},{self.last}"


@dataclass(frozen=True)
class TimeloopNest:
    """Factors of every dimension and the loop order (inner to outer) of every group of loops."""

    factors: MappingABC[Loops, MappingABC[Dim, Factor]]
    orders: MappingABC[Loops, Order]

    @property
    def is_perfect(self) -> bool:
        """Whether every factor divides."""
        return all(f.full == f.last for group in self.factors.values() for f in group.values())


def nest_of(mapping: Mapping, bounds: Dims) -> TimeloopNest:
    """The Timeloop nest of a mapping over a problem of these bounds.

    It describes the same tiles, except that array blocks which nothing around them repeats are made equal
    (above).

    Raises:
        NoTimeloopForm: a tile size is no multiple of the one inside it (and is repeated), or a
            tile exceeds the bound.
    """
    per_dim = {d: _factors(mapping, bounds[d], d) for d in DIMS}
    outermost_first = {
        _L0: mapping.order_l0,
        _L1: mapping.order_l1,
        _L2: mapping.order_l2,
        _L3: mapping.order_l3,
    }
    return TimeloopNest(
        factors={loops: {d: per_dim[d][i] for d in DIMS} for i, loops in enumerate(LOOPS)},
        orders={loops: tuple(reversed(outermost_first.get(loops, DIMS))) for loops in LOOPS},
    )


def mapping_of(nest: TimeloopNest, bounds: Dims) -> Mapping:
    """The mapping that a Timeloop nest describes; the inverse of `nest_of` but for its equal blocks.

    Raises:
        MappingError: factors that do not multiply to the bound, or whose remainders no ragged
            tiling has.
    """
    full = {loops: {d: nest.factors[loops][d].full for d in DIMS} for loops in LOOPS}
    rows, cols = Dims(**full[_ROWS]), Dims(**full[_COLS])
    tiles: list[Dims] = []
    size = {d: full[_L0][d] * rows[d] * cols[d] for d in DIMS}
    for outer in (_L1, _L2, _L3):
        tiles.append(Dims(**{d: min(size[d], bounds[d]) for d in DIMS}))
        size = {d: size[d] * full[outer][d] for d in DIMS}
    for d in DIMS:
        product = _bound([nest.factors[loops][d] for loops in LOOPS])
        if product != bounds[d]:
            raise MappingError(f"{d}: the factors multiply to {product}, the problem's bound is {bounds[d]}")
    mapping = Mapping(
        tile_l0=tiles[0],
        tile_l1=tiles[1],
        tile_l2=tiles[2],
        rows=rows,
        cols=cols,
        order_l0=tuple(reversed(nest.orders[_L0])),
        order_l1=tuple(reversed(nest.orders[_L1])),
        order_l2=tuple(reversed(nest.orders[_L2])),
        order_l3=tuple(reversed(nest.orders[_L3])),
    )
    again = nest_of(mapping, bounds)
    for loops in LOOPS:
        for d in DIMS:
            if again.factors[loops][d] != nest.factors[loops][d]:
                raise MappingError(
                    f"{d}: factor {nest.factors[loops][d]} at {loops} leaves idle iterations; "
                    f"the same tiles are written {again.factors[loops][d]}"
                )
    return mapping


def _factors(mapping: Mapping, bound: int, d: Dim) -> tuple[Factor, ...]:
    """Factors of one dimension, innermost first."""
    l2, l1, l0 = mapping.tile_l2[d], mapping.tile_l1[d], mapping.tile_l0[d]
    rows, cols = mapping.rows[d], mapping.cols[d]
    if l2 > bound:
        raise NoTimeloopForm(f"{d}: the L2 tile {l2} exceeds the bound {bound}")
    full = (l0 // (rows * cols), rows, ceil_div(l1, l0), cols, ceil_div(l2, l1), ceil_div(bound, l2))
    if l1 % l0 and l1 < bound:
        raise NoTimeloopForm(f"{d}: the L1 tile {l1} is no multiple of the array block {l0}")
    if l2 % l1 and l2 < bound:
        raise NoTimeloopForm(f"{d}: the L2 tile {l2} is no multiple of the L1 tile {l1}")
    factors = []
    index = bound - 1
    for radix in full:
        index, digit = divmod(index, radix)
        factors.append(Factor(radix, digit + 1))
    for i in reversed(range(len(factors))):
        factors[i] = Factor(factors[i].last, factors[i].last)
        if factors[i].full > 1:
            break
    return tuple(factors)


def _bound(factors: list[Factor]) -> int:
    """Iterations that a dimension's factors (innermost first) make in all."""
    last_index = 0
    for factor in reversed(factors):
        last_index = last_index * factor.full + factor.last - 1
    return last_index + 1
