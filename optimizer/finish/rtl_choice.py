"""Among schedules that roofline latency finds nearly equal, the one that the `rtl` model finds fastest.

Roofline latency counts bytes, not requests: a weight tile 16 channels wide costs it what one of 64 does,
and the DMA twice as much.  Here every group of a finished schedule is searched again under `rtl` latency,
at its tile, and changes over where that gains, best gain per objective lost first, as long as all changes
together cost at most `SLACK` of the objective that was searched for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from costmodel.group.fusion import ScheduleError
from costmodel.schedule.evaluate import evaluate
from costmodel.schedule.schedule import FusionGroup, Schedule
from optimizer.cut.partition import Objective
from optimizer.cut.problem import Problem, value
from optimizer.cut.result import SearchResult
from optimizer.finish.replacements import Costs, Replacement, choose, with_replacements
from optimizer.finish.traffic_limit import dram_bytes

SLACK = 0.001
"""Share of the objective that may be lost."""


def fastest_of_equals(
    result: SearchResult, most_bytes: int | None = None, *, slack: float = SLACK
) -> SearchResult:
    """`result`, or a schedule of the same groups that is nearly as good under roofline and better under rtl.

    Args:
        result: What a search under roofline latency found (profile hw).
        most_bytes: DRAM bytes that the schedule may move, if there is a limit.
        slack: Share of the objective that all changes together may cost.
    """
    schedule, settings = result.schedule, replace(result.settings, latency="rtl", time_budget=None)
    problem = Problem.of(settings, schedule.graph, schedule.target)
    units = [list(_replacements(group, schedule, problem)) for group in schedule.groups]
    try:
        changed = with_replacements(schedule, _choose(units, settings.objective, slack, most_bytes))
    except ScheduleError:  # tensors that stay from group to group leave too little room
        return result
    chosen = replace(result, schedule=changed, cost=evaluate(changed))
    # Priced again: where places in the tile buffer fragment, `with_replacements` takes tensors off the chip.
    in_limit = most_bytes is None or dram_bytes(chosen.cost) <= most_bytes
    return chosen if in_limit and chosen.value <= result.value * (1 + slack) else result


def _replacements(group: FusionGroup, schedule: Schedule, problem: Problem) -> Iterator[Replacement]:
    yield Replacement.as_is(schedule, group)
    for way in problem.same_group(group).ways:
        yield Replacement.of(schedule, [way.group], way.mappings())


def _choose(
    units: Sequence[Sequence[Replacement]], objective: Objective, slack: float, most_bytes: int | None
) -> list[Replacement]:
    """One way per group; greedy, by the objective under rtl gained per objective lost."""
    unchanged = [replacements[0] for replacements in units]
    energy, latency = (
        sum(replacement.energy for replacement in unchanged),
        sum(replacement.roofline for replacement in unchanged),
    )
    limit = value(objective, energy, latency) * (1 + slack)

    def score(now: Costs, then: Costs) -> NDArray[np.float64]:
        before, after = (value(objective, costs.energy, costs.roofline) for costs in (now, then))
        slow, fast = (value(objective, costs.energy, costs.rtl) for costs in (now, then))
        may = (slow - fast > 1e-9 * slow) & (after <= limit)
        if most_bytes is not None:
            may &= then.bytes <= most_bytes
        return np.where(may, (fast - slow) / np.maximum(after - before, 1e-9 * before), np.inf)

    return choose(units, score)
