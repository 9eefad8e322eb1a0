"""What an operator that runs on the core makes it do."""

from __future__ import annotations

import math
from dataclasses import dataclass

from converter.ir.graph import Graph, HostLayer
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
    a, op = layer.attributes, layer.op
    if op in ("max_pool", "float_max_pool", "average_pool"):
        kernel = a["kernel"]
        assert isinstance(kernel, tuple | list)
        return op, math.prod(int(k) for k in kernel)
    if op == "float_product":
        dims = a["dims"]
        assert isinstance(dims, tuple | list)
        return op, math.prod(int(d) for d in dims) / graph.tensors[layer.outputs[0]].size
    if op in ("global_average_pool", "reduce", "arg_max"):
        return op, graph.tensors[layer.inputs[0]].size / graph.tensors[layer.outputs[0]].size
    share = 1.0
    shape, strides, out_strides = (a.get(key) for key in ("shape", "strides", "out_strides"))
    if isinstance(shape, tuple | list) and isinstance(strides, tuple | list):
        share = math.prod(shape) / graph.tensors[layer.outputs[0]].size  # it may write a part
    if op == "copy" and isinstance(strides, tuple | list) and isinstance(out_strides, tuple | list):
        in_runs = not strides or strides[-1] == out_strides[-1] == 1
        return ("copy_runs" if in_runs else "copy_elements"), share
    if a.get("function") in ("div", "modulo", "remainder"):
        return "division", share
    return op, share
