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
from fadiff.costmodel.group.issue import prefetching_layers
from fadiff.costmodel.group.loop_setting import PLACES
from fadiff.costmodel.group.resident_tensors import resident_tensors, with_resident_tensors
from fadiff.costmodel.group.row_operators import runs_on_core
from fadiff.costmodel.schedule.clock import quickest_additions
from fadiff.costmodel.schedule.evaluate import NetworkCost, evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule
from fadiff.optimizer.cut.partition import Objective
from fadiff.optimizer.cut.problem import value
from fadiff.optimizer.finish.loop_options import Prices
from fadiff.optimizer.finish.loop_ways import LoopWays, shares
from fadiff.optimizer.finish.replacements import Replacement, with_replacements
from fadiff.optimizer.finish.traffic_limit import dram_bytes
from fadiff.optimizer.group.tiles import groups_per_tile, last_output

LEAST_GAIN = 0.001
"""Of the objective, by every pipeline: less would not be worth the longer program."""
MOST_GROUPS = 3
"""That become one group."""


@dataclass(frozen=True)
class _Found:
    """A way to run neighbouring groups as one, and the value of the network's objective with it."""

    worth: float
    layers: tuple[str, ...]
    way: Replacement


def with_pipelines(schedule: Schedule, objective: Objective, most_bytes: int | None = None) -> Schedule:
    """`schedule` (profile hw) with the pipelines that lower its objective under the clock.

    Args:
        schedule: Whose layers are issued as they are to be (`fadiff.optimizer.finish.issue`).
        objective: What counts.
        most_bytes: DRAM bytes that the schedule may move, if there is a limit.
    """
    if objective == "energy":  # pipelines hide cycles
        return schedule
    found = sorted(_Search(schedule, objective).all(), key=lambda one: one.worth)
    cost, taken = evaluate(schedule, "clock"), set[str]()
    for one in found:
        if not taken.isdisjoint(one.layers):
            continue
        try:
            changed = _changed(schedule, one)
        except ScheduleError:  # no places in the tile buffer
            continue
        then = evaluate(changed, "clock")
        if most_bytes is not None and dram_bytes(then) > max(most_bytes, dram_bytes(cost)):
            continue
        if _worth(objective, then) < (1 - LEAST_GAIN) * _worth(objective, cost):
            schedule, cost = changed, then
            taken |= set(one.layers)
    return schedule


def _worth(objective: Objective, cost: NetworkCost) -> float:
    return value(objective, cost.energy_pj, cost.latency_cycles)


def _changed(schedule: Schedule, one: _Found) -> Schedule:
    """Raises ScheduleError where it does not fit in."""
    ways, inside = [], set(one.layers)
    for group in schedule.groups:
        if inside.isdisjoint(group.layers):
            ways.append(Replacement.as_is(schedule, group))
        elif one.way not in ways:
            ways.append(one.way)
    changed = with_replacements(schedule, ways)
    return replace(changed, additions=quickest_additions(changed))


class _Search:
    """All that may be pipelined in one schedule."""

    def __init__(self, schedule: Schedule, objective: Objective) -> None:
        self.schedule, self.graph, self.objective = schedule, schedule.graph, objective
        self.ways, self.cost = LoopWays(schedule), evaluate(schedule, "clock")
        self.prices = Prices.of(objective, self.cost.energy_pj, self.cost.latency_cycles)
        self.early = prefetching_layers(schedule)
        self.staying = resident_tensors(schedule.groups)

    def all(self) -> Iterator[_Found]:
        """The best way for every run of groups that gains by one."""
        most = (1 - LEAST_GAIN) * _worth(self.objective, self.cost)
        for first, end in self._segments():
            best = min(self._found(first, end), key=lambda one: one.worth, default=None)
            if best is not None and best.worth < most:
                yield best

    def _segments(self) -> Iterator[tuple[int, int]]:
        """Neighbouring groups in which enough work of the core could hide enough of Gemmini's."""
        groups = self.schedule.groups
        for first in range(len(groups)):
            for end in range(first + 1, min(first + MOST_GROUPS, len(groups)) + 1):
                names = [name for group in groups[first:end] for name in group.layers]
                if not self.early.isdisjoint(names):
                    break
                cycles = [0, 0]
                for name in names:
                    on_core = runs_on_core(self.graph.by_name[name])
                    cycles[on_core] += self.cost.by_name[name].latency_cycles
                if min(cycles) >= LEAST_GAIN * self.cost.latency_cycles:
                    yield first, end

    def _found(self, first: int, end: int) -> Iterator[_Found]:
        """Every way to run neighbouring groups in a pipeline."""
        groups = self.schedule.groups
        names = [name for group in groups[first:end] for name in group.layers]
        layers = tuple(sorted(names, key=self.graph.index.__getitem__))
        runs = list(self._runs(layers))
        if not runs:
            return
        before = [self.cost.by_name[name] for name in layers]
        energy = self.cost.energy_pj - sum(cost.energy_pj for cost in before)
        cycles = self.cost.latency_cycles - sum(cost.latency_cycles for cost in before)
        placed = (*groups[:first], FusionGroup(layers), *groups[end:])
        staying = with_resident_tensors(self.graph, placed, self.staying)[first].resident_tensors
        for run in runs:
            way = self.ways.of(replace(run, resident_tensors=staying), self.prices)
            if way is not None:
                worth = value(self.objective, energy + way.energy, cycles + way.clock)
                yield _Found(worth, layers, way)

    def _runs(self, layers: tuple[str, ...]) -> Iterator[FusionGroup]:
        """The layers as one group, in tiles along one axis."""
        size = last_output(self.graph, layers) if len(layers) > 1 else None
        if size is None:
            return
        n, p, q = size
        for some in groups_per_tile(self.graph, layers):
            if some is not None:
                yield FusionGroup(layers, GroupTile(n, p, q, some), pipelined=True)
        channels = shared_channels(self.graph, layers)
        for some in shares(channels):
            if channels % some == 0 == some % self.schedule.target.side:  # every weight is of one tile
                yield FusionGroup(layers, GroupTile(n, p, q, K=some), pipelined=True)
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
