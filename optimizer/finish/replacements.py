"""Other ways to run the groups of a finished schedule: priced one group at a time, chosen greedily."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fadiff.costmodel.group.resident_tensors import resident_tensors, with_resident_tensors
from fadiff.costmodel.mapping.mapping import Mapping as LayerMapping
from fadiff.costmodel.schedule.evaluate import group_cost
from fadiff.costmodel.schedule.schedule import FusionGroup, Schedule
from fadiff.optimizer.group.residency import with_places


@dataclass(frozen=True)
class Replacement:
    """Another way to run the layers of a group: energy in pJ, cycles by the clock, DRAM bytes."""

    groups: tuple[FusionGroup, ...]
    mappings: Mapping[str, LayerMapping]
    energy: float
    clock: float
    """Of the program as it is issued."""
    bytes: int

    @classmethod
    def of(
        cls, schedule: Schedule, groups: Sequence[FusionGroup], mappings: Mapping[str, LayerMapping]
    ) -> Replacement:
        """Priced in place of the group of `schedule` that has these layers."""
        run = (mappings, schedule.target, schedule.profile)
        costs = [
            cost for group in groups for cost in group_cost(schedule.graph, group, *run, latency="clock")
        ]
        return cls(
            tuple(groups),
            mappings,
            sum(cost.energy_pj for cost in costs),
            sum(cost.latency_cycles for cost in costs),
            sum(cost.total_bytes("dram") for cost in costs),
        )

    @classmethod
    def as_is(cls, schedule: Schedule, group: FusionGroup) -> Replacement:
        """A group as the schedule has it."""
        mappings = {name: schedule.mappings[name] for name in group.layers if name in schedule.mappings}
        return cls.of(schedule, [group], mappings)


class Costs(NamedTuple):
    """What a network costs, or (arrays) would cost after each of several changes; as in `Replacement`."""

    energy: Any
    clock: Any
    bytes: Any


def choose(
    units: Sequence[Sequence[Replacement]], score: Callable[[Costs, Costs], NDArray[np.float64]]
) -> list[Replacement]:
    """One way per group: the first of each, then changed one at a time.

    Args:
        units: For every group the ways to run it.
        score: Of every change, from the costs of the network now and after it.  The change that scores least
            is made (the first of equals), one that scores inf never; it ends when all do.
    """
    replacements = [replacement for unit in units for replacement in unit]
    costs = np.array([(way.energy, way.clock, way.bytes) for way in replacements])
    sizes = [len(unit) for unit in units]
    unit_of = np.repeat(np.arange(len(units)), sizes)
    chosen = np.cumsum([0, *sizes[:-1]])
    while True:
        now = costs[chosen]
        total = now.sum(axis=0)
        scores = score(Costs(*total), Costs(*(total - now[unit_of] + costs).T))
        scores[chosen] = np.inf  # no change, whatever the rounding of its sums says
        best = int(np.argmin(scores))
        if np.isinf(scores[best]):
            return [replacements[i] for i in chosen]
        chosen[unit_of[best]] = best


def with_replacements(schedule: Schedule, replacements: Iterable[Replacement]) -> Schedule:
    """The schedule that runs its groups in these ways (profile hw), the same tensors on chip between them.

    Raises:
        ScheduleError: they do not fit together.
    """
    replacements, graph = list(replacements), schedule.graph
    groups = tuple(group for replacement in replacements for group in replacement.groups)
    groups = with_resident_tensors(graph, groups, resident_tensors(schedule.groups))
    return replace(
        schedule,
        groups=with_places(graph, groups, schedule.target),
        mappings={
            name: mapping for replacement in replacements for name, mapping in replacement.mappings.items()
        },
    )
