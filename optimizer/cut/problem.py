"""One search: the graph, the rules, the clock, and the solvers that all methods share."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.costmodel.schedule.evaluate import NetworkCost, evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, FusionModel, GroupTile, Schedule
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.cut.issued import as_issued
from fadiff.optimizer.cut.partition import Objective, Partition, Partitioner, Prices, ordered, value
from fadiff.optimizer.cut.result import HistoryPoint
from fadiff.optimizer.cut.settings import RelaxationForm, Settings
from fadiff.optimizer.group.candidates import candidate_groups, signature
from fadiff.optimizer.group.hull import EMPTY, GroupHull, Way
from fadiff.optimizer.group.network import RelaxedNetwork, relaxed_network
from fadiff.optimizer.group.paper import MOST_MEMBERS as PAPER_MEMBERS
from fadiff.optimizer.group.paper import paper_hull
from fadiff.optimizer.group.residency import (
    OFF_CHIP,
    Layers,
    PlacedGroup,
    Surroundings,
    at_member,
    surroundings_of,
    with_places,
)
from fadiff.optimizer.group.tiles import last_output
from fadiff.optimizer.group.ways import GroupSolver
from fadiff.optimizer.layer.fronts import Floats, FrontCache, minkowski
from fadiff.optimizer.layer.hull import Solution, lower_hull
from fadiff.optimizer.layer.space import Rules

Progress = Callable[[str], None]

MOST_IN_PROGRAMS = 4
"""Layers of the largest group of a program.  Larger ones take much longer to price, and changed the cycles of
what was emitted by no more than 1.2 %."""


@dataclass
class Problem:
    """What to optimise and how long; remembers fronts and the history of the best schedule."""

    graph: Graph
    rules: Rules
    objective: Objective | Prices = "edp"
    fusion: bool = True
    fusion_model: FusionModel = "sound"
    seed: int = 0
    time_budget: float | None = None
    limit: float = math.inf
    """Seconds that the search may take without a budget: it plans nothing by them."""
    progress: Progress | None = None
    fuses_adds: bool = True
    """Whether residual adds join groups (never in profile dosa, where they are free)."""
    most_members: int = 8
    """Layers of the largest fusion group."""
    residency: bool = True
    """Whether tensors may stay on chip from one group to later ones (with sound fusion only)."""
    relaxation: RelaxationForm = "log"
    """Form of the trainable tiles (method gradient)."""
    started: float = field(default_factory=time.monotonic)
    history: list[HistoryPoint] = field(default_factory=list)
    steps: int = 0

    def __post_init__(self) -> None:
        if self.fusion_model == "paper":
            self.most_members = min(self.most_members, PAPER_MEMBERS)
        if self.rules.latency == "clock":
            self.most_members = min(self.most_members, MOST_IN_PROGRAMS)
            self.rules = replace(self.rules, network_weights=self.graph.weight_bytes)
        self.fuses_adds &= self.rules.counting.charges_operators and self.fusion_model == "sound"

    @classmethod
    def of(
        cls,
        settings: Settings,
        graph: Graph,
        target: Target,
        progress: Progress | None = None,
    ) -> Problem:
        """A search of `graph` on `target`; its clock starts now."""
        return cls(
            graph,
            settings.rules(target),
            settings.objective,
            settings.fusion,
            settings.fusion_model,
            settings.seed,
            settings.time_budget,
            settings.limit(graph),
            progress,
            relaxation=settings.relaxation,
            residency=settings.residency,
        )

    @cached_property
    def fronts(self) -> FrontCache:
        """Fronts of single layers, shared by everything in this search."""
        return FrontCache()

    @cached_property
    def groups(self) -> GroupSolver:
        """Prices groups."""
        return GroupSolver(self.graph, self.rules, self.fronts, self.out_of_time)

    @cached_property
    def layers(self) -> dict[Layers, Layers]:
        """Every layer alone: {layer: the first identical layer}."""
        first: dict[object, Layers] = {}
        found: dict[Layers, Layers] = {}
        for layer in self.graph.layers:
            alone = (layer.name,)
            same = isinstance(layer, TensorCoreLayer)
            found[alone] = first.setdefault(signature(self.graph, alone), alone) if same else alone
        return found

    @cached_property
    def alone(self) -> dict[PlacedGroup, GroupHull]:
        """Every distinct layer unfused, nothing on chip before and after.

        Raises:
            ScheduleError: a layer of which not even the smallest tile fits.
        """
        return {
            PlacedGroup(first): self.groups.alone(first[0]) for first in dict.fromkeys(self.layers.values())
        }

    @cached_property
    def off_chip(self) -> Partitioner:
        """Cuts into layers and candidate groups with nothing on chip in between."""
        return Partitioner(self.graph, {**self.layers, **self.candidates})

    @cached_property
    def cuts(self) -> Partitioner:
        """All cuts, with tensors on chip in between if this search may."""
        if not (self.residency and self.fusion and self.fusion_model == "sound"):
            return self.off_chip
        return Partitioner(self.graph, {**self.layers, **self.candidates}, self.rules)

    @cached_property
    def layerwise(self) -> tuple[Solution[Partition], float]:
        """Every layer alone at the mapping that is best for the network, and the bound for that."""
        result = self.off_chip.best(self.alone, self.objective)
        partition = self.off_chip.partition(self.alone, result.best.argmin)
        return Solution(result.best.energy, result.best.latency, partition), result.lower_bound

    @property
    def unit(self) -> float:
        """Of SearchResult.lower_bound, in pJ and cycles."""
        return 1e-6 if self.objective == "edp" else 1.0

    @property
    def seconds(self) -> float:
        """Since the search started."""
        return time.monotonic() - self.started

    def out_of_time(self, share: float = 1.0) -> bool:
        """Whether `share` of the time budget is used up."""
        return self.is_past_limit if self.time_budget is None else self.seconds > share * self.time_budget

    @property
    def is_past_limit(self) -> bool:
        """Whether a search without a budget has taken as long as it may."""
        return self.time_budget is None and self.seconds > self.limit

    def rest(self) -> Problem:
        """The same search from now on: with what is left of the time budget, nothing remembered."""
        left = None if self.time_budget is None else max(self.time_budget - self.seconds, 0.0)
        limit = max(self.limit - self.seconds, 0.0)
        return replace(self, time_budget=left, limit=limit, started=time.monotonic(), history=[])

    def say(self, message: str) -> None:
        """Live progress."""
        if self.progress is not None:
            self.progress(message)

    @cached_property
    def candidates(self) -> dict[Layers, Layers]:
        """Groups that may fuse: {group: the first identical group}."""
        if not self.fusion:
            return {}
        first: dict[object, Layers] = {}
        found = {}
        pools = self.fuses_adds and self.rules.target.has_max_pool
        for layers in candidate_groups(self.graph, self.most_members, adds=self.fuses_adds, pools=pools):
            if last_output(self.graph, layers) is not None:  # an add cannot lead a group
                found[layers] = first.setdefault(signature(self.graph, layers), layers)
        return found

    @cached_property
    def network(self) -> RelaxedNetwork:
        """What descent works on."""
        return relaxed_network(self.graph, self.candidates)

    def beside(self, network: RelaxedNetwork) -> tuple[float, float]:
        """Energy and latency of the layers that are no nodes of `network`, each alone: host operators."""
        names = (layer.name for layer in self.graph.layers if layer.name not in network.node_of)
        hulls = [self.groups.alone(name) for name in names]
        return sum(float(hull.energy[0]) for hull in hulls), sum(float(hull.latency[0]) for hull in hulls)

    def unfused(self, layers: Layers, surroundings: Surroundings = OFF_CHIP) -> tuple[Floats, Floats]:
        """Hull of a group's members run one by one; empty if one of them has no room."""
        hulls = [self.groups.alone(name, at_member(self.graph, name, surroundings)) for name in layers]
        if not all(map(len, hulls)):
            return EMPTY.costs
        energy, latency, _ = minkowski([hull.costs for hull in hulls])
        return energy, latency

    def price(self, placed: PlacedGroup, known: GroupHull = EMPTY) -> GroupHull:
        """Hull of a layer alone, or of what a group of layers has to offer beside that and `known`."""
        layers, surroundings = placed
        if len(layers) == 1:
            return self.groups.alone(layers[0], surroundings)
        return self.price_group(layers, None, known, surroundings)

    def price_group(
        self,
        layers: Layers,
        tiles: Iterable[GroupTile] | None = None,
        known: GroupHull = EMPTY,
        surroundings: Surroundings = OFF_CHIP,
    ) -> GroupHull:
        """Hull of a group over `tiles` (default: all), without what running its layers alone, or an
        way to run the group `known` already, beats."""
        if self.fusion_model == "paper":
            return paper_hull(self.graph, layers, self.rules, self.fronts)
        alone = self.unfused(layers, surroundings)
        energy, latency = (np.concatenate(p) for p in zip(alone, known.costs, strict=True))
        keep = lower_hull(energy, latency)
        return self._at_tiles(layers, tiles, (energy[keep], latency[keep]), surroundings)

    def _at_tiles(
        self,
        layers: Layers,
        tiles: Iterable[GroupTile] | None,
        beaten: tuple[Floats, Floats],
        surroundings: Surroundings,
    ) -> GroupHull:
        """Hull of a group over tiles (None: all), without what a hull of costs beats already."""
        floors = self.groups.tile_floors(layers, surroundings, tiles)
        return self.groups.solve(floors, beaten, surroundings)

    def _again(self, way: Way, group: FusionGroup) -> Way:
        """A way with fewer tensors on chip, its members mapped for what they read and write now."""
        if group == way.group or self.rules.latency != "clock":
            return replace(way, group=group)
        surroundings = surroundings_of(self.graph, group, self.rules)
        if group.tile is None:
            hull = self.price(PlacedGroup(group.layers, surroundings))
        else:
            hull = self._at_tiles(group.layers, [group.tile], EMPTY.costs, surroundings)
        if not len(hull):
            return replace(way, group=group)
        costs = zip(*hull.costs, strict=True)
        best = min(range(len(hull)), key=[value(self.objective, *cost) for cost in costs].__getitem__)
        return hull.ways[best].renamed(group.layers, group.resident_tensors)

    def placed(self, partition: Partition) -> Partition:
        """The partition in running order, without tensors on chip that have no place in the tile buffer."""
        partition = ordered(self.graph, partition)
        groups = tuple(way.group for way in partition)
        if self.rules.counting.has_tile_buffer and self.fusion_model == "sound":
            groups = with_places(self.graph, groups, self.rules.target)
        return tuple(itertools.starmap(self._again, zip(partition, groups, strict=True)))

    def schedule(self, partition: Partition) -> Schedule:
        """The legal schedule that a partition describes."""
        return self.schedule_of(self.placed(partition))

    def schedule_of(self, partition: Partition) -> Schedule:
        """The same of a partition that is `placed`."""
        mappings = {name: m for way in partition for name, m in way.mappings().items()}
        groups = tuple(way.group for way in partition)
        schedule = Schedule(
            self.graph, self.rules.target, mappings, groups, self.rules.profile, self.fusion_model
        )
        return as_issued(schedule) if schedule.is_executable else schedule

    def cost(self, schedule: Schedule) -> NetworkCost:
        """Exact cost."""
        return evaluate(schedule)

    def record(self, edp: float, feasible: float = float("nan")) -> None:
        """Note the best EDP (uJ x cycles) known now, and show it.

        `feasible` is the share of the candidates looked at last that were legal as they were.
        """
        best = min([edp, *(point.best_edp for point in self.history[-1:])])
        self.history.append(HistoryPoint(self.seconds, self.steps, best))
        share = "" if feasible != feasible else f", {feasible:.0%} feasible"
        self.say(f"step {self.steps}: best EDP {best:.4g} uJ x cycles{share}")
