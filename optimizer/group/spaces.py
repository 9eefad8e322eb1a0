"""Map-spaces of the members of fusion groups, and floors under what groups cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from converter.ir.graph import Graph, TensorCoreLayer
from costmodel.group.fusion import GroupPlanner, Member, ScheduleError
from costmodel.group.local_tensors import obstacle
from costmodel.group.placement import placement_of
from costmodel.mapping.shape import shape_of
from costmodel.schedule.batch import Floats
from costmodel.schedule.evaluate import host_cost
from costmodel.schedule.schedule import FusionGroup, GroupTile
from optimizer.group.least_regions import least_regions
from optimizer.layer.floors import ideal_cost, ideal_costs
from optimizer.layer.space import LayerSpace, Rules


class GroupSpaces:
    """Spaces and floors of one graph under one set of rules."""

    def __init__(self, graph: Graph, rules: Rules) -> None:
        self.graph, self.rules = graph, rules
        self._floors: dict[LayerSpace, tuple[float, float]] = {}
        self._planners: dict[tuple[tuple[str, ...], frozenset[str]], GroupPlanner] = {}

    def planner(self, layers: tuple[str, ...], resident_tensors: frozenset[str]) -> GroupPlanner:
        """Plans of two layers or more at any tile.

        Raises:
            ScheduleError: the layers cannot be executed as one group.
        """
        key = layers, resident_tensors
        if key not in self._planners:
            self._planners[key] = GroupPlanner(self.graph, layers, resident_tensors)
        return self._planners[key]

    def plan(self, group: FusionGroup) -> dict[str, Member]:
        """Plan of a group of two layers or more.

        Raises:
            ScheduleError: the group cannot be executed as one.
        """
        assert group.tile is not None
        return self.planner(group.layers, group.resident_tensors).plan(group.tile, group.halo)

    def space(
        self, layer: TensorCoreLayer, plan: dict[str, Member], group: FusionGroup, resident: bool
    ) -> LayerSpace:
        """Mappings of one member of a group that has the scratchpad to itself."""
        placement = placement_of(self.graph, group, plan, layer)
        return LayerSpace(
            shape_of(layer),
            plan[layer.name].computed,
            self.rules,
            placement._replace(weights_are_resident=resident),
            prefetched=layer.name == group.layers[0] and self._may_prefetch(layer, group),
        )

    def _may_prefetch(self, layer: TensorCoreLayer, group: FusionGroup) -> bool:
        """Whether the first layer of a group is counted as if its first weights were there."""
        if group.tile is not None and group.tile.is_part:
            return False
        return self.rules.prefetch and self.graph.tensors[layer.weight.tensor].data is not None

    def routed_groups(self, run: FusionGroup, plan: dict[str, Member]) -> Iterator[FusionGroup]:
        """All fused tensors through the tile buffer; then those that can on the target's path, all or one."""
        yield run
        path = self.rules.target.fusion_path
        if not self.rules.counting.has_tile_buffer or path == "tile-buffer":
            return
        able = [name for name in run.layers if not obstacle(self.graph, run, plan, name, path)]
        for held in dict.fromkeys([frozenset(able), *(frozenset({name}) for name in able)]):
            if held:
                in_scratchpad = path == "spad"
                yield replace(run, in_scratchpad=held) if in_scratchpad else replace(run, in_accumulator=held)

    def host_cost(self, group: FusionGroup, plan: dict[str, Member]) -> tuple[float, float]:
        """Energy and latency of the members that the array does not run."""
        energy = latency = 0.0
        rules = self.rules
        for name in group.layers:
            layer = self.graph.by_name[name]
            if not isinstance(layer, TensorCoreLayer):
                cost = host_cost(self.graph, group, plan, layer, rules.target, rules.profile, rules.latency)
                energy += cost.energy_pj
                latency += cost.latency_cycles
        return energy, latency

    def floor(self, space: LayerSpace) -> tuple[float, float]:
        """Cost with a scratchpad that holds everything: no mapping of the space is cheaper."""
        found = self._floors.get(space)
        if found is None:
            costs = [ideal_cost(part) for part in space.by_lanes()]
            found = min(c[0] for c in costs), min(c[1] for c in costs)
            self._floors[space] = found
        return found

    def group_floor(
        self, group: FusionGroup, plan: dict[str, Member], *, is_paper: bool = False
    ) -> tuple[float, float]:
        """Cost of a group with resident weights and a scratchpad that holds everything."""
        energy, latency = self.host_cost(group, plan)
        for _, spaces in self._resident_spaces(group, plan, is_paper=is_paper):
            floors = [self.floor(space) for space in spaces]
            energy += min(e for e, _ in floors)
            latency += min(lat for _, lat in floors)
        return energy, latency

    def tile_floors(
        self, planner: GroupPlanner, runs: Iterable[FusionGroup]
    ) -> tuple[list[FusionGroup], Floats, Floats]:
        """Group tiles that can be walked, with energy and latency [T] that no way to run them is below
        (judged by what they make members compute: most tiles need no plan)."""
        able, along = [], []
        for run in runs:
            assert run.tile is not None
            try:
                along.append(planner.axes(run.tile, run.halo))
                able.append(run)
            except ScheduleError:
                continue
        energy, latency = np.zeros(len(able)), np.zeros(len(able))
        whole = GroupTile(*planner.size)
        try:
            least = least_regions(self.graph, planner.plan(whole))
        except ScheduleError:
            return able, energy, latency
        group = FusionGroup(planner.layers, whole, resident_tensors=planner.resident_tensors)
        host = self.host_cost(group, least)
        energy, latency = energy + host[0], latency + host[1]
        for name, spaces in self._resident_spaces(group, least):
            # Groups and channels share no weights: tiles of them change neither the products nor how often
            # weights are used.
            pixels = np.array([math.prod(axis[name].total for axis in axes[2:]) for axes in along])
            times = np.array([math.prod(len(axis[name].computed) for axis in axes[2:]) for axes in along])
            # What reads all channels of a pixel reads it for every tile of channels.
            parts = np.array([len(axes[1][name].computed) for axes in along])
            floors = [
                ideal_costs(part, pixels, times, 1 if part.shape.is_depthwise else parts)
                for space in spaces
                for part in space.by_lanes()
            ]
            energy += np.minimum.reduce([e for e, _ in floors])
            latency += np.minimum.reduce([lat for _, lat in floors])
        return able, energy, latency

    def _resident_spaces(
        self, group: FusionGroup, plan: dict[str, Member], *, is_paper: bool = False
    ) -> Iterator[tuple[str, set[LayerSpace]]]:
        """Spaces of every member with resident weights, one for each path that fused tensors may take."""
        routed_groups = [group] if is_paper else list(self.routed_groups(group, plan))
        for name in group.layers:
            layer = self.graph.by_name[name]
            if not isinstance(layer, TensorCoreLayer):
                continue
            spaces = {self.space(layer, plan, routed, True) for routed in routed_groups}
            if is_paper:
                spaces = {
                    replace(s, placement=s.placement._replace(weights_are_resident=False, is_paper=True))
                    for s in spaces
                }
            yield name, spaces
