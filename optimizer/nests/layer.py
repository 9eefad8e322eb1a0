"""One layer's search: what every method does with it, and what comes out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fadiff.costmodel.nests.count import Floats, Nests
from fadiff.costmodel.nests.machine import Machine, MachineError
from fadiff.costmodel.nests.mapping import Mappings
from fadiff.costmodel.nests.workload import Workload
from fadiff.optimizer.cut.partition import Objective
from fadiff.optimizer.layer.hull import lower_hull
from fadiff.optimizer.nests.space import Space, costs_of, keeps_of, value_of

PROVEN = 1 + 1e-6
"""A mapping is proven the best if it costs at most so many times the bound."""
MOST_KEEPS = 64
"""Choices of what memories keep that are searched, those that keep most first."""


@dataclass(frozen=True)
class Found:
    """The best mapping (a single row) and what it costs: pJ, cycles, uJ x cycles."""

    mapping: Mappings
    energy: float
    cycles: int
    objective: float
    bound: float
    """No mapping of perfect factors has a lower objective."""
    evaluated: int

    @property
    def edp(self) -> float:
        """uJ x cycles."""
        return self.energy * 1e-6 * self.cycles

    @property
    def proven(self) -> bool:
        """Whether no mapping is better."""
        return self.objective <= self.bound * PROVEN


class LayerSearch:
    """A layer to map, and the best mapping so far.

    Raises:
        MachineError: not even the smallest tiles fit, or constraints leave no mapping.
    """

    def __init__(
        self,
        machine: Machine,
        workload: Workload,
        objective: Objective = "edp",
        seconds: float | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        all_worth: bool = False,
    ) -> None:
        """`all_worth`: remember every mapping on the lower hull of energy and cycles, not the best only."""
        self.machine, self.workload, self.objective = machine, workload, objective
        self.seconds, self.seed, self.clock = seconds, seed, clock
        self.begun = clock()
        self.all_worth = all_worth
        self._worth: list[tuple[float, float, Mappings]] = []
        self.evaluated = 0
        self.value, self.bound = np.inf, 0.0
        some = keeps_of(machine)
        spaces = [Space(machine, workload, keeps) for keeps in some[:MOST_KEEPS]]
        self.spaces = [space for space in spaces if self.values(space.outermost).min() < np.inf]
        """By what memories keep, those that hold more first; all have a mapping."""
        if not self.spaces:
            raise MachineError(_too_small(machine, workload))

    def values(self, rows: Mappings) -> Floats:
        """Of the objective, of every row; infinite where it does not fit."""
        self.evaluated += len(rows)
        energy, cycles = costs_of(self.machine, self.workload, rows)
        found = value_of(self.objective, energy, cycles)
        at = int(np.argmin(found))
        if found[at] < self.value:
            self.value, self.best = float(found[at]), rows[np.array([at])]
        if self.all_worth and found[at] < np.inf:
            self._remember(rows, energy, cycles)
        return found

    def _remember(self, rows: Mappings, energy: Floats, cycles: Floats) -> None:
        """What no mix of others beats in energy and cycles together."""
        fits = np.flatnonzero(energy < np.inf)
        fits = fits[lower_hull(energy[fits], cycles[fits])]
        worth = [*self._worth, *((energy[i], cycles[i], rows[np.array([i])]) for i in fits)]
        hull = lower_hull(np.array([w[0] for w in worth]), np.array([w[1] for w in worth]))
        self._worth = [worth[i] for i in hull]

    def is_over(self, share: float = 1.0) -> bool:
        """Whether a share of the time budget is used up (never without one)."""
        return self.seconds is not None and self.clock() - self.begun >= share * self.seconds

    @cached_property
    def generator(self) -> np.random.Generator:
        """Of this layer's random numbers."""
        return np.random.default_rng(self.seed)

    def found(self) -> Found:
        """The best mapping."""
        return self._found(self.best)

    def worth(self) -> tuple[Found, ...]:
        """Those on the lower hull of energy and cycles, by ascending energy: the best layer need not be the
        best part of a network."""
        return tuple(self._found(mapping) for _, _, mapping in self._worth)

    def _found(self, mapping: Mappings) -> Found:
        nests = Nests(self.machine, self.workload, mapping)
        energy, cycles = float(nests.energy[0]), int(nests.cycles[0])
        value = float(value_of(self.objective, nests.energy, nests.cycles.astype(float))[0])
        return Found(mapping, energy, cycles, value, min(self.bound, value), self.evaluated)


Method = Callable[[LayerSearch], None]
"""Prices mappings (`LayerSearch.values`), and may lift the bound."""


def _too_small(machine: Machine, workload: Workload) -> str:
    """Which memory has no room for the smallest tiles, where memories keep as little as they may."""
    nests = Nests(machine, workload, Space(machine, workload, keeps_of(machine)[-1]).outermost)
    for place, memory in enumerate(machine.memories):
        needed = int(nests.words(place)[0])
        if needed > memory.words:
            return (
                f"{memory.name} has {memory.words} words, the smallest tiles of {workload.dims} need "
                f"{needed}: give it more, let it keep fewer operands, or loosen the factors that are fixed"
            )
    return f"fixed factors of {workload.dims} spread over more parts than there are; loosen them"
