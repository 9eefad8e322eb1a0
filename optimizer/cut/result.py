"""What a search returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from fadiff.costmodel.schedule.evaluate import NetworkCost
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.optimizer.cut.settings import Settings

BoundKind = Literal["proven", "unfused", "relaxed", "sequential"]


class HistoryPoint(NamedTuple):
    """Best legal schedule known at a moment of the search; EDP in uJ x cycles."""

    seconds: float
    step: int
    best_edp: float


@dataclass(frozen=True)
class SearchResult:
    """A legal schedule, its exact cost and what is known about how good it can get.

    `lower_bound` is in the unit of the objective (EDP: uJ x cycles, energy: pJ, latency: cycles).
    `bound` says what it rests on.  `proven`: no schedule of the canonical space (docs/optimizer.md lists
    what that leaves out) is better.  `unfused`: none of it without fusion is.  `relaxed`: the
    same space with optimistic costs for what was not priced, so it may be out of reach.  `sequential`:
    none is better that runs one layer after the other, as this one does not.  What is settled after the
    search keeps to its `settings`.
    """

    schedule: Schedule
    cost: NetworkCost
    lower_bound: float
    bound: BoundKind
    settings: Settings
    seconds: float
    steps: int
    history: tuple[HistoryPoint, ...]
    unfused_bytes: int | None = None
    """DRAM bytes of the best schedule without fusion, where the method finds it on its way."""
    automatic_bytes: int | None = None
    """DRAM bytes of gemmini.h's automatic tiles, where they were asked for as a limit."""

    @property
    def value(self) -> float:
        """The objective reached, in the unit of `lower_bound`."""
        return {
            "edp": self.cost.edp_uj_cycles,
            "energy": self.cost.energy_pj,
            "latency": float(self.cost.latency_cycles),
        }[self.settings.objective]

    @property
    def gap(self) -> float:
        """value / lower_bound - 1."""
        return self.value / self.lower_bound - 1 if self.lower_bound > 0 else float("inf")
