"""Prefetching for a finished schedule: groups whose first weights load while the group before computes.

Group after group, every layer of the group before is tried as the one while which they load.  Where the
rows are taken, the members of either group are mapped again with as many rows less.  What lowers the
objective is kept if at least half of the loads fit in the time that the layer leaves the DMA idle.  That
is judged apart from the objective, since the roofline lets DRAM and tile buffer overlap and knows no
requests.  Where nothing is mapped again only latency changes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.costmodel.group.fusion import ScheduleError, plan_group
from fadiff.costmodel.group.scratchpad import MemberSpace, member_spaces
from fadiff.costmodel.group.weight_prefetch import NoRoomError, early_loads, first_loads, load_requests
from fadiff.costmodel.latency.clock_work import NONE_EARLY
from fadiff.costmodel.latency.roofline import bandwidths
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.schedule.evaluate import group_cost
from fadiff.costmodel.schedule.schedule import FusionGroup, Schedule
from fadiff.optimizer.cut.exact import CERTIFIED_FRONTS, exact, relaxed_bound
from fadiff.optimizer.cut.problem import Problem, Progress, value
from fadiff.optimizer.cut.result import SearchResult
from fadiff.optimizer.finish.traffic_limit import dram_bytes

HIDDEN = 0.5
"""Share of the loads that must fit in the time in which the DMA would be idle."""
LEAST_SECONDS = 5.0
REQUEST_CYCLES = 4
"""Least cycles of a DMA request of at most 64 bytes of one row, as the functional model estimates them."""


def prefetching(schedule: Schedule, problem: Problem, most_bytes: int | None = None) -> Schedule:
    """`schedule` with the prefetches that lower the objective of `problem`; itself if none does.

    Args:
        schedule: What a search found (fusion model sound).
        problem: Of the same graph and rules.
        most_bytes: DRAM bytes that the schedule may move, if there is a limit.
    """
    search = _Search(schedule, problem, most_bytes)
    for at in range(1, len(schedule.groups)):
        if problem.out_of_time():
            break
        search.improve(at)
    return search.schedule


def with_prefetches(
    result: SearchResult, most_bytes: int | None = None, *, progress: Progress | None = None
) -> SearchResult:
    """`result` with the prefetches that lower its objective, and a bound that holds for those, too.

    Each of the two takes at most as long as the search did (or `LEAST_SECONDS`).

    Args:
        result: What a search found (fusion model sound).
        most_bytes: DRAM bytes that the schedule may move, if there is a limit.
        progress: Called with a line of text now and then.
    """
    schedule = result.schedule
    settings = replace(result.settings, time_budget=max(result.seconds, LEAST_SECONDS))
    problem = Problem.of(settings, schedule.graph, schedule.target, progress)
    found = prefetching(schedule, problem, most_bytes)
    bound = prefetch_bound(replace(problem, started=time.monotonic(), history=[])) * problem.unit
    return replace(
        result,
        schedule=found,
        cost=problem.cost(found),
        lower_bound=bound,
        bound="relaxed",
        seconds=result.seconds + problem.seconds,
    )


def prefetch_bound(problem: Problem) -> float:
    """A lower bound, in pJ and cycles, for schedules that may prefetch: first weights come at no time.

    The search of `exact` on such costs, for as long as the time budget lasts: never above the best schedule
    with prefetches, but below it by what they cannot hide.
    """
    free = replace(problem, rules=replace(problem.rules, prefetch=True), history=[])
    if problem.rules.latency != "roofline":
        return relaxed_bound(free)
    return exact(free, most_fronts=CERTIFIED_FRONTS).lower_bound


class _Search:
    """A schedule that gets better group by group."""

    def __init__(self, schedule: Schedule, problem: Problem, most_bytes: int | None) -> None:
        self.schedule, self.problem, self.most_bytes = schedule, problem, most_bytes
        self.graph = schedule.graph
        cost = problem.cost(schedule)
        self.energy, self.latency = cost.energy_pj, float(cost.latency_cycles)

    def improve(self, at: int) -> None:
        """Let group `at` load its first weights early, if that pays."""
        group, before = self.schedule.groups[at], self._before(at)
        first = self.graph.by_name[group.layers[0]]
        if before is None or not isinstance(first, TensorCoreLayer):
            return
        if self.graph.tensors[first.weight.tensor].data is None or not self._saves(group, first):
            return
        for during in before.layers:
            if isinstance(self.graph.by_name[during], TensorCoreLayer):
                wanted = replace(group, prefetch_during=during)
                try:
                    self._take(wanted, {})
                except NoRoomError:
                    for mappings in self._with_room(wanted, before):
                        with suppress(NoRoomError):
                            self._take(wanted, mappings)

    def _before(self, at: int) -> FusionGroup | None:
        """The last group before that uses the scratchpad."""
        for group in reversed(self.schedule.groups[:at]):
            if any(isinstance(self.graph.by_name[name], TensorCoreLayer) for name in group.layers):
                return group
        return None

    def _saves(self, group: FusionGroup, first: TensorCoreLayer) -> bool:
        """Whether the group would take less time if its first weights were there."""
        schedule, latency = self.schedule, self.problem.rules.latency
        early = early_loads(schedule)
        late = early.get(first.name, NONE_EARLY)
        run = (schedule.mappings, schedule.target, schedule.profile, latency)
        now, then = (
            sum(
                cost.latency_cycles for cost in group_cost(self.graph, group, *run, early={first.name: loads})
            )
            for loads in (late, late.plus(first_loads(schedule, first.name), -1))
        )
        return then < now

    def _changed(self, wanted: FusionGroup, mappings: dict[str, Mapping]) -> Schedule:
        """The schedule with `wanted` in place of the group of the same layers, and with `mappings`."""
        groups = tuple(wanted if g.layers == wanted.layers else g for g in self.schedule.groups)
        return replace(self.schedule, groups=groups, mappings={**self.schedule.mappings, **mappings})

    def _take(self, wanted: FusionGroup, mappings: dict[str, Mapping]) -> None:
        """Change the schedule if that is legal and better.

        Raises:
            NoRoomError: only scratchpad is missing.
        """
        try:
            changed = self._changed(wanted, mappings)
        except NoRoomError:
            raise
        except ScheduleError:
            return
        cost = self.problem.cost(changed)
        energy, latency = cost.energy_pj, float(cost.latency_cycles)
        if mappings and self.most_bytes is not None and dram_bytes(cost) > self.most_bytes:
            return
        objective = self.problem.objective
        if value(objective, energy, latency) >= value(objective, self.energy, self.latency):
            return
        if self._hides(wanted, mappings):
            self.schedule, self.energy, self.latency = changed, energy, latency

    def _hides(self, wanted: FusionGroup, mappings: dict[str, Mapping]) -> bool:
        """Whether the layer while which they load leaves the DMA enough time."""
        assert wanted.prefetch_during is not None
        late = self._changed(replace(wanted, prefetch_during=None), mappings)
        during = self.problem.cost(late).by_name[wanted.prefetch_during]
        early = early_loads(late).get(during.name, NONE_EARLY).nbytes
        rates = bandwidths(late.target, 1)
        moving = early / rates["dram"] + sum(
            move.bytes / rates[move.memory]
            for _, move in during.moves
            if move.memory in ("dram", "tile-buffer")
        )
        busy = max(moving, load_requests(late, during.name) * REQUEST_CYCLES)
        needed = first_loads(late, wanted.layers[0]).nbytes / rates["dram"]
        return bool(during.latency_cycles - busy >= HIDDEN * needed)

    def _with_room(self, wanted: FusionGroup, before: FusionGroup) -> Iterator[dict[str, Mapping]]:
        """Mappings that leave room: of the group before, of the group, of both."""
        later, earlier = self._spaces(wanted), self._spaces(before)
        needed = later[0].first_weights
        other = self._mapped_again(before, earlier, needed)
        if other is not None:
            yield other
        if not self.problem.rules.counting.in_rows:
            return
        taken = max(space.room.reserved + space.weights for space in earlier)
        lower = self._mapped_again(wanted, later, taken)
        if lower is not None:
            yield lower
            if other is not None:
                yield {**other, **lower}

    def _spaces(self, group: FusionGroup) -> list[MemberSpace]:
        return member_spaces(self.schedule, group, plan_group(self.graph, group))

    def _mapped_again(
        self, group: FusionGroup, spaces: list[MemberSpace], fewer: int
    ) -> dict[str, Mapping] | None:
        """The best mapping of every member that leaves `fewer` rows (dosa: bytes) more."""
        plan, groups = plan_group(self.graph, group), self.problem.groups
        mappings = {}
        for space in spaces:
            own = space.weights if space.room.is_resident else 0
            found = groups.cache.front(
                replace(
                    groups.spaces.space(space.layer, plan, group, space.room.is_resident),
                    reserved=space.room.reserved + own + fewer,
                    reserved_accumulator=space.room.reserved_accumulator,
                )
            )
            if not len(found):
                return None
            worth = found.energy * self.latency + found.latency * self.energy
            mappings[space.layer.name] = found.mappings[int(np.argmin(worth))]
        return mappings
