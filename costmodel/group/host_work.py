"""What an operator that runs on the core makes it do."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fadiff.converter.ir import host as ops
from fadiff.converter.ir.graph import Graph, HostLayer, Tensor
from fadiff.converter.ir.loops import Loops
from fadiff.converter.ir.recurrence import State
from fadiff.costmodel.group.fusion import Member
from fadiff.costmodel.mapping.shape import extents

OUTPUT_TAPS = 4
"""Taps of a window that rounding and storing its sum take as long as."""
COLUMN_ELEMENTS = 9
"""Elements that rounding and storing one of eight neighbouring sums or extrema takes as long as, """
SUM_ELEMENTS = 24
"""and one of a row of its own."""
RAGGED, RAGGED_AVERAGES = 3.2, 2.5
"""How many times as long max pools, column sums and extrema take, and average pools, where channels are no
whole words of eight."""
RUN_ELEMENTS = 256
"""Elements of a run of a copy that beginning it takes as long as, """
SHORT_RUN_ELEMENTS = 6
"""those of any other operator,"""
ROW_ELEMENTS = 13
"""what a row's sums and factors take of its own operator, """
ROW_OF_EXPONENTIALS = 7
"""and what they take where the core divides beside its other work."""
ROW_OF_MOMENTS = 200
"""Those of a row that its moments, a division and a root, take as long as."""
MASK_ELEMENTS, MASKED_ELEMENTS = 0.2, 0.08
"""Elements of a softmax that reading one of its mask takes as long as, and clearing one that is left out."""
STRIDED = 1.45
"""How many times as long an element takes where neighbours in a run are apart in memory."""
LONG_RUN = 16
"""Elements from which on a run is copied as a whole (runtime/packed.h)."""


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
    operator, per_output = _operator(graph, layer, row_by_row=bool(member.fused_inputs))
    computed = math.prod(sum(extents(axis)) for axis in member.computed)
    whole = round(graph.tensors[layer.outputs[0]].size * per_output)
    return HostWork(operator, whole * computed // math.prod(member.size), visits)


def _operator(graph: Graph, layer: HostLayer, *, row_by_row: bool) -> tuple[str, float]:
    """Name in the price list, and elements that count for each one written; a mask is read once, or for every
    row."""
    out, written = graph.tensors[layer.outputs[0]].shape, graph.tensors[layer.outputs[0]].size
    read = graph.tensors[layer.inputs[0]].size if layer.inputs else 0
    kept_float = f"float_{layer.op}"
    match layer.operator:
        case ops.MaxPool(window=window) if graph.is_kept_float(layer):
            return kept_float, math.prod(window.kernel) + OUTPUT_TAPS
        case ops.Binary(loops=loops) | ops.Formula(loops=loops) | ops.ScaleShift(loops=loops) if (
            graph.is_kept_float(layer)
        ):
            return kept_float, _walked(loops) / written
        case ops.MaxPool(window=window):
            return layer.op, math.prod(window.kernel) * _ragged(graph, out[-1])
        case ops.AveragePool(window=window):
            taps = math.prod(window.kernel) + OUTPUT_TAPS
            return layer.op, taps * _ragged(graph, out[-1], RAGGED_AVERAGES)
        case ops.GlobalAveragePool():
            channels = graph.tensors[layer.inputs[0]].shape[-1]
            return layer.op, (read / written + COLUMN_ELEMENTS) * _ragged(graph, channels)
        case ops.Reduce(rows=rows) if rows.inner > 1:
            return layer.op, (rows.length + COLUMN_ELEMENTS) * _ragged(graph, rows.inner)
        case ops.Reduce(rows=rows):
            return layer.op, rows.length + SUM_ELEMENTS
        case ops.ArgMax():
            return layer.op, read / written
        case ops.LayerNorm(rows=rows, center=center):
            return layer.op if center else "rms_norm", 1 + ROW_ELEMENTS / rows.length
        case ops.Softmax(mask_rows=masks, rows=rows) | ops.Exponentials(mask_rows=masks, rows=rows) if masks:
            of_mask = MASK_ELEMENTS * (1 if row_by_row else masks / rows.outer)
            left = _left(graph.tensors[layer.inputs[-1]], rows, masks)
            return layer.op, left + of_mask + _row_elements(layer) / rows.length
        case ops.Softmax(rows=rows) | ops.LogSoftmax(rows=rows) | ops.Exponentials(rows=rows):
            return layer.op, 1 + _row_elements(layer) / rows.length
        case ops.Moments(rows=rows):
            return layer.op, rows.outer * ROW_OF_MOMENTS / written
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
            return ("division" if _divides(operator) else layer.op), _walked(loops) / written
    return layer.op, 1


def _row_elements(layer: HostLayer) -> int:
    return ROW_OF_EXPONENTIALS if isinstance(layer.operator, ops.Exponentials) else ROW_ELEMENTS


def _left(mask: Tensor, rows: ops.Rows, masks: int) -> float:
    """What counts of an element of a row: less where a constant mask leaves out the last ones, as of later
    tokens."""
    if mask.data is None:
        return 1
    out = np.asarray(mask.data).reshape(masks, rows.length) != 0
    only_last = bool((out[:, 1:] >= out[:, :-1]).all())
    return 1 - (1 - MASKED_ELEMENTS) * float(out.mean()) * only_last


def _ragged(graph: Graph, channels: int, times: float = RAGGED) -> float:
    return times if graph.element_type == "int8" and channels % 8 else 1


def _walked(loops: Loops) -> float:
    """Elements, with what runs and strides take besides."""
    elements, (runs, dense) = math.prod(loops.shape), _runs(loops)
    return elements * (1 if dense else STRIDED) + runs * SHORT_RUN_ELEMENTS


def _runs(loops: Loops) -> tuple[int, bool]:
    """Runs along the innermost axis, and whether elements of one are neighbours in every operand."""
    if not loops.shape:
        return 1, True
    axis = innermost(loops.shape)
    dense = all(access.strides[axis] == 1 for access in loops.accesses)
    return math.prod(loops.shape) // loops.shape[axis], dense


def innermost(shape: tuple[int, ...]) -> int:
    """The axis of the innermost loop, which should be long: elements are independent."""
    last = len(shape) - 1
    return last if shape[last] >= LONG_RUN else max(range(last, -1, -1), key=lambda axis: shape[axis])


def _divides(operator: ops.StridedOperator) -> bool:
    match operator:
        case ops.Binary(function="div") | ops.Integer(function="div" | "modulo" | "remainder"):
            return True
    return False


def _copied(loops: Loops) -> tuple[str, int]:
    elements, (runs, dense) = math.prod(loops.shape), _runs(loops)
    if elements < LONG_RUN * runs or not dense:
        return "copy_elements", elements
    return "copy_runs", elements + RUN_ELEMENTS * runs
