"""What to search mappings of a network for, and how: the methods of `fadiff map` by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.nests.machine import Machine
from fadiff.optimizer.cut.partition import Objective
from fadiff.optimizer.nests.auto import auto, exact
from fadiff.optimizer.nests.genome import searched_by
from fadiff.optimizer.nests.layer import Method
from fadiff.optimizer.nests.local import local_search
from fadiff.optimizer.nests.network import MappedNetwork, map_network

MethodName = Literal["auto", "exact", "local", "gradient", "genetic", "bayesian", "random"]


def method_of(name: MethodName) -> Method:
    """A method's search of one layer.

    Raises:
        ImportError: it needs an extra that is not installed.
    """
    if name == "gradient":
        from fadiff.optimizer.gradient.nests import gradient

        return gradient
    if name == "genetic":
        import pymoo  # noqa: F401

        from fadiff.optimizer.baselines.genetic import evolve

        return searched_by(evolve)
    if name == "bayesian":
        import optuna  # noqa: F401

        from fadiff.optimizer.baselines.bayesian import study

        return searched_by(study)
    if name == "random":
        from fadiff.optimizer.baselines.random_search import draw_rows

        return searched_by(draw_rows)
    return {"auto": auto, "exact": exact, "local": local_search}[name]


@dataclass(frozen=True)
class MapOptions:
    """Names and defaults of `fadiff map`; `time_budget` in seconds, of the whole network."""

    objective: Objective = "edp"
    method: MethodName = "auto"
    time_budget: float | None = None
    fusion: bool = True
    seed: int = 0

    def search(
        self,
        graph: Graph,
        machine: Machine,
        progress: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> MappedNetwork:
        """Map a network onto a machine; its time is that of `clock`.

        Raises:
            MachineError: a layer that fits at no tile size.
            ImportError: the method needs an extra that is not installed.
        """
        return map_network(
            graph,
            machine,
            self.objective,
            self.time_budget,
            self.seed,
            self.fusion,
            method_of(self.method),
            progress,
            clock,
        )
