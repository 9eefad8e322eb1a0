"""The same schedule under other assumptions: sound and paper fusion, both latencies.

One schedule, several counts: what is claimed for it in the literature's model beside what a program does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.group.resident_tensors import resident_tensors, with_resident_tensors
from fadiff.costmodel.group.weight_prefetch import without_prefetches
from fadiff.costmodel.latency.clock import error_against_rtl
from fadiff.costmodel.mapping.mapping import as_single_instructions
from fadiff.costmodel.schedule.document import ReadingRecord, ReadingsRecord
from fadiff.costmodel.schedule.evaluate import NetworkCost, evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, FusionModel, GroupLatency, LatencyModel, Schedule
from fadiff.costmodel.target.target import Target


def readings(schedule: Schedule) -> ReadingsRecord:
    """Every reading of `schedule`, its own fusion model first.

    A schedule found under `paper` may have no sound reading: then `obstacle` says why no program does
    what it claims.  A sound schedule is counted under `paper` even where Eq. 24 forbids it.
    """
    found = _under(schedule)
    (other,) = (model for model in get_args(FusionModel) if model != schedule.fusion_model)
    obstacle = None
    try:
        found += _under(under_fusion_model(schedule, other))
    except ScheduleError as error:
        obstacle = str(error)
        if other == "paper":
            found += (_reading(evaluate(schedule, fusion_model=other), schedule.target, other, "roofline"),)
    return ReadingsRecord(rows=found, obstacle=obstacle)


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
    """The same schedule without what crosses group boundaries: resident tensors, weights loaded early."""
    plain = without_prefetches(one_by_one(schedule))
    return replace(plain, groups=with_resident_tensors(plain.graph, plain.groups, ()))


def as_instructions(schedule: Schedule) -> Schedule:
    """The same schedule with every layer issued by the core: what is not executed says nothing of loops."""
    apart = one_by_one(schedule)
    return replace(apart, mappings=as_single_instructions(apart.mappings), additions={}, copies=frozenset())


def _under(counted: Schedule) -> tuple[ReadingRecord, ...]:
    """Readings of a legal schedule under its own fusion model; first as it is executed, if it prefetches."""
    model, target = counted.fusion_model, counted.target
    plain = without_prefetches(counted)
    rows = [_reading(evaluate(plain), target, model, "roofline")]
    executed = [_reading(evaluate(counted), target, model, "roofline", "executed")]
    if counted.is_executable:
        rows.append(_reading(evaluate(plain, "clock"), target, model, "clock"))
        executed.append(_reading(evaluate(counted, "clock"), target, model, "clock", "executed"))
    return tuple(rows if plain is counted else executed + rows)


def _reading(
    cost: NetworkCost,
    target: Target,
    model: FusionModel,
    latency: LatencyModel,
    groups: GroupLatency = "sum",
) -> ReadingRecord:
    return ReadingRecord(
        fusion_model=model,
        latency_model=latency,
        group_latency=groups,
        energy_pj=cost.energy_pj,
        latency_cycles=cost.latency_cycles,
        edp_uj_cycles=cost.edp_uj_cycles,
        latency_error=error_against_rtl(latency, target),
    )
