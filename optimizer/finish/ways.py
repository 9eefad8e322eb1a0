"""Other ways to run the groups of a finished schedule: priced one group at a time, chosen greedily."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.group.resident_tensors import resident_tensors, with_resident_tensors
from costmodel.mapping.mapping import Mapping as LayerMapping
from costmodel.schedule.evaluate import LayerCost, group_cost
from costmodel.schedule.schedule import FusionGroup, LatencyModel, Schedule
from optimizer.group.residency import with_places


@dataclass(frozen=True)
class Way:
    """One way to run the layers of a group: energy in pJ, cycles of both latency models, DRAM bytes."""

    groups: tuple[FusionGroup, ...]
    mappings: Mapping[str, LayerMapping]
    energy: float
    roofline: float
    rtl: float
    bytes: int

    @classmethod
    def of(
        cls, schedule: Schedule, groups: Sequence[FusionGroup], mappings: Mapping[str, LayerMapping]
    ) -> Way:
        """Priced in place of the group of `schedule` that has these layers."""

        def costs(latency: LatencyModel) -> list[LayerCost]:
            run = (mappings, schedule.target, schedule.profile, latency)
            return [cost for group in groups for cost in group_cost(schedule.graph, group, *run)]

        roofline = costs("roofline")
        return cls(
            tuple(groups),
            mappings,
            sum(cost.energy_pj for cost in roofline),
            sum(cost.latency_cycles for cost in roofline),
            sum(cost.latency_cycles for cost in costs("rtl")),
            sum(map(layer_bytes, roofline)),
        )

    @classmethod
    def as_is(cls, schedule: Schedule, group: FusionGroup) -> Way:
        """A group as the schedule has it."""
        mappings = {name: schedule.mappings[name] for name in group.layers if name in schedule.mappings}
        return cls.of(schedule, [group], mappings)


class Costs(NamedTuple):
    """What a network costs, or (arrays) would cost after each of several changes; as in `Way`."""

    energy: Any
    roofline: Any
    rtl: Any
    bytes: Any


def choose(units: Sequence[Sequence[Way]], score: Callable[[Costs, Costs], NDArray[np.float64]]) -> list[Way]:
    """One way per group: the first of each, then changed one at a time.

    Args:
        units: For every group the ways to run it.
        score: Of every change, from the costs of the network now and after it.  The change that scores least
            is made (the first of equals), one that scores inf never; it ends when all do.
    """
    ways = [way for unit in units for way in unit]
    costs = np.array([(way.energy, way.roofline, way.rtl, way.bytes) for way in ways])
    sizes = [len(unit) for unit in units]
    unit_of = np.repeat(np.arange(len(units)), sizes)
    chosen = np.cumsum([0, *sizes[:-1]])
    while True:
        now = costs[chosen]
        total = now.sum(axis=0)
        scores = score(Costs(*total), Costs(*(total - now[unit_of] + costs).T))
        best = int(np.argmin(scores))
        if np.isinf(scores[best]):
            return [ways[i] for i in chosen]
        chosen[unit_of[best]] = best


def with_ways(schedule: Schedule, ways: Iterable[Way]) -> Schedule:
    """The schedule that runs its groups in these ways (profile hw), the same tensors on chip between them.

    Raises:
        ScheduleError: they do not fit together.
    """
    ways, graph = list(ways), schedule.graph
    groups = tuple(group for way in ways for group in way.groups)
    groups = with_resident_tensors(graph, groups, resident_tensors(schedule.groups))
    return replace(
        schedule,
        groups=with_places(graph, groups, schedule.target),
        mappings={name: mapping for way in ways for name, mapping in way.mappings.items()},
    )


def layer_bytes(cost: LayerCost) -> int:
    """DRAM bytes of a layer."""
    return sum(read + written for read, written in cost.bytes_in("dram").values())
