"""Iterated local search over prime factors, loop orders, and what memories keep.

A lineage goes to its best neighbour until none is better, then begins again from a disturbed copy of the best
mapping known.
"""

from __future__ import annotations

import numpy as np

from fadiff.costmodel.nests.mapping import Mappings
from fadiff.optimizer.nests.layer import LayerSearch
from fadiff.optimizer.nests.space import Space

STARTS = 256
"""Random mappings that a lineage begins from the best of."""
PATIENCE = 8
"""Restarts without a better mapping after which a search without a time budget ends."""
DISTURBED = 4
"""Moves that a restart makes."""


def local_search(search: LayerSearch) -> None:
    """Until time is over; without a time budget, until restarts find nothing better."""
    climb(search, patience=None if search.seconds is not None else PATIENCE)


def climb(search: LayerSearch, patience: int | None, share: float = 1.0) -> None:
    """Until `patience` restarts find nothing better, or a share of the time is over."""
    lineages = [Lineage(search, space, space.random(STARTS, search.generator)) for space in search.spaces]
    while len(lineages) > 1:  # halving: what to keep is decided by what short searches find
        for lineage in lineages:
            lineage.climb()
        lineages = sorted(lineages, key=lambda lineage: lineage.best_value)[: len(lineages) // 2]
    lineages[0].improve(patience, share)


def resume(search: LayerSearch) -> None:
    """From the best mapping known until time is over."""
    space = Space(search.machine, search.workload, search.best.keeps)
    Lineage(search, space, search.best).improve(None, 1.0)


class Lineage:
    """A mapping that goes from neighbour to neighbour."""

    def __init__(self, search: LayerSearch, space: Space, start: Mappings) -> None:
        self.search, self.space = search, space
        self.best = self.now = space.outermost
        self.best_value = self.now_value = np.inf
        self._go(start)

    def improve(self, patience: int | None, share: float) -> None:
        """Until `patience` restarts find nothing better, or a share of the time is over."""
        idle = 0
        while idle != patience and not self.search.is_over(share):
            before = self.best_value
            self.climb()
            self.restart()
            idle = 0 if self.best_value < before else idle + 1
        self.climb()

    def climb(self) -> None:
        """To the best neighbour, until none is better."""
        while True:
            before = self.now_value
            around = self.space.neighbours(self.now)
            if not len(around):
                return
            values = self.search.values(around)
            at = int(np.argmin(values))
            if not values[at] < before:
                return
            self._at(around[np.array([at])], float(values[at]))

    def restart(self) -> None:
        """From the best mapping, disturbed, or from the best of new random ones."""
        generator = self.search.generator
        if generator.random() < 0.25:
            self._go(self.space.random(STARTS, generator))
            return
        row = self.best
        for _ in range(DISTURBED):
            around = self.space.neighbours(row)
            legal = np.flatnonzero(self.search.values(around) < np.inf)
            if not len(legal):
                return
            row = around[generator.choice(legal, size=1)]
        self._go(row)

    def _go(self, rows: Mappings) -> None:
        values = self.search.values(rows)
        at = int(np.argmin(values))
        self._at(rows[np.array([at])], float(values[at]))

    def _at(self, row: Mappings, value: float) -> None:
        self.now, self.now_value = row, value
        if value < self.best_value:
            self.best, self.best_value = row, value
