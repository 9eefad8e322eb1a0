"""Map-spaces of the members of fusion groups, and floors under what groups cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.costmodel.group.copies import obstacle_to_rows
from fadiff.costmodel.group.fusion import Along, GroupPlanner, Member, ScheduleError, keeping
from fadiff.costmodel.group.placement import placement_of
from fadiff.costmodel.group.tile_buffer import box_bytes
from fadiff.costmodel.mapping.shape import extents, shape_of
from fadiff.costmodel.schedule.batch import Floats
from fadiff.costmodel.schedule.evaluate import host_cost
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile
from fadiff.optimizer.group.least_regions import least_regions
from fadiff.optimizer.layer.floors import ideal_cost, ideal_costs
from fadiff.optimizer.layer.loop_space import LoopSite
from fadiff.optimizer.layer.space import Ints, LayerSpace, Rules


class Walks(NamedTuple):
    """Group tiles of one group that can be walked, and what each makes every member do [T]."""

    tiles: list[FusionGroup]
    pixels: dict[str, Ints]
    """Computed in all, halo included."""
    times: dict[str, Ints]
    """Runs of the member."""
    parts: dict[str, Ints]
    """Of its channels: what reads all channels of a pixel reads it for every tile of channels."""
    boxes: dict[str, Ints]
    """Pixels of its output that a tile needs, at most, times its groups and channels."""


class TileFloors(NamedTuple):
    """Group tiles of one group, with energy and latency [T] that no way to run them is below."""

    tiles: list[FusionGroup]
    energy: Floats
    latency: Floats
    nbytes: Floats
    """Tile-buffer bytes [T] of fused tensors, at least."""

    @classmethod
    def unknown(cls, tiles: list[FusionGroup]) -> TileFloors:
        """Floors of zero."""
        nothing = np.zeros(len(tiles))
        return cls(tiles, nothing, nothing, nothing)

    def within(self, nbytes: int) -> TileFloors:
        """Those that may have room in so many bytes."""
        keep = np.flatnonzero(self.nbytes <= nbytes)
        tiles = [self.tiles[i] for i in keep]
        return TileFloors(tiles, self.energy[keep], self.latency[keep], self.nbytes[keep])


class GroupSpaces:
    """Spaces and floors of one graph under one set of rules."""

    def __init__(self, graph: Graph, rules: Rules) -> None:
        self.graph, self.rules = graph, rules
        self._floors: dict[LayerSpace, tuple[float, float]] = {}
        self._tile_floors: dict[tuple[LayerSpace, bytes], tuple[Floats, Floats]] = {}
        self._planners: dict[tuple[str, ...], GroupPlanner] = {}
        self._least: dict[tuple[str, ...], dict[str, Member]] = {}

    def planner(self, layers: tuple[str, ...]) -> GroupPlanner:
        """Plans of two layers or more at any tile.

        Raises:
            ScheduleError: the layers cannot be executed as one group.
        """
        if layers not in self._planners:
            self._planners[layers] = GroupPlanner(self.graph, layers)
        return self._planners[layers]

    def plan(self, group: FusionGroup) -> dict[str, Member]:
        """Plan of a group of two layers or more.

        Raises:
            ScheduleError: the group cannot be executed as one.
        """
        assert group.tile is not None
        plan = self.planner(group.layers).plan(group.tile)
        return keeping(self.graph, plan, group.resident_tensors)

    def least(self, layers: tuple[str, ...], resident_tensors: frozenset[str]) -> dict[str, Member]:
        """Plan of what no group tile makes less expensive.

        Raises:
            ScheduleError: the layers cannot be executed as one group of one tile.
        """
        if layers not in self._least:
            planner = self.planner(layers)
            self._least[layers] = least_regions(self.graph, planner.plan(GroupTile(*planner.size)))
        return keeping(self.graph, self._least[layers], resident_tensors)

    def space(
        self, layer: TensorCoreLayer, plan: dict[str, Member], group: FusionGroup, resident: bool
    ) -> LayerSpace:
        """Mappings of one member of a group that has the scratchpad to itself, but for weights that stay."""
        space = self.anywhere(layer, plan, group, resident)
        if self.rules.latency != "clock":
            return space
        return replace(space, site=LoopSite.of(self.graph, group, plan, layer, self.rules.target))

    def anywhere(
        self, layer: TensorCoreLayer, plan: dict[str, Member], group: FusionGroup, resident: bool
    ) -> LayerSpace:
        """The same, whatever the loop units can run there: what floors are for."""
        placement = placement_of(self.graph, group, plan, layer)._replace(weights_are_resident=resident)
        return LayerSpace(shape_of(layer), plan[layer.name].computed, self.rules, placement)

    def host_cost(self, group: FusionGroup, plan: dict[str, Member]) -> tuple[float, float]:
        """Energy and latency of the members that the array does not run."""
        energy = latency = 0.0
        rules = self.rules
        for name in group.layers:
            layer = self.graph.by_name[name]
            if not isinstance(layer, TensorCoreLayer):
                run = self.graph, group, plan, layer, rules.target, rules.profile
                cost = host_cost(*run)
                energy += cost.energy_pj
                if rules.latency == "clock" and not obstacle_to_rows(self.graph, layer, rules.target):
                    cost = min(cost, host_cost(*run, copied=True), key=lambda cost: cost.latency_cycles)
                latency += cost.latency_cycles
        return energy, latency

    def floor(self, space: LayerSpace) -> tuple[float, float]:
        """Cost with a scratchpad that holds everything: no mapping of the space is cheaper."""
        space = replace(space, site=None)
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
        for _, space in self._resident_spaces(group, plan, is_paper=is_paper):
            floor = self.floor(space)
            energy, latency = energy + floor[0], latency + floor[1]
        return energy, latency

    def walks(self, layers: tuple[str, ...], tiles: Iterable[GroupTile]) -> Walks:
        """What group tiles make members compute (most tiles need no plan).

        Raises:
            ScheduleError: the layers cannot be executed as one group.
        """
        planner = self.planner(layers)
        able, along = [], []
        for tile in tiles:
            try:
                along.append(planner.axes(tile))
                able.append(FusionGroup(layers, tile))
            except ScheduleError:
                continue
        # Groups and channels share no weights: tiles of them change neither the products nor how often
        # weights are used.
        pixels = [axes[2:] for axes in along]
        return Walks(
            able,
            {name: _products(pixels, name, lambda axis: axis.total) for name in layers},
            {name: _products(pixels, name, _many) for name in layers},
            {name: _products([axes[1:2] for axes in along], name, _many) for name in layers},
            {name: _products(along, name, lambda axis: max(extents(axis.computed))) for name in layers},
        )

    def tile_floors(
        self, walks: Walks, layers: tuple[str, ...], resident_tensors: frozenset[str]
    ) -> TileFloors:
        """Costs that no way to run these tiles is below."""
        try:
            least = self.least(layers, resident_tensors)
        except ScheduleError:
            return TileFloors.unknown(walks.tiles)
        whole = GroupTile(*self.planner(layers).size)
        group = FusionGroup(layers, whole, resident_tensors=resident_tensors)
        host = self.host_cost(group, least)
        energy, latency = (np.full(len(walks.tiles), cost) for cost in host)
        for name, space in self._resident_spaces(group, least):
            work = walks.pixels[name], walks.times[name], walks.parts[name]
            floors = [self._ideal_costs(part, *work) for part in space.by_lanes()]
            energy += np.minimum.reduce([e for e, _ in floors])
            latency += np.minimum.reduce([lat for _, lat in floors])
        return TileFloors(walks.tiles, energy, latency, self._boxes(walks, group))

    def _ideal_costs(self, space: LayerSpace, pixels: Ints, runs: Ints, parts: Ints) -> tuple[Floats, Floats]:
        """`ideal_costs`, which groups that differ in other members have alike."""
        if space.shape.is_depthwise:
            parts = np.ones_like(parts)
        key = space, np.stack((pixels, runs, parts)).tobytes()
        if key not in self._tile_floors:
            self._tile_floors[key] = ideal_costs(space, pixels, runs, parts)
        return self._tile_floors[key]

    def _boxes(self, walks: Walks, whole: FusionGroup) -> Floats:
        """Tile-buffer bytes [T] that fused tensors need at least, from what one tile of everything needs."""
        rules, found = self.rules, np.zeros(len(walks.tiles))
        if rules.counting.has_tile_buffer:
            for name, member in self.plan(whole).items():
                if member.writes_inside and not member.in_place:
                    every = math.prod(max(extents(axis)) for axis in member.computed)
                    found += box_bytes(self.graph, member, rules.target) * walks.boxes[name] // every
        return found

    def _resident_spaces(
        self, group: FusionGroup, plan: dict[str, Member], *, is_paper: bool = False
    ) -> Iterator[tuple[str, LayerSpace]]:
        """Spaces of every member with resident weights."""
        for name in group.layers:
            layer = self.graph.by_name[name]
            if not isinstance(layer, TensorCoreLayer):
                continue
            space = self.anywhere(layer, plan, group, True)
            if is_paper:
                placement = space.placement._replace(weights_are_resident=False, is_paper=True)
                space = replace(space, placement=placement)
            yield name, space


def _products(along: list[list[dict[str, Along]]], name: str, count: Callable[[Along], int]) -> Ints:
    """What a member counts along some axes of every group tile [T], multiplied."""
    found = np.ones(len(along), dtype=np.int64)
    for axis in zip(*along, strict=True):
        counts = {at: count(one[name]) for at, one in {id(one): one for one in axis}.items()}
        found *= np.array([counts[id(one)] for one in axis])
    return found


def _many(axis: Along) -> int:
    return len(axis.computed)
