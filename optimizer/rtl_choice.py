"""Among schedules that roofline latency finds nearly equal, the one that the `rtl` model finds fastest.

Roofline latency counts bytes, not requests: a weight tile 16 channels wide costs it what one of 64 does,
and the DMA twice as much.  Here every group of a finished schedule is searched again under `rtl` latency,
at its tile, and changes over where that gains, best gain per objective lost first, as long as all changes
together cost at most `SLACK` of the objective that was searched for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from costmodel.evaluate import evaluate
from costmodel.fusion import ScheduleError
from costmodel.schedule import FusionGroup, Schedule
from optimizer.candidates import Tiling
from optimizer.partition import Objective
from optimizer.problem import Problem, value
from optimizer.result import SearchResult
from optimizer.space import Rules
from optimizer.traffic_limit import dram_bytes
from optimizer.ways import Way, with_ways

SLACK = 0.001
"""Share of the objective that may be lost."""


def fastest_of_equals(
    result: SearchResult,
    most_bytes: int | None = None,
    *,
    objective: Objective = "edp",
    tiling: Tiling = "ragged",
    row_packing: bool = True,
    slack: float = SLACK,
) -> SearchResult:
    """`result`, or a schedule of the same groups that is nearly as good under roofline and better under rtl.

    Args:
        result: What a search under roofline latency found (profile hw).
        most_bytes: DRAM bytes that the schedule may move, if there is a limit.
        objective, tiling, row_packing: As in the search.
        slack: Share of the objective that all changes together may cost.
    """
    schedule = result.schedule
    rules = Rules(schedule.target, tiling=tiling, row_packing=row_packing, latency="rtl")
    problem = Problem(schedule.graph, rules, objective)
    units = [list(_ways(group, schedule, problem)) for group in schedule.groups]
    try:
        changed = with_ways(schedule, _choose(units, objective, slack, most_bytes))
    except ScheduleError:  # tensors that stay from group to group leave too little room
        return result
    chosen = replace(result, schedule=changed, cost=evaluate(changed))
    # Priced again: where places in the tile buffer fragment, `with_ways` takes tensors off the chip.
    in_limit = most_bytes is None or dram_bytes(chosen.cost) <= most_bytes
    return chosen if in_limit and chosen.value <= result.value * (1 + slack) else result


def _ways(group: FusionGroup, schedule: Schedule, problem: Problem) -> Iterator[Way]:
    yield Way.as_is(schedule, group)
    for choice in problem.same_group(group).choices:
        yield Way.of(schedule, [choice.group], choice.mappings())


def _choose(
    units: Sequence[Sequence[Way]], objective: Objective, slack: float, most_bytes: int | None
) -> list[Way]:
    """One way per group."""
    chosen = [ways[0] for ways in units]
    energy = sum(way.energy for way in chosen)
    roofline, rtl = sum(way.roofline for way in chosen), sum(way.rtl for way in chosen)
    moved = sum(way.bytes for way in chosen)
    limit = value(objective, energy, roofline) * (1 + slack)
    while True:
        best: tuple[float, int, Way] | None = None
        now = value(objective, energy, roofline)
        fast = value(objective, energy, rtl)
        for unit, (old, ways) in enumerate(zip(chosen, units, strict=True)):
            for way in ways[1:]:
                joules = energy - old.energy + way.energy
                lost = value(objective, joules, roofline - old.roofline + way.roofline) - now
                gained = fast - value(objective, joules, rtl - old.rtl + way.rtl)
                if gained <= 1e-9 * fast or now + lost > limit:
                    continue
                if most_bytes is not None and moved - old.bytes + way.bytes > most_bytes:
                    continue
                worth = gained / max(lost, 1e-9 * now)
                if best is None or worth > best[0]:
                    best = worth, unit, way
        if best is None:
            return chosen
        _, unit, way = best
        old, chosen[unit] = chosen[unit], way
        energy += way.energy - old.energy
        roofline += way.roofline - old.roofline
        rtl += way.rtl - old.rtl
        moved += way.bytes - old.bytes
