"""Groups that run in one tile, taken apart: the same bytes, and simpler programs.

With a single group tile the members run one after the other on whole tensors.  What flows between them may
as well stay in the tile buffer as a resident tensor: then each layer is a group of its own, whose C knows no
regions and may be one call of gemmini.h.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from converter.ir.graph import Graph
from costmodel.group.fusion import Member, ScheduleError, plan_group
from costmodel.group.resident_tensors import obstacle_to_staying, resident_tensors, with_resident_tensors
from costmodel.mapping.shape import extents
from costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule


def taken_apart(schedule: Schedule) -> Schedule:
    """`schedule` (profile hw) with its groups of one tile as groups of one layer, where there is room.

    Prefetches are planned for groups as they are: none comes apart then.
    """
    if any(group.prefetch_during for group in schedule.groups):
        return schedule
    for group in schedule.groups:
        if len(group.layers) > 1 and _may_come_apart(schedule.graph, group):
            at = schedule.groups.index(group)
            groups = (*schedule.groups[:at], *_parts(schedule.graph, group), *schedule.groups[at + 1 :])
            staying = resident_tensors(schedule.groups) | _between(schedule.graph, group)
            placed = with_resident_tensors(schedule.graph, groups, staying)
            try:
                schedule = replace(schedule, groups=placed)
            except ScheduleError:  # places in the tile buffer fragment
                continue
    return schedule


def _may_come_apart(graph: Graph, group: FusionGroup) -> bool:
    """Whether every member runs once on all of its output, and what it hands over may stay as a whole."""
    if group.in_scratchpad or group.in_accumulator:
        return False
    plan = plan_group(graph, group)
    return all(_is_whole(member) for member in plan.values()) and not any(
        member.writes_outside or obstacle_to_staying(graph, graph.by_name[name].outputs[0])
        for name, member in plan.items()
        if member.writes_inside
    )


def _is_whole(member: Member) -> bool:
    regions = math.prod(len(axis) for axis in member.computed)
    return regions == 1 and tuple(extents(axis)[0] for axis in member.computed) == member.size


def _between(graph: Graph, group: FusionGroup) -> frozenset[str]:
    plan: Mapping[str, Member] = plan_group(graph, group)
    return frozenset(graph.by_name[name].outputs[0] for name, m in plan.items() if m.writes_inside)


def _parts(graph: Graph, group: FusionGroup) -> list[FusionGroup]:
    """One per layer; a max pool stays with the convolution whose stores do it."""
    plan = plan_group(graph, group)
    pooled = {member.pooled_by for member in plan.values()}
    parts = []
    for name in group.layers:
        pool = plan[name].pooled_by
        if pool is not None:
            parts.append(FusionGroup((name, pool), GroupTile(*plan[pool].size[2:])))
        elif name not in pooled:
            parts.append(FusionGroup((name,)))
    return parts
