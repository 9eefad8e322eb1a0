"""Group tiles in a pipeline where the clock finds that this pays, in a finished schedule.

Neighbouring groups in which the core computes what Gemmini has made, or makes more of, may run as one group
in tiles along one axis, one ahead of the other (`fadiff.costmodel.group.pipeline`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.group.group_tile import shared_channels
from fadiff.costmodel.group.loop_setting import PLACES
from fadiff.costmodel.group.resident_tensors import resident_tensors, with_resident_tensors
from fadiff.costmodel.group.row_operators import runs_on_core
from fadiff.costmodel.mapping.mapping import ceil_div
from fadiff.costmodel.schedule.clock import quickest_additions
from fadiff.costmodel.schedule.evaluate import NetworkCost, evaluate, group_cost
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule
from fadiff.optimizer.cut.partition import value
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.cut.settings import Settings
from fadiff.optimizer.group.hull import Way
from fadiff.optimizer.group.residency import with_places
from fadiff.optimizer.group.tiles import groups_per_tile, last_output

LEAST_GAIN = 0.001
"""Of the objective, by every pipeline: less would not be worth the longer program."""
MOST_GROUPS = 3
"""That become one group."""
MOST_PARTS = 16
"""Group tiles of channels."""


@dataclass(frozen=True)
class _Found:
    """A way to run neighbouring groups as one, and the value of the network's objective with it."""

    worth: float
    way: Way


def with_pipelines(schedule: Schedule, settings: Settings, most_bytes: int | None = None) -> Schedule:
    """`schedule` (profile hw) with the pipelines that lower its objective.

    Args:
        schedule: What a search found.
        settings: Of that search.
        most_bytes: DRAM bytes that the schedule may move, if there is a limit.
    """
    if settings.objective == "energy":  # pipelines hide cycles
        return schedule
    found = sorted(_Search(schedule, settings).all(), key=lambda one: one.worth)
    cost, taken = evaluate(schedule), set[str]()
    for one in found:
        if not taken.isdisjoint(one.way.group.layers):
            continue
        try:
            changed = _changed(schedule, one.way)
        except ScheduleError:  # no places in the tile buffer
            continue
        then = evaluate(changed)
        if most_bytes is not None and then.dram_bytes > max(most_bytes, cost.dram_bytes):
            continue
        if _worth(settings, then) < (1 - LEAST_GAIN) * _worth(settings, cost):
            schedule, cost = changed, then
            taken |= set(one.way.group.layers)
    return schedule


def _worth(settings: Settings, cost: NetworkCost) -> float:
    return value(settings.objective, cost.energy_pj, cost.latency_cycles)


def _changed(schedule: Schedule, way: Way) -> Schedule:
    """The schedule that runs neighbouring groups in this way, the same tensors on chip.

    Raises:
        ScheduleError: it does not fit in.
    """
    graph, layers = schedule.graph, set(way.group.layers)
    first = next(at for at, group in enumerate(schedule.groups) if layers.intersection(group.layers))
    rest = [group for group in schedule.groups if layers.isdisjoint(group.layers)]
    groups = (*rest[:first], way.group, *rest[first:])
    groups = with_resident_tensors(graph, groups, resident_tensors(schedule.groups))
    changed = replace(
        schedule,
        groups=with_places(graph, groups, schedule.target),
        mappings={**schedule.mappings, **way.mappings()},
    )
    return replace(changed, additions=quickest_additions(changed))


class _Search:
    """All that may be pipelined in one schedule."""

    def __init__(self, schedule: Schedule, settings: Settings) -> None:
        self.schedule, self.graph, self.settings = schedule, schedule.graph, settings
        self.solver = Problem.of(settings, schedule.graph, schedule.target).groups
        self.cost = evaluate(schedule)
        self.staying = resident_tensors(schedule.groups)

    def all(self) -> Iterator[_Found]:
        """The best way for every run of groups that gains by one."""
        most = (1 - LEAST_GAIN) * _worth(self.settings, self.cost)
        for first, end in self._segments():
            best = min(self._found(first, end), key=lambda one: one.worth, default=None)
            if best is not None and best.worth < most:
                yield best

    def _segments(self) -> Iterator[tuple[int, int]]:
        """Neighbouring groups in which enough work of the core could hide enough of Gemmini's."""
        groups = self.schedule.groups
        for first in range(len(groups)):
            for end in range(first + 1, min(first + MOST_GROUPS, len(groups)) + 1):
                cycles = [0, 0]
                for name in (name for group in groups[first:end] for name in group.layers):
                    on_core = runs_on_core(self.graph.by_name[name])
                    cycles[on_core] += self.cost.by_name[name].latency_cycles
                if min(cycles) >= LEAST_GAIN * self.cost.latency_cycles:
                    yield first, end

    def _found(self, first: int, end: int) -> Iterator[_Found]:
        """Every way to run neighbouring groups in a pipeline."""
        groups = self.schedule.groups
        names = [name for group in groups[first:end] for name in group.layers]
        layers = tuple(sorted(names, key=self.graph.index.__getitem__))
        before = [self.cost.by_name[name] for name in layers]
        energy = self.cost.energy_pj - sum(cost.energy_pj for cost in before)
        cycles = self.cost.latency_cycles - sum(cost.latency_cycles for cost in before)
        placed = (*groups[:first], FusionGroup(layers), *groups[end:])
        staying = with_resident_tensors(self.graph, placed, self.staying)[first].resident_tensors
        for run in self._runs(layers):
            for way in self.solver.pipelined_ways(replace(run, resident_tensors=staying)):
                costs = group_cost(self.graph, way.group, way.mappings(), self.schedule.target)
                then = sum(c.energy_pj for c in costs), sum(c.latency_cycles for c in costs)
                yield _Found(value(self.settings.objective, energy + then[0], cycles + then[1]), way)

    def _runs(self, layers: tuple[str, ...]) -> Iterator[FusionGroup]:
        """The layers as one group, in tiles along one axis."""
        size = last_output(self.graph, layers) if len(layers) > 1 else None
        if size is None:
            return
        n, p, q = size
        for some in groups_per_tile(self.graph, layers):
            if some is not None:
                yield FusionGroup(layers, GroupTile(n, p, q, some), pipelined=True)
        channels, side = shared_channels(self.graph, layers), self.schedule.target.side
        for parts in range(2, MOST_PARTS + 1):
            if channels % (parts * side) == 0:  # every weight is of one tile
                yield FusionGroup(layers, GroupTile(n, p, q, K=channels // parts), pipelined=True)
        tiles = [GroupTile(1, p, q)] if n > 1 else []
        tiles += [GroupTile(n, h, q) for h in shares(p)] or [GroupTile(n, p, w) for w in shares(q)]
        weights = frozenset(
            name
            for name in layers
            if isinstance(layer := self.graph.by_name[name], TensorCoreLayer)
            and self.graph.tensors[layer.weight.tensor].data is not None
        )
        if len(weights) <= PLACES:  # else they would be fetched for every tile
            for tile in tiles:
                yield FusionGroup(layers, tile, resident_weights=weights, pipelined=True)


def shares(extent: int) -> list[int]:
    """The half of an extent, a quarter, an eighth, a sixteenth."""
    return [size for parts in (2, 4, 8, 16) if (size := ceil_div(extent, parts)) < extent]
