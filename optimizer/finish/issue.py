"""How the layers of a finished schedule are issued: the shortest program that moves the same bytes.

Where several issues are legal: one call of gemmini.h, else a hardware loop per scratchpad tile, else single
instructions, which the core takes 23 to 31 of its own each for.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.group.fusion import plan_group
from costmodel.group.issue import loop_settings, obstacle_to_issue, prefetching_layers
from costmodel.mapping.mapping import Issue
from costmodel.schedule.schedule import Schedule

SHORTEST_FIRST: tuple[Issue, ...] = ("tiled_matmul", "tiled_conv", "loop_ws", "loop_conv_ws", "instructions")


def with_issues(schedule: Schedule) -> Schedule:
    """`schedule` (profile hw), every layer of it issued by as few instructions as its mapping allows."""
    mappings = dict(schedule.mappings)
    early = prefetching_layers(schedule)
    for group in schedule.groups:
        for setting in loop_settings(schedule, group, plan_group(schedule.graph, group), early):
            tried = (replace(setting, mapping=replace(setting.mapping, issue=i)) for i in SHORTEST_FIRST)
            mappings[setting.layer.name] = next(s.mapping for s in tried if not obstacle_to_issue(s))
    return replace(schedule, mappings=mappings)
