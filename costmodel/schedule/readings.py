"""The same schedule under other assumptions: sound and paper fusion.

One schedule, several counts: what is claimed for it in the literature's model beside what a program does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.group.resident_tensors import resident_tensors, with_resident_tensors
from fadiff.costmodel.latency.clock import error_against_rtl
from fadiff.costmodel.mapping.mapping import as_single_instructions
from fadiff.costmodel.schedule.document import ReadingRecord, ReadingsRecord
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, FusionModel, Schedule


def readings(schedule: Schedule) -> ReadingsRecord:
    """Every reading of `schedule`, its own fusion model first.

    A schedule found under `paper` may have no sound reading: then `obstacle` says why no program does
    what it claims.  A sound schedule is counted under `paper` even where Eq. 24 forbids it.
    """
    found = [_reading(schedule)]
    (other,) = (model for model in get_args(FusionModel) if model != schedule.fusion_model)
    obstacle = None
    try:
        found.append(_reading(under_fusion_model(schedule, other)))
    except ScheduleError as error:
        obstacle = str(error)
        if other == "paper":
            found.append(_reading(schedule, other))
    return ReadingsRecord(rows=tuple(found), obstacle=obstacle)


def under_fusion_model(schedule: Schedule, model: FusionModel) -> Schedule:
    """The same schedule by the rules of a fusion model; the paper's knows nothing that crosses group
    boundaries.

    Raises:
        ScheduleError: it is not legal there.
    """
    if model == schedule.fusion_model:
        return schedule
    return replace(within_groups(schedule), fusion_model=model)


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


def _reading(schedule: Schedule, model: FusionModel | None = None) -> ReadingRecord:
    """Of a schedule under its own rules, or counted by the other fusion model whether or not it is legal."""
    cost, paper = evaluate(schedule, fusion_model=model), (model or schedule.fusion_model) == "paper"
    latency = schedule.counting.latency_model(paper=paper)
    return ReadingRecord(
        fusion_model=model or schedule.fusion_model,
        latency_model=latency,
        energy_pj=cost.energy_pj,
        latency_cycles=cost.latency_cycles,
        edp_uj_cycles=cost.edp_uj_cycles,
        latency_error=error_against_rtl(latency, schedule.target),
    )
