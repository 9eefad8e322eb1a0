"""The temporal loops of one layer as data: which loops exist, and where each operand is fetched.

`docs/execution-contract.md` section 1: a fetch sits in the body of the innermost loop above its
level that is relevant to the operand and has a full-tile trip count above one.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from dataclasses import dataclass

from fadiff.converter.ir.loops import DIMS, REDUCTION, RELEVANT, Dim, Dims
from fadiff.costmodel.mapping.mapping import Level, Mapping
from fadiff.emitters.gemmini.expression import Expr, add, minimum, sub

_SUFFIX = {"L3": "3", "L2": "2", "L1": "1"}


@dataclass(frozen=True)
class Loop:
    """`for (variable = 0; variable < bound; variable += step)`; `extent` is the tile's true size."""

    level: Level
    dim: Dim
    variable: str
    bound: Expr
    step: int
    extent: Expr
    extent_name: str | None
    """Set when the extent is not constant: the variable that holds it."""


@dataclass(frozen=True)
class Tile:
    """Of one level: start of the tile inside the tile of the level above, and its extent."""

    start: MappingABC[Dim, Expr]
    extent: MappingABC[Dim, Expr]


@dataclass(frozen=True)
class Nest:
    """Loops with more than one trip, outermost first, and the tile of each level inside them."""

    outer: tuple[Loop, ...]
    """L3 then L2."""
    inner: tuple[Loop, ...]
    """L1."""
    tiles: MappingABC[Level, Tile]
    full: Dims
    """The bounds that decided which loops exist."""

    def fetch_position(self, operand: str, level: Level) -> int:
        """How many outer loops enclose the fetch of `operand` into `level` (L2 or L1)."""
        position = 0
        for i, loop in enumerate(self.outer):
            if loop.dim in RELEVANT[operand] and (level == "L1" or loop.level == "L3"):
                position = i + 1
        return position

    def revisits(self) -> tuple[Loop, ...]:
        """Reduction loops that move an unfinished output tile out of the accumulator."""
        return tuple(loop for loop in self.outer[: self.fetch_position("O", "L1")] if loop.dim in REDUCTION)

    def same_weights(self) -> tuple[Loop, ...]:
        """Innermost loops over which the array keeps its weights."""
        loops = self.outer + self.inner
        position = max((i + 1 for i, loop in enumerate(loops) if loop.dim in RELEVANT["W"]), default=0)
        return loops[position:]

    def reductions(self) -> tuple[Loop, ...]:
        """All reduction loops: an output's first product is where each of them starts."""
        return tuple(loop for loop in self.outer + self.inner if loop.dim in REDUCTION)


def nest_of(mapping: Mapping, full: Dims, bounds: MappingABC[Dim, Expr] | None = None) -> Nest:
    """Loops of a layer.

    `full` are the largest bounds the nest ever runs with: they decide which loops exist.  `bounds`
    are the bounds of this run when they are only known at run time (inside a fusion group).
    """
    outer: list[Loop] = []
    inner: list[Loop] = []
    tiles: dict[Level, Tile] = {}
    extents: dict[Dim, Expr] = dict(full.as_dict()) if bounds is None else dict(bounds)
    levels: tuple[Level, ...] = ("L3", "L2", "L1")
    below: dict[Level, Level] = {"L3": "L2", "L2": "L1", "L1": "L0"}
    for level in levels:
        trips = mapping.trips(level, full)
        steps = mapping.tile(below[level], full)
        start: dict[Dim, Expr] = dict.fromkeys(DIMS, 0)
        extent = dict(extents)
        for d in mapping.order(level):
            if trips[d] == 1:
                continue
            variable = f"{d.lower()}{_SUFFIX[level]}"
            bound, step, name = extents[d], steps[d], None
            size: Expr = step
            if step > 1 and (not isinstance(bound, int) or bound % step):
                name = f"{variable}_count"
                size = minimum(step, sub(bound, variable))
            loop = Loop(level, d, variable, bound, step, size, name)
            (inner if level == "L1" else outer).append(loop)
            start[d], extent[d] = variable, name or size
        tiles[below[level]] = Tile(start, extent)
        extents = extent
    return Nest(tuple(outer), tuple(inner), tiles, full)


def absolute(nest: Nest, level: Level, dim: Dim) -> Expr:
    """Start of the tile of `level` counted from the start of the nest's bounds."""
    order: tuple[Level, ...] = ("L2", "L1", "L0")
    return add(*(nest.tiles[inner].start[dim] for inner in order[: order.index(level) + 1]))
