"""A schedule as it is emitted: calls of gemmini.h, additions and copies in their shortest programs.

None of it changes what a schedule costs: the search counts additions and copies as here.
"""

from __future__ import annotations

from dataclasses import replace

from fadiff.costmodel.group.copies import obstacle_to_moving, while_weights_wait
from fadiff.costmodel.group.fusion import plan_group
from fadiff.costmodel.group.issue import loop_settings, obstacle_to_issue
from fadiff.costmodel.mapping.mapping import Issue
from fadiff.costmodel.schedule.clock import quickest_additions
from fadiff.costmodel.schedule.evaluate import group_cost
from fadiff.costmodel.schedule.schedule import Schedule

_CALL: dict[Issue, Issue] = {"loop_ws": "tiled_matmul", "loop_conv_ws": "tiled_conv"}
"""Of gemmini.h, for each loop unit."""


def as_issued(schedule: Schedule) -> Schedule:
    """`schedule` (profile hw) with one call for each layer alone whose tiles that would walk alike, additions
    as is quickest, and copies by Gemmini where that is quicker."""
    mappings = dict(schedule.mappings)
    for group in schedule.groups:
        if len(group.layers) > 1:
            continue
        plan = plan_group(schedule.graph, group)
        for setting in loop_settings(schedule, group, plan, frozenset()):
            call = _CALL.get(setting.mapping.issue)
            called = replace(setting.mapping, issue=call) if call else setting.mapping
            if call and not obstacle_to_issue(replace(setting, mapping=called)):
                mappings[setting.layer.name] = called
    return replace(
        schedule, mappings=mappings, additions=quickest_additions(schedule), copies=_copies(schedule)
    )


def _copies(schedule: Schedule) -> frozenset[str]:
    """Those that Gemmini's DMA makes in fewer cycles than the core."""
    found, waiting = set[str](), while_weights_wait(schedule)
    for group in schedule.groups:
        name = group.layers[0]
        if obstacle_to_moving(schedule, name, waiting):
            continue
        by_core, moved = (
            group_cost(schedule.graph, group, {}, schedule.target, "hw", "clock", copies=copies)[
                0
            ].latency_cycles
            for copies in (frozenset[str](), frozenset({name}))
        )
        if moved < by_core:
            found.add(name)
    return frozenset(found)
