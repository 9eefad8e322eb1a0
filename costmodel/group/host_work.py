"""What an operator that runs on the core makes it do."""

from __future__ import annotations

import math
from dataclasses import dataclass

from converter.ir.graph import Graph, HostLayer
from converter.ir.host import (
    ArgMax,
    AveragePool,
    Binary,
    Copy,
    FloatMaxPool,
    FloatProduct,
    GlobalAveragePool,
    Integer,
    MaxPool,
    Reduce,
    StridedOperator,
)
from costmodel.group.fusion import Member
from costmodel.mapping.shape import extents


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
        case MaxPool(window=window) | FloatMaxPool(window=window) | AveragePool(window=window):
            return layer.op, math.prod(window.kernel)
        case FloatProduct(dims=dims):
            return layer.op, math.prod(dims) / written
        case GlobalAveragePool() | Reduce() | ArgMax():
            return layer.op, graph.tensors[layer.inputs[0]].size / written
        case StridedOperator(loops=loops) as operator:
            return _strided(operator), math.prod(loops.shape) / written  # it may write a part
    return layer.op, 1


def _strided(operator: StridedOperator) -> str:
    match operator:
        case Copy(loops=loops):
            in_runs = all(access.strides[-1:] in ((), (1,)) for access in loops.accesses)
            return "copy_runs" if in_runs else "copy_elements"
        case Binary(function="div") | Integer(function="div" | "modulo" | "remainder"):
            return "division"
    return operator.op
