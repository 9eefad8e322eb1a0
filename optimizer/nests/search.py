"""The best mapping of one layer on any machine: iterated local search over prime factors and loop orders.

A lineage goes to its best neighbour until none is better, then begins again from a disturbed copy of the best
mapping known.  Measured beside descent by gradients: level with it on single layers (docs/nests.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fadiff.costmodel.nests.count import Floats, Nests
from fadiff.costmodel.nests.machine import Machine, MachineError
from fadiff.costmodel.nests.mapping import Mappings
from fadiff.costmodel.nests.workload import Workload
from fadiff.optimizer.cut.partition import Objective
from fadiff.optimizer.nests.space import Space, keeps_of, value_of

STARTS = 256
"""Random mappings that a lineage begins from the best of."""
PATIENCE = 12
"""Restarts without a better mapping after which a search without a time budget ends."""
DISTURBED = 4
"""Moves that a restart makes."""


@dataclass(frozen=True)
class Found:
    """The best mapping (a single row) and what it costs: pJ, cycles, uJ x cycles."""

    mapping: Mappings
    energy: float
    cycles: int
    objective: float
    floor: float
    """No mapping has a lower objective: each word once from the outermost memory, each product once,
    the machine full or its outermost memory busy."""
    evaluated: int

    @property
    def edp(self) -> float:
        """uJ x cycles."""
        return self.energy * 1e-6 * self.cycles


def best_mapping(
    machine: Machine,
    workload: Workload,
    objective: Objective = "edp",
    seconds: float | None = None,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """Search for `seconds`, or until restarts find nothing better.

    Raises:
        MachineError: not even the smallest tiles fit, or constraints leave no mapping.
    """
    generator = np.random.default_rng(seed)
    begin = clock()
    lineages = [_Lineage(Space(machine, workload, keeps), objective) for keeps in keeps_of(machine)]
    lineages = [lineage for lineage in lineages if lineage.begin(generator)]
    if not lineages:
        raise MachineError(_too_small(machine, workload))
    while len(lineages) > 1:  # halving: what to keep is decided by what short searches find
        for lineage in lineages:
            lineage.climb()
        lineages = sorted(lineages, key=lambda lineage: lineage.best_value)[: len(lineages) // 2]
    [lineage] = lineages
    idle = 0
    while idle < PATIENCE if seconds is None else clock() - begin < seconds:
        before = lineage.best_value
        lineage.climb()
        lineage.restart(generator)
        idle = 0 if lineage.best_value < before else idle + 1
    lineage.climb()
    nests = Nests(machine, workload, lineage.best)
    return Found(
        lineage.best,
        float(nests.energy[0]),
        int(nests.cycles[0]),
        lineage.best_value,
        floor(machine, workload, objective),
        lineage.evaluated,
    )


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


class _Lineage:
    def __init__(self, space: Space, objective: Objective) -> None:
        self.space, self.objective = space, objective
        self.best = space.outermost
        self.best_value = np.inf
        self.now, self.now_value = self.best, np.inf
        self.evaluated = 0

    def begin(self, generator: np.random.Generator) -> bool:
        """From the best of random mappings; False if nothing fits."""
        if not self._values(self.space.outermost).min() < np.inf:
            return False
        self._go(self.space.random(STARTS, generator))
        return True

    def climb(self) -> None:
        """To the best neighbour, until none is better."""
        while True:
            before = self.now_value
            around = self.space.neighbours(self.now)
            if not len(around):
                return
            values = self._values(around)
            at = int(np.argmin(values))
            if not values[at] < before:
                return
            self._at(around[np.array([at])], float(values[at]))

    def restart(self, generator: np.random.Generator) -> None:
        """From the best mapping, disturbed, or from the best of new random ones."""
        if generator.random() < 0.25:
            self._go(self.space.random(STARTS, generator))
            return
        row = self.best
        for _ in range(DISTURBED):
            around = self.space.neighbours(row)
            legal = np.flatnonzero(self._values(around) < np.inf)
            if not len(legal):
                return
            row = around[generator.choice(legal, size=1)]
        self._go(row)

    def _go(self, rows: Mappings) -> None:
        values = self._values(rows)
        at = int(np.argmin(values))
        self._at(rows[np.array([at])], float(values[at]))

    def _at(self, row: Mappings, value: float) -> None:
        self.now, self.now_value = row, value
        if value < self.best_value:
            self.best, self.best_value = row, value

    def _values(self, rows: Mappings) -> Floats:
        """Of the objective; infinite where it does not fit."""
        self.evaluated += len(rows)
        return value_of(self.space.machine, self.space.workload, rows, self.objective)


def floor(machine: Machine, workload: Workload, objective: Objective) -> float:
    """A lower bound on the objective of all mappings of perfect factors."""
    outermost = machine.memories[0]
    once = {operand: workload.words(operand) for operand in ("W", "O")}
    # Windows that do not overlap skip inputs: then the box is more than what is read.
    once["I"] = min(workload.words("I"), workload.dims.product) if max(workload.stride) == 1 else 0
    blocks = {operand: words / outermost.block for operand, words in once.items()}
    reads = blocks["W"] + blocks["I"]
    energy = (
        reads * outermost.read_pj + blocks["O"] * outermost.update_pj + workload.dims.product * machine.mac_pj
    )
    words = once["W"] + once["I"] + once["O"]
    cycles = max(
        workload.dims.product / machine.multipliers,
        words / outermost.shared_bandwidth,
        (once["W"] + once["I"]) / outermost.read_bandwidth,
        once["O"] / outermost.write_bandwidth,
    )
    return {"edp": energy * 1e-6 * cycles, "energy": energy, "latency": cycles}[objective]
