"""Additions as calls of gemmini.h's tiled_resadd: which can be, in what tiles, and what waits they save.

Gemmini's loop unit loads the second operand right behind the first, to the same accumulator rows, and nothing
but the requests between keeps them in order.  Where those are too few, the core issues the moves itself and
waits between the operands (`add_lines` of the firmware).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fadiff.converter.ir.graph import Graph, HostLayer
from fadiff.costmodel.group.fusion import Member, ScheduleError
from fadiff.costmodel.mapping.decision import Decision, FusionGroup
from fadiff.costmodel.mapping.mapping import ceil_div
from fadiff.costmodel.mapping.shape import extents
from fadiff.costmodel.target.target import Target

LEAST_REQUESTS = 64
"""Twice what the DMA of a Gemmini has in flight, and more."""


def resadd_tile(size: int, target: Target) -> tuple[int, int] | None:
    """Rows and columns of the tiles in which tiled_resadd adds `size` elements, rows of one DMA request.

    None where they are no whole rows, or a tile would have fewer than `LEAST_REQUESTS`.
    """
    columns = target.max_block_len * target.side
    most = target.accumulator_rows // 2 // target.max_block_len // target.side * target.side
    rows, rest = divmod(size, columns)
    if rest or most == 0 or rows == 0:
        return None
    tile = ceil_div(ceil_div(rows, ceil_div(rows, most)), target.side) * target.side
    last = rows - (ceil_div(rows, tile) - 1) * tile
    return (min(tile, rows), columns) if min(last, tile) >= LEAST_REQUESTS else None


def run_elements(graph: Graph, group: FusionGroup, plan: Mapping[str, Member], layer: HostLayer) -> int:
    """Elements that the longest run of an addition adds: all, or in a group those of a tile of one image."""
    member, output = plan[layer.name], graph.tensors[layer.outputs[0]]
    if len(group.layers) == 1:
        return output.size
    channels, _, lines, columns = (max(extents(axis)) for axis in member.computed[1:])
    return channels * lines * columns * (output.size // math.prod(member.size))


def obstacle_to_resadd(
    graph: Graph, group: FusionGroup, plan: Mapping[str, Member], layer: HostLayer, target: Target
) -> str:
    """Why tiled_resadd cannot do an addition; empty if it can."""
    member = plan[layer.name]
    if len(group.layers) > 1:
        if len(member.computed.K) > 1:
            return "it adds some channels of every pixel at a time"
        if member.writes_inside and member.writes_outside:
            return "its sum is stored twice"
        lines, columns = (set(extents(axis)) for axis in member.computed[3:])
        inside = [plan[graph.producers(name)[0].name] for name in layer.inputs if name in member.fused_inputs]
        inside += [member] if member.writes_inside else []
        widths = {max(extents(other.computed.Q)) for other in inside}
        if len(inside) < len(layer.inputs) + 1:
            widths.add(member.size[4])
        if len(lines) > 1 or columns != widths:
            return "its lines do not adjoin in every operand and group tile"
    size = run_elements(graph, group, plan, layer)
    if resadd_tile(size, target) is None:
        return f"{size} elements fall into no tiles of at least {LEAST_REQUESTS} requests"
    return ""


def waits(
    graph: Graph, group: FusionGroup, plan: Mapping[str, Member], layer: HostLayer, target: Target
) -> int:
    """How often an addition by single instructions waits between operands: once per half accumulator."""
    channels, images, lines, columns = (extents(axis) for axis in plan[layer.name].computed[1:])
    size, runs = run_elements(graph, group, plan, layer), 1
    if len(group.layers) > 1:
        runs = len(channels) * sum(images) * len(lines) * len(columns)
    return runs * ceil_div(size, target.accumulator_rows // 2 * target.side)


def check_additions(schedule: Decision, plans: list[dict[str, Member]]) -> None:
    """Check that every addition can be issued as the schedule says.

    Raises:
        ScheduleError: one that cannot, or a layer that is no addition, naming it.
    """
    if not schedule.additions:
        return
    first = next(iter(schedule.additions))
    if not schedule.is_executable:
        raise ScheduleError(f"{first}: only schedules that are executed say how layers are issued")
    for name in schedule.additions:
        if name not in schedule.graph.by_name or schedule.graph.by_name[name].op != "add":
            raise ScheduleError(f"{name}: is issued as an addition but is none of the graph")
    for group, plan in zip(schedule.groups, plans, strict=True):
        for name in group.layers:
            layer = schedule.graph.by_name[name]
            if schedule.additions.get(name) == "tiled_resadd" and isinstance(layer, HostLayer):
                reason = obstacle_to_resadd(schedule.graph, group, plan, layer, schedule.target)
                if reason:
                    raise ScheduleError(f"{name}: cannot be issued as tiled_resadd: {reason}")
