"""A limit on DRAM bytes: the schedule of a search, changed where that costs least, until it moves no more.

EDP may prefer to move more bytes for fewer cycles.  Here every group of a schedule is searched again with
DRAM several times as expensive: the hulls of these searches trade bytes for cycles.  A fused group may also
run its layers alone, and a layer may take gemmini.h's automatic tiles.  Groups are changed in order of
objective lost per byte saved; what that saves too much goes back where it costs most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from converter.graph import TensorCoreLayer
from costmodel.evaluate import NetworkCost, evaluate
from costmodel.fusion import ScheduleError
from costmodel.schedule import FusionGroup, LatencyModel, Schedule
from costmodel.target import Target
from optimizer.baselines.gemmini_auto import automatic_mapping, automatic_schedule
from optimizer.candidates import Tiling
from optimizer.partition import Objective
from optimizer.problem import Problem, value
from optimizer.result import SearchResult
from optimizer.space import Rules
from optimizer.ways import Way, layer_bytes, with_ways

DRAM_PRICES = (4.0, 16.0, 64.0)
"""Energies of a DRAM byte, as multiples of the target's, in the searches for mappings that move few."""


def dram_bytes(cost: NetworkCost) -> int:
    """Bytes that Gemmini's DMA moves to and from DRAM."""
    return sum(map(layer_bytes, cost.layers))


def automatic_bytes(schedule: Schedule, *, row_packing: bool = True) -> int:
    """DRAM bytes of the network of `schedule` at gemmini.h's automatic tiles."""
    return dram_bytes(evaluate(automatic_schedule(schedule.graph, schedule.target, row_packing)))


def within(
    result: SearchResult,
    limit: int,
    *,
    objective: Objective = "edp",
    latency: LatencyModel = "roofline",
    tiling: Tiling = "ragged",
    row_packing: bool = True,
) -> SearchResult:
    """`result` if it moves at most `limit` bytes, else a schedule near it that does.

    Args:
        result: What a search found (profile hw).
        limit: DRAM bytes.
        objective, latency, tiling, row_packing: As in the search.

    Raises:
        ScheduleError: no change of groups leaves so few bytes.
    """
    if dram_bytes(result.cost) <= limit:
        return result
    schedule = result.schedule
    frugal = []
    for price in DRAM_PRICES:
        rules = Rules(_dearer(schedule.target, price), tiling=tiling, row_packing=row_packing, all_lanes=True)
        frugal.append(Problem(schedule.graph, rules, objective))
    units = [list(_ways(group, schedule, frugal)) for group in schedule.groups]
    aim = limit
    while True:
        changed = with_ways(schedule, _choose(units, aim, objective))
        limited = replace(result, schedule=changed, cost=evaluate(changed, latency))
        # Where places in the tile buffer fragment, `with_ways` takes tensors off the chip.
        excess = dram_bytes(limited.cost) - limit
        if excess <= 0:
            return limited
        aim -= excess


def _dearer(target: Target, price: float) -> Target:
    energy = target.energy.model_copy(update={"dram_byte": target.energy.dram_byte * price})
    return target.model_copy(update={"energy": energy})


def _ways(group: FusionGroup, schedule: Schedule, frugal: Sequence[Problem]) -> Iterator[Way]:
    """The group as it is, then what may move fewer bytes."""
    yield Way.as_is(schedule, group)
    split = [FusionGroup((name,), resident_tensors=group.resident_tensors) for name in group.layers]
    for problem in frugal:
        for choice in problem.same_group(group).choices:
            yield Way.of(schedule, [choice.group], choice.mappings())
        hulls = [problem.same_group(alone) for alone in split]
        fewest = [hull.choices[int(np.argmin(hull.energy))].mappings() for hull in hulls]
        yield Way.of(schedule, split, {name: mapping for part in fewest for name, mapping in part.items()})
    layers = [schedule.graph.by_name[name] for name in group.layers]
    row_packing = frugal[0].rules.row_packing
    automatic = {
        layer.name: automatic_mapping(layer, schedule.target, row_packing)
        for layer in layers
        if isinstance(layer, TensorCoreLayer)
    }
    yield Way.of(schedule, split, automatic)


def _choose(units: Sequence[Sequence[Way]], limit: int, objective: Objective) -> list[Way]:
    """One way per group; greedy, by the objective lost per byte saved, until the limit holds.

    Weighed by `rtl` latency: what moves fewest bytes leaves most of the array idle, and roofline latency
    does not see how long that array takes to load.

    Raises:
        ScheduleError: every group moves its fewest bytes, and they are more than the limit.
    """
    chosen = [ways[0] for ways in units]
    energy, latency = sum(way.energy for way in chosen), sum(way.rtl for way in chosen)
    left = sum(way.bytes for way in chosen) - limit

    def lost(now: Way, then: Way) -> float:
        """Of the objective."""
        after = value(objective, energy - now.energy + then.energy, latency - now.rtl + then.rtl)
        return after - value(objective, energy, latency)

    while True:
        changes = [
            (lost(now, way), now.bytes - way.bytes, unit, option)
            for unit, (now, ways) in enumerate(zip(chosen, units, strict=True))
            for option, way in enumerate(ways)
        ]
        if left > 0:  # bytes beyond the limit are worth nothing
            steps = [(loss / min(saved, left), *rest) for loss, saved, *rest in changes if saved > 0]
            if not steps:
                raise ScheduleError(
                    f"no schedule found that moves at most {limit:,} bytes; the fewest are {limit + left:,}: "
                    "raise --max-dram-bytes"
                )
        else:
            enough = 1e-9 * value(objective, energy, latency)
            steps = [(loss, *rest) for loss, saved, *rest in changes if left <= saved and loss < -enough]
            if not steps:
                return chosen
        _, unit, option = min(steps)
        now, then = chosen[int(unit)], units[int(unit)][int(option)]
        energy, latency = energy - now.energy + then.energy, latency - now.rtl + then.rtl
        left -= now.bytes - then.bytes
        chosen[int(unit)] = then
