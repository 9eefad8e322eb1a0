"""A limit on DRAM bytes: searches in which a byte costs more, until what they find moves no more than it may.

The price of a byte is the multiplier of the limit, beside what a pJ and a cycle are worth where the objective
is without one.  It rises until a schedule keeps the limit, then the last rise is halved a few times; the best
schedule of all that keep it counts.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.baselines.gemmini_auto import automatic_schedule
from fadiff.optimizer.cut.issued import quicker_copies
from fadiff.optimizer.cut.partition import Prices
from fadiff.optimizer.cut.problem import Problem, Progress
from fadiff.optimizer.cut.result import SearchResult
from fadiff.optimizer.search import solve

RISE = 8.0
"""Of the energy of a byte, from search to search."""
RISES = 7
HALVINGS = 4
"""Of the last rise."""
SHARE = 1 / 8
"""Of a time budget, for each search."""


def automatic_bytes(graph: Graph, target: Target, *, row_packing: bool = True) -> int:
    """DRAM bytes of a network at gemmini.h's automatic tiles.

    Raises:
        ScheduleError: memories too small for them.
    """
    return evaluate(automatic_schedule(graph, target, row_packing)).dram_bytes


def within(found: SearchResult, limit: int, progress: Progress | None = None) -> SearchResult:
    """`found` if it moves at most `limit` bytes, else the best schedule with dearer bytes that does.

    Args:
        found: What a search found (profile hw); its bound holds with a limit, too.
        limit: DRAM bytes.
        progress: Called with a line of text now and then.

    Raises:
        ScheduleError: no schedule that was found moves so few bytes.
    """
    if found.cost.dram_bytes <= limit:
        return found
    search = _Search(found, limit, progress)
    search.run()
    if search.best is None:
        raise ScheduleError(
            f"no schedule found that moves at most {limit:,} bytes; the fewest are {search.fewest:,}: "
            "raise --max-dram-bytes"
        )
    return search.best


class _Search:
    """The best result within the limit so far, and the fewest bytes of any."""

    def __init__(self, found: SearchResult, limit: int, progress: Progress | None) -> None:
        self.found, self.limit, self.progress = found, limit, progress
        self.best: SearchResult | None = None
        self.fewest = found.cost.dram_bytes
        budget = found.settings.time_budget
        self.settings = replace(found.settings, time_budget=None if budget is None else SHARE * budget)
        energy, cycles = found.cost.energy_pj, found.cost.latency_cycles
        worth = {"edp": (cycles, energy), "energy": (1.0, 1e-6), "latency": (1e-6, 1.0)}
        self.prices = Prices(*worth[found.settings.objective])

    def run(self) -> None:
        """Offer schedules with dearer and dearer bytes."""
        schedule = self.found.schedule
        with suppress(ScheduleError):  # memories too small for gemmini.h's tiles
            self._offer(automatic_schedule(schedule.graph, schedule.target, self.settings.row_packing))
        for rise in range(1, RISES + 1):
            if self._search(RISE**rise):
                self._halve(RISE ** (rise - 1), RISE**rise)
                return

    def _halve(self, low: float, high: float) -> None:
        """Lower prices: the fewest bytes are not wanted, the limit is."""
        for _ in range(HALVINGS):
            price = math.sqrt(low * high)
            low, high = (low, price) if self._search(price) else (price, high)

    def _search(self, price: float) -> bool:
        """Whether the best schedule with bytes at `price` times their energy keeps the limit, if need be with
        fewer copies by Gemmini."""
        graph, target = self.found.schedule.graph, self.found.schedule.target
        dear = target.energy.model_copy(update={"dram_byte": target.energy.dram_byte * price})
        problem = Problem.of(self.settings, graph, target.model_copy(update={"energy": dear}), self.progress)
        problem.objective, problem.rules = self.prices, replace(problem.rules, all_lanes=True)
        schedule = replace(solve(problem, self.settings.method)[0], target=target)
        fewer = replace(schedule, copies=quicker_copies(schedule, self.limit))
        return self._offer(schedule) or self._offer(fewer)

    def _offer(self, schedule: Schedule) -> bool:
        """Whether a schedule keeps the limit; the best that does stays."""
        cost = evaluate(schedule)
        self.fewest = min(self.fewest, cost.dram_bytes)
        if cost.dram_bytes > self.limit:
            return False
        offered = replace(self.found, schedule=schedule, cost=cost)
        if self.best is None or offered.value < self.best.value:
            self.best = offered
        return True
