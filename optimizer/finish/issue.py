"""How the layers of a finished schedule are issued: one call of gemmini.h where it can be, else one
hardware loop per scratchpad tile, else single instructions, each of which keeps the core busy.

The clock decides, the model of the emitted program that knows how layers are issued: what lowers the
objective under it is done, as far as the DRAM bytes allow.  A layer may be mapped again, to tiles that suit a
loop unit; a group with layers that none can run may be run in other ways (`loop_ways.py`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.group.issue import prefetching_layers
from fadiff.costmodel.mapping.mapping import CALLS, LOOPS
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, Schedule
from fadiff.optimizer.baselines.gemmini_auto import automatic_schedule
from fadiff.optimizer.cut.partition import Objective
from fadiff.optimizer.cut.problem import value
from fadiff.optimizer.finish.loop_options import Prices
from fadiff.optimizer.finish.loop_ways import LoopWays, shortest
from fadiff.optimizer.finish.replacements import Costs, Replacement, choose, with_replacements
from fadiff.optimizer.finish.traffic_limit import DRAM_PRICES, dram_bytes
from fadiff.optimizer.finish.whole_groups import taken_apart

DRAM_PRICES_TRIED = (1.0, *DRAM_PRICES)
"""Until the ways that are best at one move as few bytes as they may."""
ROUNDS = 3
"""Of choosing for all groups at what energy, cycles and bytes are worth after the round before."""

SLOWER_THAN_AUTOMATIC = 1.02
"""Than gemmini.h's automatic tiles, at most, where that serves the objective (the clock errs by more)."""

WIDE_SIDE = 16
"""On wider arrays a product takes gemmini.h's tiles if they move the same bytes: on RTL ours are no quicker,
though the clock promises a tenth (docs/gemmini-h.md)."""


def with_issues(
    schedule: Schedule,
    most_bytes: int | None = None,
    objective: Objective = "edp",
    *,
    residency: bool = True,
) -> Schedule:
    """`schedule` (profile hw) with the issues, tiles and groups that lower its objective under the clock.

    Args:
        schedule: What a search found.
        most_bytes: DRAM bytes that the schedule may move, if there is a limit.
        objective: What counts.
        residency: Whether tensors may stay on chip from group to group.
    """
    schedule = taken_apart(schedule) if residency else schedule
    ways = LoopWays(schedule)
    units = [[Replacement.as_is(schedule, group)] for group in schedule.groups]
    chosen = [unit[0] for unit in units]
    aim = most_bytes
    for _ in range(ROUNDS):
        for price in DRAM_PRICES_TRIED:
            prices = _prices(schedule, chosen, objective, price)
            found = [ways.best(group, prices) for group in schedule.groups]
            for unit, way in zip(units, found, strict=True):
                unit += [way] if way not in unit else []
            if aim is None or sum(way.bytes for way in found) <= aim:
                break
        before, chosen = chosen, _choose(units, aim, objective)
        if chosen == before:
            break
    chosen = _with_automatic_tiles(schedule, chosen, aim, objective)
    while True:
        issued = with_replacements(schedule, chosen)
        # Where places in the tile buffer fragment, `with_replacements` takes tensors off the chip.
        excess = 0 if most_bytes is None else dram_bytes(evaluate(issued)) - most_bytes
        if aim is None or excess <= 0 or chosen == [unit[0] for unit in units]:
            return shortest(taken_apart(issued) if residency else issued)
        aim -= excess
        chosen = _choose(units, aim, objective)


def _with_automatic_tiles(
    schedule: Schedule, chosen: list[Replacement], most_bytes: int | None, objective: Objective
) -> list[Replacement]:
    """What is chosen, with gemmini.h's automatic tiles where those are quicker or known to be no slower."""
    try:
        automatic = automatic_schedule(schedule.graph, schedule.target, row_packing=True)
    except ScheduleError:  # memories too small for gemmini.h's tiles
        return chosen
    units, early = [], prefetching_layers(schedule)
    for group, way in zip(schedule.groups, chosen, strict=True):
        if not early.isdisjoint(group.layers):  # gemmini.h's calls load nothing early
            units.append([way])
            continue
        alone = [FusionGroup((name,), resident_tensors=group.resident_tensors) for name in group.layers]
        mappings = {name: automatic.mappings[name] for name in way.mappings}
        units.append([way, Replacement.of(schedule, alone, mappings)])
    limit = SLOWER_THAN_AUTOMATIC * evaluate(automatic, "clock").latency_cycles
    if sum(way.clock for way in chosen) > limit:
        chosen = _no_slower(units, limit, most_bytes, objective)
    if schedule.target.side <= WIDE_SIDE or objective == "energy":
        return chosen
    return [
        unit[-1] if _is_product(schedule, way) and _other_tiles_of_same_bytes(way, unit[-1]) else way
        for way, unit in zip(chosen, units, strict=True)
    ]


def _other_tiles_of_same_bytes(one: Replacement, other: Replacement) -> bool:
    """An order of loops alone is no reason to take the other."""
    return one.bytes == other.bytes and any(
        mapping.tile_l2 != other.mappings[name].tile_l2 for name, mapping in one.mappings.items()
    )


def _is_product(schedule: Schedule, way: Replacement) -> bool:
    """Whether it runs nothing but one matrix product, on the loop unit."""
    if [len(group.layers) for group in way.groups] != [1] or len(way.mappings) != 1:
        return False
    [(name, mapping)] = way.mappings.items()
    return schedule.graph.by_name[name].op in ("gemm", "bmm") and mapping.issue in LOOPS + CALLS


def _no_slower(
    units: list[list[Replacement]], limit: float, most_bytes: int | None, objective: Objective
) -> list[Replacement]:
    """The first of each, changed where that costs the objective least until all take `limit` cycles."""

    def score(now: Costs, then: Costs) -> NDArray[np.float64]:
        before, after = (value(objective, costs.energy, costs.clock) for costs in (now, then))
        saved = now.clock - then.clock
        may = (saved > 1e-9 * now.clock) & (now.clock > limit)  # (what rounding saves comes back)
        if most_bytes is not None:
            may &= then.bytes <= max(most_bytes, now.bytes)
        return np.where(may, (after - before) / np.where(may, saved, 1), np.inf)

    return choose(units, score)


def _prices(schedule: Schedule, chosen: list[Replacement], objective: Objective, dram_price: float) -> Prices:
    """What the objective pays, if DRAM took `dram_price` times the energy that it does."""
    energy, cycles = sum(way.energy for way in chosen), sum(way.clock for way in chosen)
    return Prices.of(objective, energy, cycles, (dram_price - 1) * schedule.target.energy.dram_byte)


def _choose(units: list[list[Replacement]], limit: int | None, objective: Objective) -> list[Replacement]:
    """One way per group: from the first of each, what gains most under the clock within the limit."""

    def score(now: Costs, then: Costs) -> NDArray[np.float64]:
        before, after = (value(objective, costs.energy, costs.clock) for costs in (now, then))
        may = before - after > 1e-9 * before
        if limit is not None:
            may &= then.bytes <= max(limit, now.bytes)
        return np.where(may, after - before, np.inf)

    return choose(units, score)
