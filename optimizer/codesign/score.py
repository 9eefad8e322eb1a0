"""What designs cost: every network searched on them, one after the other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.optimizer.codesign.designs import Designs, Sizes
from fadiff.optimizer.cut.settings import Settings
from fadiff.optimizer.layer.solved import SolvedLayers
from fadiff.optimizer.search import optimize


class Cost(NamedTuple):
    """Energy in uJ and latency in cycles."""

    energy_uj: float
    latency_cycles: float

    @property
    def edp(self) -> float:
        """uJ x cycles."""
        return self.energy_uj * self.latency_cycles


@dataclass(frozen=True)
class Scored:
    """A design with what each network costs on it."""

    sizes: Sizes
    area_mm2: float
    costs: dict[str, Cost]

    @property
    def mean(self) -> Cost:
        """Geometric means over the networks, so that none counts for more because it is larger."""
        return Cost(
            *(
                math.exp(sum(map(math.log, numbers)) / len(self.costs))
                for numbers in zip(*self.costs.values(), strict=True)
            )
        )


class Found(NamedTuple):
    """When a design was scored, seconds after the start."""

    seconds: float
    scored: Scored


class Scorer:
    """Scores designs until the time is up; remembers all.  `graphs` are by name and array size."""

    def __init__(
        self,
        graphs: Mapping[str, Mapping[int, Graph]],
        space: Designs,
        settings: Settings,
        seconds: float,
        *,
        solved: SolvedLayers | None = None,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.graphs, self.space, self.settings, self.seconds = graphs, space, settings, seconds
        self.solved, self.say = solved, say
        self._clock, self._started = clock, clock()
        self._known: dict[Sizes, Scored | None] = {}
        self.found: list[Found] = []
        """In the order in which they were scored."""
        self.judged: dict[Sizes, float] = {}
        """What `alone` said."""

    @property
    def used(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started

    def is_over(self, share: float = 1.0) -> bool:
        """Whether a share of the time is used up."""
        return self.used >= share * self.seconds

    def __call__(self, design: Sizes) -> float:
        """The objective, a geometric mean over the networks; infinite where one does not fit."""
        if design not in self._known:
            scored = self._known[design] = self.score(design, self.settings)
            if scored is not None:
                self.found.append(Found(self.used, scored))
                self.say(f"{len(self.found)} designs, best {self.objective(self.best):.4g}")
        found = self._known[design]
        return math.inf if found is None else self.objective(found)

    @property
    def best(self) -> Scored:
        """The best design so far.

        Raises:
            ScheduleError: no design so far fits all networks.
        """
        if not self.found:
            raise ScheduleError(
                "no design that was tried has room for every network: allow larger memories or more time"
            )
        return min((f.scored for f in self.found), key=self.objective)

    def objective(self, scored: Scored) -> float:
        """What is minimised."""
        mean = scored.mean
        return {"edp": mean.edp, "energy": mean.energy_uj, "latency": mean.latency_cycles}[
            self.settings.objective
        ]

    def score(self, design: Sizes, settings: Settings) -> Scored | None:
        """Every network searched with `settings`; None where one does not fit."""
        target = self.space.target(design)
        if target is None:
            return None
        costs = {}
        for name, forms in self.graphs.items():
            try:
                found = optimize(forms[target.side], target, settings, solved=self.solved)
            except ScheduleError:
                return None
            costs[name] = Cost(found.cost.energy_pj * 1e-6, found.cost.latency_cycles)
        return Scored(design, self.space.mm2(design), costs)

    def alone(self, design: Sizes) -> float:
        """The objective with every layer alone: quick, and mostly orders designs as fusion does."""
        if design not in self.judged:
            scored = self.score(design, replace(self.settings, method="layerwise"))
            self.judged[design] = math.inf if scored is None else self.objective(scored)
        return self.judged[design]


def pareto(found: list[Found]) -> list[Scored]:
    """Designs that no other one is at least as good as in energy, latency and area, by EDP."""
    rows = {f.scored.sizes: f.scored for f in found}.values()

    def numbers(scored: Scored) -> tuple[float, float, float]:
        return (*scored.mean, scored.area_mm2)

    kept = [
        row
        for row in rows
        if not any(
            numbers(o) != numbers(row) and all(a <= b for a, b in zip(numbers(o), numbers(row), strict=True))
            for o in rows
        )
    ]
    return sorted(kept, key=lambda scored: scored.mean.edp)
