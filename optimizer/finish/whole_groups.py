"""Groups that run in one tile, taken apart: the same bytes, and simpler programs.

With a single group tile the members run one after the other on whole tensors.  What flows between them may
as well stay in the tile buffer as a resident tensor: then each layer is a group of its own, whose C knows no
regions and may be one call of gemmini.h.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.group.fusion import Member, ScheduleError, plan_group
from fadiff.costmodel.group.resident_tensors import (
    obstacle_to_staying,
    resident_tensors,
    with_resident_tensors,
)
from fadiff.costmodel.mapping.shape import extents
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule


def taken_apart(schedule: Schedule) -> Schedule:
    """`schedule` (profile hw) with its groups of one tile as groups of one layer, where there is room."""
    graph, found = schedule.graph, list[_Apart]()
    for group in schedule.groups:
        plan = plan_group(graph, group)
        between = {graph.by_name[name].outputs[0] for name, member in plan.items() if member.writes_inside}
        if len(group.layers) > 1 and _may_come_apart(graph, group, plan, between):
            found.append(_Apart(group.layers, _parts(plan), between))
    return _with_room(schedule, found)


@dataclass(frozen=True)
class _Apart:
    """Layers of a group, the groups in its place, and the tensors that stay between these."""

    layers: tuple[str, ...]
    parts: list[FusionGroup]
    between: set[str]


def _with_room(schedule: Schedule, found: Sequence[_Apart]) -> Schedule:
    """All groups taken apart; where places in the tile buffer fragment, one half and then the other."""
    if not found:
        return schedule
    parts = {apart.layers: apart.parts for apart in found}
    groups = [part for group in schedule.groups for part in parts.get(group.layers, [group])]
    staying = resident_tensors(schedule.groups).union(*(apart.between for apart in found))
    try:
        return replace(schedule, groups=with_resident_tensors(schedule.graph, groups, staying))
    except ScheduleError:
        half = len(found) // 2
        return _with_room(_with_room(schedule, found[:half]), found[half:]) if half else schedule


def _may_come_apart(
    graph: Graph, group: FusionGroup, plan: Mapping[str, Member], between: Collection[str]
) -> bool:
    """Whether every member runs once on all of its output, and what it hands over may stay as a whole.

    Not where weights stay: a layer by itself keeps none.
    """
    if group.resident_weights:
        return False
    hands_over = any(member.writes_inside and member.writes_outside for member in plan.values())
    stay = not hands_over and not any(obstacle_to_staying(graph, tensor) for tensor in between)
    return stay and all(_is_whole(member) for member in plan.values())


def _is_whole(member: Member) -> bool:
    regions = math.prod(len(axis) for axis in member.computed)
    return regions == 1 and tuple(extents(axis)[0] for axis in member.computed) == member.size


def _parts(plan: Mapping[str, Member]) -> list[FusionGroup]:
    """One per layer; a max pool stays with the convolution whose stores do it."""
    pooled = {member.pooled_by for member in plan.values()}
    parts = []
    for name, member in plan.items():
        pool = member.pooled_by
        if pool is not None:
            parts.append(FusionGroup((name, pool), GroupTile(*plan[pool].size[2:])))
        elif name not in pooled:
            parts.append(FusionGroup((name,)))
    return parts
