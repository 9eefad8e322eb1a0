"""The designs among which co-design chooses: values of a few sizes, and an area that none may exceed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from fadiff.costmodel.target.target import Target
from fadiff.optimizer.codesign.area import Area

NAMES = ("side", "scratchpad_bytes", "accumulator_bytes", "tile_buffer_bytes", "bandwidth.dram_bytes")
"""What co-design may choose."""
Sizes = tuple[int, ...]
"""Index of the value of every size, in the order of Designs.values."""


ACCUMULATOR_BANKS = 2


def elaborates(target: Target) -> bool:
    """Whether Gemmini's generator makes such hardware (GemminiArrayConfig's requirements): rows per bank a
    power of two and whole blocks of the array, the scratchpad at least two blocks more than the
    accumulator."""
    banks = ((target.scratchpad_rows, target.scratchpad_banks), (target.accumulator_rows, ACCUMULATOR_BANKS))
    for rows, count in banks:
        each, rest = divmod(rows, count)
        if rest or each % target.side or each & (each - 1) or not each:
            return False
    return target.scratchpad_rows // target.side - 2 >= target.accumulator_rows // target.side


@dataclass(frozen=True)
class Designs:
    """A base target, the values of the sizes that vary, ascending, and the largest area in mm^2."""

    base: Target
    values: dict[str, tuple[int, ...]]
    area: Area
    limit: float
    _targets: dict[Sizes, Target | None] = field(default_factory=dict, repr=False)

    def target(self, design: Sizes) -> Target | None:
        """The hardware; None if there is no such Gemmini."""
        if design not in self._targets:
            self._targets[design] = self._made(design)
        return self._targets[design]

    def by_side(self) -> dict[int, Target]:
        """One design within the area for every array size, the largest first: forms of layers and candidates
        for tiles depend on nothing else."""
        found: dict[int, Target] = {}
        for design in self.feasible:
            target = self.target(design)
            assert target is not None
            found[target.side] = target
        return dict(sorted(found.items(), reverse=True))

    def _made(self, design: Sizes) -> Target | None:
        changes = self.changes(design)
        try:
            target = self.base.changed("-".join([self.base.name, *map(str, changes.values())]), changes)
        except ValidationError:
            return None
        return target if elaborates(target) else None

    def changes(self, design: Sizes) -> dict[str, int]:
        """What a design has instead of the base's sizes."""
        return {name: values[i] for (name, values), i in zip(self.values.items(), design, strict=True)}

    def mm2(self, design: Sizes) -> float:
        """Area of a design that can exist."""
        target = self.target(design)
        assert target is not None
        return float(self.area(target))

    @cached_property
    def feasible(self) -> tuple[Sizes, ...]:
        """Designs that can exist within the area, in the order of their values."""
        ranges = [range(len(values)) for values in self.values.values()]
        return tuple(d for d in itertools.product(*ranges) if self.is_feasible(d))

    def least_area(self) -> float | None:
        """Of all designs that can exist; None if there are none."""
        ranges = [range(len(values)) for values in self.values.values()]
        areas = [self.mm2(d) for d in itertools.product(*ranges) if self.target(d) is not None]
        return min(areas, default=None)

    def is_feasible(self, design: Sizes) -> bool:
        """Whether a design can exist and is not too large."""
        return self.target(design) is not None and self.mm2(design) <= self.limit

    def nearest(self, design: Sizes) -> Sizes | None:
        """A design that is feasible: where this one is not, with the least steps down, or any, away."""
        if self.is_feasible(design):
            return design
        if not self.feasible:
            return None
        away = np.abs(self._table - np.array(design)).sum(axis=1) + 0.01 * np.maximum(
            self._table - np.array(design), 0
        ).sum(axis=1)
        return self.feasible[int(np.argmin(away))]

    @cached_property
    def _table(self) -> NDArray[np.int64]:
        return np.array(self.feasible, dtype=np.int64)

    def neighbours(self, design: Sizes, but: Sequence[str] = ()) -> Iterator[Sizes]:
        """Feasible designs that differ by one step in one size, or by one up and one down; `but` stay."""
        free = [at for at, name in enumerate(self.values) if name not in but]
        steps: list[Sequence[tuple[int, int]]] = [[(at, by)] for at in free for by in (1, -1)]
        steps += [[(up, 1), (down, -1)] for up, down in itertools.permutations(free, 2)]
        counts = [len(values) for values in self.values.values()]
        for step in steps:
            moved = list(design)
            for at, by in step:
                moved[at] += by
            if all(0 <= i < n for i, n in zip(moved, counts, strict=True)) and self.is_feasible(tuple(moved)):
                yield tuple(moved)
