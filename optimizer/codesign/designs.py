"""The designs among which co-design chooses: values of a few sizes, and an area that none may exceed."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from fadiff.costmodel.nests.machine import Machine, MachineError
from fadiff.costmodel.nests.sizes import resized
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.codesign.area import Area

NAMES = ("side", "scratchpad_bytes", "accumulator_bytes", "tile_buffer_bytes", "bandwidth.dram_bytes")
"""What co-design of a Gemmini may choose."""
Hardware = TypeVar("Hardware", bound=Target | Machine)
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
class Designs(ABC, Generic[Hardware]):
    """Base hardware, the values of the sizes that vary, ascending, and the largest area in mm^2."""

    base: Hardware
    values: dict[str, tuple[int, ...]]
    area: Area
    limit: float
    _known: dict[Sizes, Hardware | None] = field(default_factory=dict, repr=False)

    @abstractmethod
    def made(self, changes: Mapping[str, int]) -> Hardware | None:
        """The base with other sizes; None if there is no such hardware."""

    def hardware(self, design: Sizes) -> Hardware | None:
        """What a design is; None if it cannot exist."""
        if design not in self._known:
            self._known[design] = self.made(self.changes(design))
        return self._known[design]

    def changes(self, design: Sizes) -> dict[str, int]:
        """What a design has instead of the base's sizes."""
        return {name: values[i] for (name, values), i in zip(self.values.items(), design, strict=True)}

    def mm2(self, design: Sizes) -> float:
        """Area of a design that can exist."""
        hardware = self.hardware(design)
        assert hardware is not None
        return self.area.of(hardware)

    @cached_property
    def feasible(self) -> tuple[Sizes, ...]:
        """Designs that can exist within the area, in the order of their values."""
        ranges = [range(len(values)) for values in self.values.values()]
        return tuple(d for d in itertools.product(*ranges) if self.is_feasible(d))

    def least_area(self) -> float | None:
        """Of all designs that can exist; None if there are none."""
        ranges = [range(len(values)) for values in self.values.values()]
        areas = [self.mm2(d) for d in itertools.product(*ranges) if self.hardware(d) is not None]
        return min(areas, default=None)

    def is_feasible(self, design: Sizes) -> bool:
        """Whether a design can exist and is not too large."""
        return self.hardware(design) is not None and self.mm2(design) <= self.limit

    def nearest_to(self, sizes: Sequence[float]) -> Sizes | None:
        """A feasible design near sizes between the values, by their logs."""
        pairs = zip(self.values.values(), sizes, strict=True)
        near = (np.abs(np.log(values) - np.log(size)).argmin() for values, size in pairs)
        return self.nearest(tuple(map(int, near)))

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


class Gemminis(Designs[Target]):
    """Sizes of NAMES."""

    def made(self, changes: Mapping[str, int]) -> Target | None:
        """None if the generator makes no such Gemmini."""
        try:
            target = self.base.changed("-".join([self.base.name, *map(str, changes.values())]), changes)
        except ValidationError:
            return None
        return target if elaborates(target) else None

    def by_side(self) -> dict[int, Target]:
        """One design within the area for every array size, the largest first: forms of layers and candidates
        for tiles depend on nothing else."""
        found: dict[int, Target] = {}
        for design in self.feasible:
            target = self.hardware(design)
            assert target is not None
            found[target.side] = target
        return dict(sorted(found.items(), reverse=True))


class Machines(Designs[Machine]):
    """Sizes of costmodel.nests.sizes."""

    def made(self, changes: Mapping[str, int]) -> Machine | None:
        """None if there is no such machine."""
        try:
            return resized(self.base, changes)
        except MachineError:
            return None
