"""What designs cost: every network searched on them, one after the other."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, NamedTuple

from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.nests.machine import Machine, MachineError
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.codesign.designs import Designs, Gemminis, Hardware, Machines, Sizes
from fadiff.optimizer.cut.partition import Objective
from fadiff.optimizer.cut.settings import Settings
from fadiff.optimizer.mapping_methods import MapOptions
from fadiff.optimizer.search import optimize

if TYPE_CHECKING:
    from fadiff.optimizer.codesign.machine_descent import MachineCodesign


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


class Scorer(ABC, Generic[Hardware]):
    """Scores designs until the time is up; remembers all."""

    def __init__(
        self,
        space: Designs[Hardware],
        objective: Objective,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.space, self.objective, self.seconds, self.say = space, objective, seconds, say
        self._clock, self._started = clock, clock()
        self._known: dict[Sizes, Scored | None] = {}
        self.found: list[Found] = []
        """In the order in which they were scored."""
        self.judged: dict[Sizes, float] = {}
        """What `alone` said."""

    @abstractmethod
    def costs(self, hardware: Hardware) -> dict[str, Cost]:
        """Of every network.

        Raises:
            ScheduleError, MachineError: one does not fit.
        """

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
            scored = self._known[design] = self.score(design, self.costs)
            if scored is not None:
                self.found.append(Found(self.used, scored))
                self.say(f"{len(self.found)} designs, best {self.value(self.best):.4g}")
        found = self._known[design]
        return math.inf if found is None else self.value(found)

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
        return min((f.scored for f in self.found), key=self.value)

    def value(self, scored: Scored) -> float:
        """What is minimised."""
        mean = scored.mean
        return {"edp": mean.edp, "energy": mean.energy_uj, "latency": mean.latency_cycles}[self.objective]

    def score(self, design: Sizes, costs: Callable[[Hardware], dict[str, Cost]]) -> Scored | None:
        """Every network searched on a design; None where one does not fit."""
        hardware = self.space.hardware(design)
        if hardware is None:
            return None
        try:
            return Scored(design, self.space.mm2(design), costs(hardware))
        except (ScheduleError, MachineError):
            return None

    def alone(self, design: Sizes) -> float:
        """The objective as far as a quick search tells."""
        if design not in self.judged:
            self.judged[design] = self.quick(design)
        return self.judged[design]

    def quick(self, design: Sizes) -> float:
        """What `alone` remembers; here the objective itself."""
        return self(design)

    def looks(self, design: Sizes) -> float:
        """By what neighbours are tried first; here all alike."""
        return 0.0


class GemminiScorer(Scorer[Target]):
    """Networks on Gemminis; `graphs` are by name and array size."""

    def __init__(
        self,
        graphs: Mapping[str, Mapping[int, Graph]],
        space: Gemminis,
        settings: Settings,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        super().__init__(space, settings.objective, seconds, clock=clock, say=say)
        self.graphs, self.settings = graphs, settings

    def costs(self, hardware: Target) -> dict[str, Cost]:
        """By `optimize`."""
        return self._costs(hardware, self.settings)

    def quick(self, design: Sizes) -> float:
        """With every layer alone, which mostly orders designs as fusion does."""
        alone = replace(self.settings, method="layerwise")
        scored = self.score(design, lambda target: self._costs(target, alone))
        return math.inf if scored is None else self.value(scored)

    def looks(self, design: Sizes) -> float:
        """With every layer alone."""
        return self.alone(design)

    def _costs(self, hardware: Target, settings: Settings) -> dict[str, Cost]:
        found = {
            name: optimize(forms[hardware.side], hardware, settings).cost
            for name, forms in self.graphs.items()
        }
        return {name: Cost(cost.energy_pj * 1e-6, cost.latency_cycles) for name, cost in found.items()}


class MachineScorer(Scorer[Machine]):
    """Networks on machines that need not be Gemminis; `graphs` by name."""

    def __init__(
        self,
        graphs: Mapping[str, Graph],
        space: Machines,
        options: MapOptions,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        super().__init__(space, options.objective, seconds, clock=clock, say=say)
        self._machines, self.graphs, self.options = space, graphs, options

    def costs(self, hardware: Machine) -> dict[str, Cost]:
        """By `map_network`."""
        found = {
            name: self.options.search(graph, hardware, clock=self._clock).best
            for name, graph in self.graphs.items()
        }
        return {name: Cost(best.energy * 1e-6, best.cycles) for name, best in found.items()}

    def relaxed(self) -> MachineCodesign:
        """Factors and orders of all layers alone, and sizes of a machine, all trainable.

        Raises:
            ImportError: without torch.
        """
        from fadiff.optimizer.codesign.machine_descent import MachineCodesign

        return MachineCodesign(self.graphs, self._machines, self.objective)


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
