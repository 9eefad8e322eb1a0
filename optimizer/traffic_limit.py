"""A limit on DRAM bytes: the schedule of a search, changed where that costs least, until it moves no more.

EDP may prefer to move more bytes for fewer cycles.  Here every group of a schedule is searched again with
DRAM many times as expensive: the hull of that search trades bytes for cycles.  A fused group may also run
its layers alone, and a layer may take gemmini.h's automatic tiles.  Groups are changed in order of
objective lost per byte saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from converter.graph import TensorCoreLayer
from costmodel.evaluate import LayerCost, NetworkCost, evaluate, group_cost
from costmodel.fusion import ScheduleError
from costmodel.mapping import Mapping as LayerMapping
from costmodel.schedule import FusionGroup, LatencyModel, Schedule
from costmodel.target import Target
from optimizer.baselines.gemmini_auto import automatic_mapping, automatic_schedule
from optimizer.candidates import Tiling
from optimizer.partition import Objective
from optimizer.problem import Problem, value
from optimizer.result import SearchResult
from optimizer.space import Rules

DRAM_PRICE = 64.0
"""Energy of a DRAM byte, as a multiple of the target's, in the search for mappings that move few."""


def dram_bytes(cost: NetworkCost) -> int:
    """Bytes that Gemmini's DMA moves to and from DRAM."""
    return sum(map(_layer_bytes, cost.layers))


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
    rules = Rules(_dearer(schedule.target), tiling=tiling, row_packing=row_packing, all_lanes=True)
    frugal = Problem(schedule.graph, rules, objective)
    units = [list(_ways(group, schedule, frugal)) for group in schedule.groups]
    chosen = _choose(units, limit, objective)
    changed = replace(
        schedule,
        groups=tuple(group for way in chosen for group in way.groups),
        mappings={name: mapping for way in chosen for name, mapping in way.mappings.items()},
    )
    return replace(result, schedule=changed, cost=evaluate(changed, latency))


@dataclass(frozen=True)
class _Way:
    """One way to run the layers of a group: pJ, cycles, DRAM bytes."""

    groups: tuple[FusionGroup, ...]
    mappings: Mapping[str, LayerMapping]
    energy: float
    latency: float
    bytes: int


def _layer_bytes(cost: LayerCost) -> int:
    return sum(read + written for read, written in cost.bytes_in("dram").values())


def _dearer(target: Target) -> Target:
    energy = target.energy.model_copy(update={"dram_byte": target.energy.dram_byte * DRAM_PRICE})
    return target.model_copy(update={"energy": energy})


def _ways(group: FusionGroup, schedule: Schedule, frugal: Problem) -> Iterator[_Way]:
    """The group as it is, then what may move fewer bytes.

    Weighed by `rtl` latency: what moves fewest bytes leaves most of the array idle, and roofline latency
    does not see how long that array takes to load.
    """

    def way(groups: Sequence[FusionGroup], mappings: Mapping[str, LayerMapping]) -> _Way:
        costs = [
            cost
            for part in groups
            for cost in group_cost(schedule.graph, part, mappings, schedule.target, schedule.profile, "rtl")
        ]
        return _Way(
            tuple(groups),
            mappings,
            sum(cost.energy_pj for cost in costs),
            sum(cost.latency_cycles for cost in costs),
            sum(map(_layer_bytes, costs)),
        )

    yield way([group], {n: schedule.mappings[n] for n in group.layers if n in schedule.mappings})
    hulls = [frugal.alone[(name,)] for name in group.layers]
    if group.tile is None:
        choices = hulls[0].choices
    else:
        choices = frugal.price_group(group.layers, [group.tile]).choices
    for choice in choices:
        yield way([choice.group], choice.mappings())
    split = [FusionGroup((name,)) for name in group.layers]
    fewest = [hull.choices[int(np.argmin(hull.energy))].mappings() for hull in hulls]
    yield way(split, {name: mapping for mappings in fewest for name, mapping in mappings.items()})
    layers = [schedule.graph.by_name[name] for name in group.layers]
    rules = frugal.rules
    yield way(
        split,
        {
            layer.name: automatic_mapping(layer, schedule.target, rules.row_packing)
            for layer in layers
            if isinstance(layer, TensorCoreLayer)
        },
    )


def _choose(units: Sequence[Sequence[_Way]], limit: int, objective: Objective) -> list[_Way]:
    """One way per group; greedy, by the objective lost per byte saved, until the limit holds.

    Raises:
        ScheduleError: every group moves its fewest bytes, and they are more than the limit.
    """
    chosen = [ways[0] for ways in units]
    energy, latency = sum(way.energy for way in chosen), sum(way.latency for way in chosen)
    left = sum(way.bytes for way in chosen) - limit

    def worth(now: _Way, then: _Way) -> float:
        """Objective lost per byte saved; bytes beyond the limit are worth nothing."""
        after = value(objective, energy - now.energy + then.energy, latency - now.latency + then.latency)
        return (after - value(objective, energy, latency)) / min(now.bytes - then.bytes, left)

    while left > 0:
        changes = [
            (worth(now, way), unit, option)
            for unit, (now, ways) in enumerate(zip(chosen, units, strict=True))
            for option, way in enumerate(ways)
            if way.bytes < now.bytes
        ]
        if not changes:
            raise ScheduleError(
                f"no schedule found that moves at most {limit:,} bytes; the fewest are {limit + left:,}: "
                "raise --max-dram-bytes"
            )
        _, unit, option = min(changes)
        now, then = chosen[unit], units[unit][option]
        energy, latency = energy - now.energy + then.energy, latency - now.latency + then.latency
        left -= now.bytes - then.bytes
        chosen[unit] = then
    return chosen
