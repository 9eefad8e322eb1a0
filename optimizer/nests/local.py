"""Iterated local search over prime factors, loop orders, and what memories keep.

Lineages go to their best neighbours until none is better, then begin again from a disturbed copy of the best
mapping known, or anew.  They go side by side: what all of them see is priced at once.
"""

from __future__ import annotations

import numpy as np

from fadiff.costmodel.nests.mapping import Mappings
from fadiff.optimizer.nests.layer import LayerSearch
from fadiff.optimizer.nests.space import Space

STARTS = 256
"""Random mappings that lineages begin from the best of."""
LINEAGES = 8
"""Side by side."""
PATIENCE = 16
"""Restarts without a better mapping after which a search without a time budget ends."""
DISTURBED = 4
"""Moves that a restart makes."""
ANEW = 0.25
"""Share of restarts that begin from random mappings."""


def local_search(search: LayerSearch) -> None:
    """Until time is over; without a time budget, until restarts find nothing better."""
    climb(search, patience=None if search.seconds is not None else PATIENCE)


def climb(search: LayerSearch, patience: int | None, share: float = 1.0) -> None:
    """Until `patience` restarts find nothing better, or a share of the time is over."""
    first = glance(search, share)
    Lineages(search, first.space, LINEAGES, first.best).improve(patience, share)


def glance(search: LayerSearch, share: float = 1.0) -> Lineages:
    """One climb for every choice of what memories keep; of those that stay best the last."""
    every = [Lineages(search, space, 1) for space in search.spaces]
    while True:
        for lineages in every:
            lineages.improve(1, share)
        if len(every) == 1:
            return every[0]
        every = sorted(every, key=lambda lineages: lineages.best_value)[: len(every) // 2]


def resume(search: LayerSearch) -> None:
    """From the best mapping known until time is over."""
    space = Space(search.machine, search.workload, search.best.keeps)
    Lineages(search, space, LINEAGES, search.best).improve(None, 1.0)


class Lineages:
    """Mappings of one space that go from neighbour to neighbour."""

    def __init__(self, search: LayerSearch, space: Space, count: int, known: Mappings | None = None) -> None:
        """All begin at random but the first, which begins at a `known` mapping."""
        self.search, self.space = search, space
        self.best, self.best_value = space.outermost, np.inf
        self._fresh: list[Mappings] = []
        self.now = [self._random() for _ in range(count)]
        if known is not None:
            self.now[0] = known
        self.values = search.values(Mappings.joined(self.now))
        self._note()

    def improve(self, patience: int | None, share: float) -> None:
        """Until `patience` restarts find nothing better, or a share of the time is over."""
        idle = 0
        while not self.search.is_over(share):
            stuck = self._step()
            idle = 0 if self._note() else idle + len(stuck)
            if patience is not None and idle >= patience:
                return
            if stuck:
                for at in stuck:
                    self.now[at] = self._restarted()
                self.values[stuck] = self.search.values(Mappings.joined([self.now[at] for at in stuck]))
                self._note()

    def _step(self) -> list[int]:
        """All to their best neighbours; those that have no better one."""
        around = [self.space.neighbours(row) for row in self.now]
        ends = np.cumsum([len(rows) for rows in around])
        values = self.search.values(Mappings.joined(around))
        stuck = []
        for at, (rows, found) in enumerate(zip(around, np.split(values, ends[:-1]), strict=True)):
            if len(rows) and found.min() < self.values[at]:
                least = int(found.argmin())
                self.now[at], self.values[at] = rows[np.array([least])], found[least]
            else:
                stuck.append(at)
        return stuck

    def _note(self) -> bool:
        """Keep the best mapping; whether it is a new one."""
        at = int(self.values.argmin())
        better = bool(self.values[at] < self.best_value)
        if better:
            self.best, self.best_value = self.now[at], float(self.values[at])
        return better

    def _restarted(self) -> Mappings:
        """The best mapping, disturbed, or a good one of new random ones."""
        generator = self.search.generator
        if generator.random() < ANEW:
            return self._random()
        return self.space.disturbed(self.best, DISTURBED, generator)

    def _random(self) -> Mappings:
        """The best of random mappings, the next best..."""
        if not self._fresh:
            rows = self.space.random(STARTS, self.search.generator)
            best = np.argsort(self.search.values(rows), kind="stable")[:LINEAGES]
            self._fresh = [rows[best[at : at + 1]] for at in range(len(best))][::-1]
        return self._fresh.pop()
