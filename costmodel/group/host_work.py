"""What an operator that runs on the core makes it do."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fadiff.converter.ir import host as ops
from fadiff.converter.ir.graph import Graph, HostLayer
from fadiff.converter.ir.loops import Loops
from fadiff.converter.ir.states import State
from fadiff.costmodel.group.fusion import Member
from fadiff.costmodel.mapping.shape import extents

OUTPUT_TAPS = 4
"""Taps of a window that rounding and storing its result take as long as."""
RUN_ELEMENTS = 256
"""Elements of a run of a copy that beginning it takes as long as."""
ROW_OF_MOMENTS = 200
"""Elements of a row that its moments, a division and a root, take as long as."""
LONG_RUN = 16
"""Elements from which on a run is copied as a whole (runtime/elementwise.h)."""


@dataclass(frozen=True)
class HostWork:
    """`operator` is one of costmodel.target.core.HOST_INSTRUCTIONS; `elements` of it, in `visits` calls."""

    operator: str
    elements: int
    visits: int


def host_work(graph: Graph, layer: HostLayer, member: Member) -> HostWork:
    """Work of a layer that is no `add`, over all its visits; none where the stores of a convolution do it."""
    visits = math.prod(len(axis) for axis in member.computed)
    if layer.op == "max_pool" and member.fused_inputs:
        return HostWork("max_pool", 0, visits)
    operator, per_output = _operator(graph, layer)
    computed = math.prod(sum(extents(axis)) for axis in member.computed)
    whole = round(graph.tensors[layer.outputs[0]].size * per_output)
    return HostWork(operator, whole * computed // math.prod(member.size), visits)


def _operator(graph: Graph, layer: HostLayer) -> tuple[str, float]:
    """Name in the price list, and elements that count for each one written."""
    written = graph.tensors[layer.outputs[0]].size
    match layer.operator:
        case ops.MaxPool(window=window) | ops.FloatMaxPool(window=window) | ops.AveragePool(window=window):
            return layer.op, math.prod(window.kernel) + OUTPUT_TAPS
        case ops.GlobalAveragePool():
            return layer.op, graph.tensors[layer.inputs[0]].size / written + OUTPUT_TAPS
        case ops.Reduce() | ops.ArgMax():
            return layer.op, graph.tensors[layer.inputs[0]].size / written
        case ops.Moments(rows=rows):
            return layer.op, 1 + rows.outer * ROW_OF_MOMENTS / written
        case ops.FloatProduct(dims=dims):
            return layer.op, math.prod(dims) / written
        case ops.Copy(loops=loops):
            name, elements = _copied(loops)
            return name, elements / written
        case ops.Gather(rows=rows) if rows.inner > 1:
            return "copy_runs", 1 + RUN_ELEMENTS / rows.inner
        case ops.Scatter(rows=rows):
            runs = rows.outer * graph.tensors[layer.inputs[1]].size
            kept = State(layer.outputs[0], layer.inputs[0]) in graph.states  # the rest is there already
            return "copy_runs", (0 if kept else 1) + runs * (rows.inner + RUN_ELEMENTS) / written
        case ops.StridedOperator(loops=loops) as operator:  # it may write a part
            return ("division" if _divides(operator) else layer.op), math.prod(loops.shape) / written
    return layer.op, 1


def _divides(operator: ops.StridedOperator) -> bool:
    match operator:
        case ops.Binary(function="div") | ops.Integer(function="div" | "modulo" | "remainder"):
            return True
    return False


def _copied(loops: Loops) -> tuple[str, int]:
    elements = math.prod(loops.shape)
    run = loops.shape[-1] if loops.shape else 1
    if run < LONG_RUN or any(access.strides[-1] != 1 for access in loops.accesses):
        return "copy_elements", elements
    return "copy_runs", elements + RUN_ELEMENTS * (elements // run)
