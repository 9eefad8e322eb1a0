"""A limit on DRAM bytes: the schedule of a search, changed where that costs least, until it moves no more.

EDP may prefer to move more bytes for fewer cycles.  Here every group of a schedule is searched again with
DRAM several times as expensive: the hulls of these searches trade bytes for cycles.  A fused group may also
run its layers alone, and a layer may take gemmini.h's automatic tiles.  Groups are changed in order of
objective lost per byte saved; what that saves too much goes back where it costs most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.mapping.mapping import Mapping as LayerMapping
from fadiff.costmodel.mapping.mapping import as_if_on_loops, as_single_instructions
from fadiff.costmodel.schedule.evaluate import NetworkCost, evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, Schedule
from fadiff.optimizer.baselines.gemmini_auto import automatic_mapping, automatic_schedule
from fadiff.optimizer.cut.partition import Objective
from fadiff.optimizer.cut.problem import Problem, value
from fadiff.optimizer.cut.result import SearchResult
from fadiff.optimizer.cut.settings import Settings
from fadiff.optimizer.finish.replacements import Costs, Replacement, choose, with_replacements

DRAM_PRICES = (4.0, 16.0, 64.0)
"""Energies of a DRAM byte, as multiples of the target's, in the searches for mappings that move few."""


def dram_bytes(cost: NetworkCost) -> int:
    """Bytes that Gemmini's DMA moves to and from DRAM."""
    return sum(layer.total_bytes("dram") for layer in cost.layers)


def automatic_bytes(schedule: Schedule, *, row_packing: bool = True) -> int:
    """DRAM bytes of the network of `schedule` at gemmini.h's automatic tiles."""
    return dram_bytes(evaluate(automatic_schedule(schedule.graph, schedule.target, row_packing)))


def within(result: SearchResult, limit: int) -> SearchResult:
    """`result` if it moves at most `limit` bytes, else a schedule near it that does.

    Args:
        result: What a search found (profile hw).
        limit: DRAM bytes.

    Raises:
        ScheduleError: no change of groups leaves so few bytes.
    """
    if dram_bytes(result.cost) <= limit:
        return result
    schedule, settings = result.schedule, result.settings
    frugal = [_frugal(schedule, settings, price) for price in DRAM_PRICES]
    units = [list(_replacements(group, schedule, frugal)) for group in schedule.groups]
    aim = limit
    while True:
        chosen = _choose(units, aim, settings.objective)
        by_core = [replace(way, mappings=as_single_instructions(way.mappings)) for way in chosen]
        changed = with_replacements(replace(schedule, additions={}), by_core)
        limited = replace(result, schedule=changed, cost=evaluate(changed, settings.latency))
        # Where places in the tile buffer fragment, `with_replacements` takes tensors off the chip.
        excess = dram_bytes(limited.cost) - limit
        if excess <= 0:
            return limited
        aim -= excess


def _frugal(schedule: Schedule, settings: Settings, price: float) -> Problem:
    """The search for mappings that move few bytes: with DRAM `price` times as expensive."""
    energy = schedule.target.energy
    dearer = energy.model_copy(update={"dram_byte": energy.dram_byte * price})
    target = schedule.target.model_copy(update={"energy": dearer})
    problem = Problem.of(replace(settings, latency="roofline", time_budget=None), schedule.graph, target)
    return replace(problem, rules=replace(problem.rules, all_lanes=True))


def _replacements(group: FusionGroup, schedule: Schedule, frugal: Sequence[Problem]) -> Iterator[Replacement]:
    """The group as it is, then what may move fewer bytes; by whom layers are issued is decided later."""

    def priced(groups: Sequence[FusionGroup], mappings: Mapping[str, LayerMapping]) -> Replacement:
        return Replacement.of(schedule, groups, as_if_on_loops(mappings))

    yield priced(
        [group], {name: schedule.mappings[name] for name in group.layers if name in schedule.mappings}
    )
    split = [FusionGroup((name,), resident_tensors=group.resident_tensors) for name in group.layers]
    for problem in frugal:
        for way in problem.same_group(group).ways:
            yield priced([way.group], way.mappings())
        hulls = [problem.same_group(alone) for alone in split]
        fewest = [hull.ways[int(np.argmin(hull.energy))].mappings() for hull in hulls]
        yield priced(split, {name: mapping for part in fewest for name, mapping in part.items()})
    layers = [schedule.graph.by_name[name] for name in group.layers]
    row_packing = frugal[0].rules.row_packing
    automatic = {
        layer.name: automatic_mapping(layer, schedule.target, row_packing)
        for layer in layers
        if isinstance(layer, TensorCoreLayer)
    }
    yield priced(split, automatic)


def _choose(units: Sequence[Sequence[Replacement]], limit: int, objective: Objective) -> list[Replacement]:
    """One way per group; greedy, by the objective lost per byte saved, until the limit holds.

    Weighed by the clock: what moves fewest bytes leaves most of the array idle, and roofline latency
    does not see how long that array takes to load.

    Raises:
        ScheduleError: every group moves its fewest bytes, and they are more than the limit.
    """

    def score(now: Costs, then: Costs) -> NDArray[np.float64]:
        before, after = (value(objective, costs.energy, costs.clock) for costs in (now, then))
        left, saved = now.bytes - limit, now.bytes - then.bytes
        if left > 0:  # bytes beyond the limit are worth nothing
            return np.where(saved > 0, (after - before) / np.clip(saved, 1, left), np.inf)
        better = (then.bytes <= limit) & (before - after > 1e-9 * before)
        return np.where(better, after - before, np.inf)

    chosen = choose(units, score)
    fewest = sum(replacement.bytes for replacement in chosen)
    if fewest > limit:
        raise ScheduleError(
            f"no schedule found that moves at most {limit:,} bytes; the fewest are {fewest:,}: "
            "raise --max-dram-bytes"
        )
    return chosen
