"""Copies by Gemmini's DMA instead of the core: which can be, in what rows, and what Gemmini does for them.

Commands load up to `side` rows into the scratchpad and store them again, as they are.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

from fadiff.converter.ir.graph import Graph, HostLayer, Layer
from fadiff.converter.ir.host import Copy
from fadiff.converter.ir.loops import Access, Loops
from fadiff.converter.ir.recurrence import State
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.group.row_operators import runs_on_core
from fadiff.costmodel.latency import cache
from fadiff.costmodel.latency.clock import LayerCounts
from fadiff.costmodel.latency.clock_work import segment_requests
from fadiff.costmodel.mapping.decision import Decision
from fadiff.costmodel.mapping.mapping import ceil_div
from fadiff.costmodel.target.target import Target


@dataclass(frozen=True)
class MovedRows:
    """Rows of `length` elements, which adjoin in both tensors; the innermost loop is that of commands."""

    loops: Loops
    length: int

    def commands(self, target: Target) -> int:
        """That load the rows; as many store them."""
        *outer, rows = self.loops.shape
        widest = target.max_block_len * target.side
        return math.prod(outer) * ceil_div(rows, target.side) * ceil_div(self.length, widest)


def moved_rows(loops: Loops, target: Target) -> MovedRows | None:
    """The rows of a copy, in as few commands as they can be; None if no elements adjoin."""
    axes = _merged(loops)
    *outer, (length, *steps) = axes or [(1, 1, 1)]
    if steps != [1, 1] or 0 in loops.shape:
        return None
    widest = target.max_block_len * target.side
    width = max(w for w in range(1, min(length, widest) + 1) if length % w == 0)
    cut = [(length // width, width, width)] if width < length else []
    ways = (_in_rows(loops, outer, length), _in_rows(loops, [*outer, *cut], width))
    return min(ways, key=lambda way: way.commands(target))


def _merged(loops: Loops) -> list[tuple[int, int, int]]:
    """Extent and strides of every axis, outermost first; one for those that follow one another in both."""
    [read], written = loops.inputs, loops.output
    axes = [axis for axis in zip(loops.shape, read.strides, written.strides, strict=True) if axis[0] > 1]
    found: list[tuple[int, int, int]] = []
    for extent, *steps in sorted(axes, key=lambda axis: axis[:0:-1], reverse=True):
        if found and list(found[-1][1:]) == [extent * step for step in steps]:
            extent *= found.pop()[0]
        found.append((extent, steps[0], steps[1]))
    return found


def _in_rows(loops: Loops, axes: list[tuple[int, int, int]], length: int) -> MovedRows:
    """With the longest axis as the rows of a command."""
    *shape, strides_in, strides_out = zip(*sorted(axes or [(1, 0, 0)]), strict=True)
    read, written = Access(loops.inputs[0].offset, strides_in), Access(loops.output.offset, strides_out)
    return MovedRows(Loops(shape[0], (read,), written), length)


def obstacle_to_moving(schedule: Decision, name: str) -> str:
    """Why Gemmini cannot make a copy in its place; empty if it can."""
    if len(schedule.group_of[name].layers) > 1:
        return "it does not run alone"
    return obstacle_to_rows(schedule.graph, schedule.graph.by_name[name], schedule.target)


def obstacle_to_rows(graph: Graph, layer: Layer, target: Target) -> str:
    """Why Gemmini can nowhere make a copy; empty if it can."""
    if not isinstance(layer, HostLayer) or not isinstance(layer.operator, Copy):
        return "it is no copy"
    read, written = layer.inputs[0], layer.outputs[0]
    if {graph.tensors[read].dtype, graph.tensors[written].dtype} != {target.element_type}:
        return f"its elements are not {target.element_type}"
    if read == written or State(written, read) in graph.states:
        return "it reads where it writes"
    rows = moved_rows(layer.operator.loops, target)
    if rows is None:
        return "no elements adjoin in both tensors"
    steps = [
        step for access in rows.loops.accesses for step in zip(rows.loops.shape, access.strides, strict=True)
    ]
    if any(stride <= 0 for extent, stride in steps if extent > 1):
        return "its rows do not lie one after the other"
    if target.max_block_len * target.side > target.scratchpad_rows:
        return "the rows of a command exceed the scratchpad"
    return ""


def check_copies(schedule: Decision) -> None:
    """Check that Gemmini can make the copies that the schedule says.

    Raises:
        ScheduleError: one that it cannot, naming the layer.
    """
    for name in sorted(schedule.copies):
        if name not in schedule.graph.by_name:
            raise ScheduleError(f"{name}: is copied by Gemmini but is no layer of the graph")
        if not schedule.is_executable:
            raise ScheduleError(f"{name}: only schedules that are executed say who copies")
        reason = obstacle_to_moving(schedule, name)
        if reason:
            raise ScheduleError(f"{name}: cannot be copied by Gemmini: {reason}")


def copied_rows(layer: Layer, target: Target) -> MovedRows:
    """Of a copy that Gemmini can make."""
    assert isinstance(layer, HostLayer) and isinstance(layer.operator, Copy)
    moved = moved_rows(layer.operator.loops, target)
    assert moved is not None
    return moved


def stored_by_core(layer: Layer, copies: Set[str]) -> bool:
    """Whether the core stores the output of a layer that runs alone."""
    return runs_on_core(layer) and layer.name not in copies


def copy_counts(graph: Graph, layer: Layer, target: Target) -> LayerCounts:
    """What a copy makes core and Gemmini do.

    All weights of the network pass through the cache after an input that no layer computes.
    """
    moved = copied_rows(layer, target)
    rows, commands = math.prod(moved.loops.shape), moved.commands(target)
    nbytes = rows * moved.length * target.element_bytes
    touched = 1 if graph.producers(layer.inputs[0]) else graph.weight_bytes
    reuse = cache.Reuse(ceil_div(nbytes, cache.LINE_BYTES), (), (), max(touched, 1))
    pitch = moved.loops.inputs[0].strides[-1] * target.element_bytes
    return LayerCounts(
        visits=1,
        commands=2 * commands,
        loops=0,
        tiles=commands,
        full_rows=0,
        blocks=0,
        short_strips=(),
        requests=rows * segment_requests(moved.length, pitch, target),
        copies=0,
        loaded_bytes=nbytes,
        missed_lines=cache.misses(reuse, target.last_level_cache_bytes),
        stored_rows=rows * ceil_div(moved.length, target.side),
    )
