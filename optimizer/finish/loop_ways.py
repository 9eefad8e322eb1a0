"""Ways to run the layers of a group on Gemmini's loop units, where they can be.

In its place in a group every mapping of a layer that a unit can run is priced, by the clock: the best of each
layer make a way.  Where one is left to single instructions, the layers may also run in several groups, in
other group tiles, with the weights of fewer members staying (a unit has places for two tiles).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fadiff.converter.ir.graph import HostLayer, TensorCoreLayer
from fadiff.costmodel.count.traffic import Placement
from fadiff.costmodel.group.fusion import Member, ScheduleError, plan_group
from fadiff.costmodel.group.issue import loop_settings, prefetching_layers
from fadiff.costmodel.group.loop_setting import LoopSetting, PinnedWeights
from fadiff.costmodel.group.pipeline import obstacle_to_pipeline, places
from fadiff.costmodel.group.placement import placement_of
from fadiff.costmodel.group.tile_buffer import box_bytes
from fadiff.costmodel.mapping.columns import MappingColumns
from fadiff.costmodel.mapping.decision import Decision
from fadiff.costmodel.mapping.mapping import LOOPS, Issue, ceil_div
from fadiff.costmodel.mapping.mapping import Mapping as LayerMapping
from fadiff.costmodel.mapping.shape import shape_of
from fadiff.costmodel.schedule.batch import clock_columns
from fadiff.costmodel.schedule.clock import quickest_additions
from fadiff.costmodel.schedule.evaluate import host_cost
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule
from fadiff.optimizer.finish.convolution_tiles import convolution_mappings
from fadiff.optimizer.finish.loop_options import LayerOptions, Priced, Prices, issued, units
from fadiff.optimizer.finish.product_tiles import product_mappings
from fadiff.optimizer.finish.replacements import Replacement
from fadiff.optimizer.group.tiles import groups_per_tile, last_output
from fadiff.optimizer.layer.loop_space import pins
from fadiff.optimizer.layer.row_tiles import row_mappings


class _Priced(NamedTuple):
    """A way to run some layers of a group, and what it is worth."""

    worth: float
    groups: tuple[FusionGroup, ...]
    mappings: dict[str, LayerMapping]


@dataclass(frozen=True)
class _Open:
    """A group whose members have options."""

    group: FusionGroup
    options: Mapping[str, LayerOptions]
    rest: NDArray[np.float64]
    """What members that are not on the array cost."""

    @property
    def by_core(self) -> bool:
        """Whether there is a member that no loop unit can run."""
        return not all(found.on_loops for found in self.options.values())

    def best(self, prices: Prices) -> _Priced:
        """Every member as is cheapest."""
        worth, mappings = float(self.rest @ np.array(prices)), {}
        for name, options in self.options.items():
            own, mappings[name] = options.best(prices)
            worth += own
        return _Priced(worth, (self.group,), mappings)


@dataclass
class LoopWays:
    """Ways to run the groups of one schedule (profile hw); remembers what it has priced."""

    schedule: Schedule
    _candidates: dict[object, tuple[LayerMapping, ...]] = field(default_factory=dict)
    _on_units: dict[object, tuple[Priced, ...]] = field(default_factory=dict)
    _options: dict[object, LayerOptions] = field(default_factory=dict)
    _opened: dict[object, tuple[_Open, ...]] = field(default_factory=dict)

    def best(self, group: FusionGroup, prices: Prices) -> Replacement:
        """The best way to run the layers of a group at these prices."""
        (as_is,) = self._open_all(group, [group])
        best = as_is.best(prices)
        early = prefetching_layers(self.schedule)
        if as_is.by_core and early.isdisjoint(group.layers) and not group.prefetch_during:
            found = [way for way in self._cut(group, prices) if way.worth < best.worth]
            best = min(found, key=lambda way: way.worth, default=best)
        return Replacement.of(self.schedule, best.groups, best.mappings)

    def of(self, run: FusionGroup, prices: Prices) -> Replacement | None:
        """The best way to run layers as one group, all on loop units; None if they cannot be."""
        found = [way.best(prices) for way in self._open(run, as_is=False)]
        best = min(found, key=lambda way: way.worth, default=None)
        return best and Replacement.of(self.schedule, best.groups, best.mappings)

    def _cut(self, group: FusionGroup, prices: Prices) -> Iterator[_Priced]:
        """The cheapest ways to cut the layers of a group into groups and to run these."""
        best: list[_Priced | None] = [_Priced(0, (), {})]
        for end in range(1, len(group.layers) + 1):
            found = []
            for start, before in enumerate(best):
                ways = (way.best(prices) for way in self._segment(group, start, end))
                part = min(ways, key=lambda way: way.worth, default=None)
                if before is not None and part is not None:
                    worth, groups = before.worth + part.worth, before.groups + part.groups
                    found.append(_Priced(worth, groups, before.mappings | part.mappings))
            best.append(min(found, key=lambda way: way.worth, default=None))
        if best[-1] is not None:
            yield best[-1]

    def _segment(self, group: FusionGroup, start: int, end: int) -> tuple[_Open, ...]:
        """Ways to run some neighbouring layers of a group together."""
        layers = group.layers[start:end]
        key = layers, group.resident_tensors
        if key not in self._opened:
            self._opened[key] = self._open_all(group, list(self._runs(group, layers)))
        return self._opened[key]

    def _runs(self, group: FusionGroup, layers: tuple[str, ...]) -> Iterator[FusionGroup]:
        graph = self.schedule.graph
        if len(layers) == 1:
            yield FusionGroup(layers, resident_tensors=group.resident_tensors)
            return
        size = last_output(graph, layers)
        if size is None:
            return
        pools = any(graph.by_name[name].op == "max_pool" for name in layers)
        n, p, q = size
        tiles = [GroupTile(n, p, q)]
        tiles += [
            GroupTile(1, h, w, groups)
            for groups in groups_per_tile(graph, layers)
            for w in (shares(q) if pools else [q])
            for h in ([p] if groups else []) + shares(p)
        ]
        if group.layers == layers and group.tile is not None:
            tiles.append(group.tile)
        on_array = [name for name in layers if isinstance(graph.by_name[name], TensorCoreLayer)]
        for tile in dict.fromkeys(tiles):
            staying = [*combinations(on_array, 1), *combinations(on_array, 2)] if tile != tiles[0] else []
            for names in ((), *staying):
                yield FusionGroup(
                    layers,
                    tile,
                    resident_weights=frozenset(names),
                    resident_tensors=group.resident_tensors,
                )

    def _open_all(self, group: FusionGroup, runs: list[FusionGroup]) -> tuple[_Open, ...]:
        return tuple(way for run in runs for way in self._open(run, as_is=run is group))

    def _open(self, group: FusionGroup, *, as_is: bool) -> Iterator[_Open]:
        """A group with what its members may be; nothing if it cannot be run, or not without the core."""
        schedule, graph = self.schedule, self.schedule.graph
        trial = Decision(graph, schedule.target, schedule.mappings, (group,))
        try:
            plan = plan_group(graph, group)
            if group.pipelined and obstacle_to_pipeline(graph, group, plan):
                return
            settings = loop_settings(trial, group, plan, prefetching_layers(schedule))
        except ScheduleError:
            return
        if not as_is and not self._fits(group, plan):
            return
        for pinned in [None] if as_is else list(_pins(settings)):
            options = {}
            for setting in settings:
                placed = replace(setting, pinned=pinned)
                options[setting.layer.name] = self._options_of(placed, group, plan, as_is=as_is)
            if not as_is and not all(found.on_loops for found in options.values()):
                continue
            yield _Open(group, options, self._rest(group, plan))

    def _fits(self, group: FusionGroup, plan: dict[str, Member]) -> bool:
        """Whether the tile buffer has room, as far as bytes tell."""
        graph, target = self.schedule.graph, self.schedule.target
        count = places(graph, group, plan)
        boxes = sum(count[name] * box_bytes(graph, plan[name], target) for name in count)
        whole = sum(graph.tensors[name].nbytes for name in group.resident_tensors)
        return boxes + whole <= target.tile_buffer_bytes

    def _rest(self, group: FusionGroup, plan: dict[str, Member]) -> NDArray[np.float64]:
        graph, target = self.schedule.graph, self.schedule.target
        total = np.zeros(3)
        for name in group.layers:
            layer = graph.by_name[name]
            if isinstance(layer, HostLayer):
                cost = host_cost(graph, group, plan, layer, target, "hw", "clock")
                total += (cost.energy_pj, cost.latency_cycles, cost.total_bytes("dram"))
        return total

    def _options_of(
        self, setting: LoopSetting, group: FusionGroup, plan: dict[str, Member], *, as_is: bool
    ) -> LayerOptions:
        graph, layer = self.schedule.graph, setting.layer
        placement = placement_of(graph, group, plan, layer)
        by_core = replace(setting.mapping, issue="instructions")
        now = (by_core, *row_mappings(setting, by_core)) if as_is else ()
        strides = setting.input_strides, setting.output_strides
        stays = setting.pinned and (setting.pinned.rows, setting.pinned.tiles.get(layer.name))
        space = setting.space.room.is_resident, setting.space.room.reserved, setting.obstacle, stays
        key = shape_of(layer), layer.op, now, setting.region, placement, *strides, *space, len(plan) > 1
        if key not in self._options:
            on_loops = () if setting.obstacle else self._on_loops(setting, placement)
            priced = [*self._priced(setting, placement, now, "instructions"), *on_loops]
            self._options[key] = LayerOptions(setting, tuple(priced), as_is=as_is)
        return self._options[key]

    def _on_loops(self, setting: LoopSetting, placement: Placement) -> tuple[Priced, ...]:
        """What loop units may run, priced wherever else it has room."""
        layer, now = setting.layer, replace(setting.mapping, issue="instructions")
        key = shape_of(layer), layer.op, setting.region, placement, now
        if key not in self._on_units:
            mappings = tuple(dict.fromkeys((now, *self._candidates_of(setting))))
            found = [self._priced(setting, placement, mappings, unit) for unit in units(layer)]
            self._on_units[key] = tuple(chain.from_iterable(zip(*found, strict=True)))
        return self._on_units[key]

    def _priced(
        self, setting: LoopSetting, placement: Placement, mappings: tuple[LayerMapping, ...], issue: Issue
    ) -> list[Priced]:
        if not mappings:
            return []
        columns = MappingColumns.folded(mappings, issue)
        weights = self.schedule.graph.weight_bytes
        costs = clock_columns(
            shape_of(setting.layer), columns, setting.target, setting.region, placement, weights
        )
        return [Priced(mapping, issue, cost) for mapping, cost in zip(mappings, costs, strict=True)]

    def _candidates_of(self, setting: LoopSetting) -> tuple[LayerMapping, ...]:
        """Mappings for its region, whatever else is in the scratchpad."""
        layer = setting.layer
        key = shape_of(layer), layer.op, setting.region
        if key not in self._candidates:
            found = (*product_mappings(setting), *convolution_mappings(setting))
            self._candidates[key] = tuple(dict.fromkeys(found))
        return self._candidates[key]


def shares(extent: int) -> list[int]:
    """The half of an extent, a quarter, an eighth, a sixteenth."""
    return [size for parts in (2, 4, 8, 16) if (size := ceil_div(extent, parts)) < extent]


def _pins(settings: list[LoopSetting]) -> Iterator[PinnedWeights | None]:
    """What of a group's weights may stay: one tile of each member that keeps them, or two of a single one."""
    residents = [setting for setting in settings if setting.space.room.is_resident]
    if not residents:
        yield None
        return
    yield from pins({s.layer.name: (s.layer, s.bounds) for s in residents}, residents[0].target.side)


def shortest(schedule: Schedule) -> Schedule:
    """`schedule` with a call of gemmini.h for each layer on a loop unit whose tiles it would walk alike, and
    for additions."""
    mappings = dict(schedule.mappings)
    for group in schedule.groups:
        plan = plan_group(schedule.graph, group)
        for setting in loop_settings(schedule, group, plan, prefetching_layers(schedule)):
            if setting.mapping.issue in LOOPS:
                mappings[setting.layer.name] = next(issued(setting, setting.mapping))
    return replace(schedule, mappings=mappings, additions=quickest_additions(schedule))
