"""MatMul in all its forms: constant or computed operands, batched, broadcast, transposed."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from fadiff.converter.ir.graph import TensorCoreLayer, View
from fadiff.converter.ir.loops import Dims
from fadiff.converter.ir.strided import Axis, Row, StridedView, aligned, dense, joined, merged
from fadiff.converter.lower import constraints as limits
from fadiff.converter.lower.constraints import Operator
from fadiff.converter.lower.context import Lowering
from fadiff.converter.lower.products import lower_matrix_product
from fadiff.converter.plan.plan import Step

_MOST_LAYERS = 64


def lower_matmul(lowering: Lowering, step: Step) -> None:
    """A constant matrix on the right is a GEMM over all rows; everything else is batched (op bmm)."""
    node = step.head
    weight = lowering.weight(node.inputs[1])
    left = lowering.value(node.inputs[0])
    if weight is not None and weight.data.ndim == 2:
        lower_matrix_product(lowering, step, left, weight)
        return
    right = lowering.value(node.inputs[1])
    vector_left, vector_right = len(left.axes) == 1, len(right.axes) == 1
    order = lowering.preferred_order(step.output)
    shape = lowering.program.shapes[step.output]
    if not vector_right and order and _stride(dense("", shape, None, order).axes[-1]) != 1:
        order = None  # the array writes channels side by side
    out = lowering.output(step, order)
    target = out
    if vector_left:
        left, target = replace(left, axes=((), *left.axes)), _insert(target, -1 if not vector_right else 0)
    if vector_right:
        right, target = replace(right, axes=(*right.axes, ())), replace(target, axes=(*target.axes, ()))
    batched_product(lowering, step, left, right, target)


def _insert(value: StridedView, position: int) -> StridedView:
    axes = list(value.axes)
    axes.insert(len(axes) + position if position < 0 else position, ())
    return replace(value, axes=tuple(axes))


def batched_product(
    lowering: Lowering, step: Step, left: StridedView, right: StridedView, out: StridedView
) -> None:
    """out[..., M, K] = left[..., M, C] right[..., C, K], strides as they are where the array can follow.

    The longest batch axis becomes G (or N where the right operand is broadcast); further batch
    axes whose strides do not merge are unrolled into layers of their own.
    """
    batch = out.shape[:-2]
    left = left.expand((*batch, *left.shape[-2:]))
    right = right.expand((*batch, *right.shape[-2:]))
    left = _with_runs(lowering, left, rows=True)
    right = _with_runs(lowering, right, rows=False)
    loops = _loops(left, right, out)
    if loops is None:
        left, right = lowering.copy(left), lowering.copy(right)
        loops = _loops(left, right, out)
        assert loops is not None
    c, k = left.shape[-1], right.shape[-1]
    c_right, k_right = _stride(right.axes[-2]), _stride(right.axes[-1])
    dims = Dims(loops.groups[0], loops.rows[0][0], k, c, loops.rows[1][0], loops.rows[2][0])
    bias = lowering.bias(step, dims.G, dims.K)
    for number, (a, b, o) in enumerate(loops.offsets):
        lowering.graph.tensor_core(
            TensorCoreLayer(
                step.name if number == 0 else f"{step.name}.{number}",
                "bmm",
                dims,
                _view(left, a, loops, 0, 1),
                View(right.tensor, right.offset + b, (loops.groups[1][1], 0, 0, c_right, k_right)),
                _view(out, o, loops, 1, _stride(out.axes[-1])),
                (dims.P, dims.Q),
                bias=bias,
                activation=step.activation,
                onnx_nodes=step.onnx_nodes,
            ),
            scales=(left.scale or 1.0, right.scale or 1.0, out.scale or 1.0),
        )


@dataclass(frozen=True)
class _Loops:
    """How the axes of a product become G and N, P, Q; `offsets` has one entry per unrolled layer."""

    groups: Row
    rows: tuple[Row, ...]
    offsets: tuple[tuple[int, ...], ...]


def _loops(left: StridedView, right: StridedView, out: StridedView) -> _Loops | None:
    batch = aligned([value.axes[:-2] for value in (left, right, out)])
    rows = aligned([(value.axes[-2],) for value in (left, out)])
    if batch is None or rows is None or len(rows) > 3 or not _single(out.axes[-1]):
        return None
    batch = joined(batch)
    shared = [row for row in batch if row[1][1] == 0]
    separate = [row for row in batch if row[1][1] != 0]
    pixels = joined([*((size, (s[0], s[2])) for size, s in shared), *rows])
    while len(pixels) > 3:
        size, (a, o) = pixels.pop(0)
        separate.append((size, (a, 0, o)))
    separate.sort(key=lambda row: -row[0])
    groups = separate[0] if separate else (1, (0, 0, 0))
    unrolled = separate[1:]
    if math.prod(size for size, _ in unrolled) > _MOST_LAYERS:
        return None
    offsets = tuple(
        tuple(sum(i * s[value] for i, (_, s) in zip(index, unrolled, strict=True)) for value in range(3))
        for index in itertools.product(*(range(size) for size, _ in unrolled))
    )
    one: Row = (1, (0, 0))
    lone = [one] if len(pixels) == 1 else []  # rows of one product are P
    return _Loops(groups, (*lone, *pixels, *[one] * 3)[:3], offsets)


def _view(value: StridedView, offset: int, loops: _Loops, operand: int, last: int) -> View:
    group = loops.groups[1][2 if operand else 0]
    n, p, q = (strides[operand] for _, strides in loops.rows)
    return View(value.tensor, value.offset + offset, (group, n, p, q, last))


def _with_runs(lowering: Lowering, value: StridedView, *, rows: bool) -> StridedView:
    """The value itself if the array can read it, else a dense copy.

    Left operand: the reduction axis must have stride 1.  Right: reduction and column axis must
    each be one run, one of them with stride 1 (a transposed right operand is fine).  Neither walks rows
    with stride 0: mvin would fetch one row for all.
    """
    reduction, other = (value.axes[-1], value.axes[-2]) if rows else (value.axes[-2], value.axes[-1])
    if rows:
        fits = _single(reduction) and _stride(reduction) == 1
    else:
        fits = _single(reduction) and _single(other) and 1 in (_stride(reduction), _stride(other))
    repeats = any(stride == 0 for axis in (reduction, other) for _, stride in merged(axis))
    return value if fits and not repeats else lowering.copy(value)


def _single(axis: Axis) -> bool:
    return len(merged(axis)) <= 1


def _stride(axis: Axis) -> int:
    factors = merged(axis)
    return factors[0][1] if factors else 1


OPERATORS = (Operator("MatMul", "array", lower_matmul, (limits.float_values, limits.bare_matrices)),)
