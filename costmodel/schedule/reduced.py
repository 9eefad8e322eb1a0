"""The same schedule without what other rules know nothing of: residents, overlap, loop units."""

from __future__ import annotations

from dataclasses import replace

from fadiff.costmodel.group.resident_tensors import resident_tensors, with_resident_tensors
from fadiff.costmodel.mapping.mapping import as_single_instructions
from fadiff.costmodel.schedule.schedule import FusionGroup, Schedule


def one_by_one(schedule: Schedule) -> Schedule:
    """The same schedule with layers one after the other that run side by side."""
    if not any(group.side_by_side for group in schedule.groups) or schedule.fusion_model == "paper":
        return schedule
    alone = [
        FusionGroup((name,), resident_tensors=group.resident_tensors) if group.side_by_side else group
        for group in schedule.groups
        for name in (group.layers if group.side_by_side else group.layers[:1])
    ]
    groups = with_resident_tensors(schedule.graph, alone, resident_tensors(schedule.groups))
    return replace(schedule, groups=groups)


def within_groups(schedule: Schedule) -> Schedule:
    """The same schedule without what crosses group boundaries: resident tensors."""
    plain = one_by_one(schedule)
    return replace(plain, groups=with_resident_tensors(plain.graph, plain.groups, ()))


def as_instructions(schedule: Schedule) -> Schedule:
    """The same schedule with every layer issued by the core: what is not executed says nothing of loops."""
    apart = one_by_one(schedule)
    return replace(apart, mappings=as_single_instructions(apart.mappings), additions={}, copies=frozenset())
