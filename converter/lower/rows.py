"""Operators along one axis: softmax, normalisations, reductions, arg max."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fadiff.converter.ir import host
from fadiff.converter.ir.host import Rows
from fadiff.converter.ir.operators import reduction_axes
from fadiff.converter.ir.program import Node
from fadiff.converter.ir.strided import StridedView, merged
from fadiff.converter.lower import constraints as limits
from fadiff.converter.lower.constraints import Operator
from fadiff.converter.lower.context import Lowering
from fadiff.converter.plan.norms import Norm
from fadiff.converter.plan.plan import Step, blanked

_EXPONENTIAL_ONE = 2**24
"""exp(0) in tables: so fine that 100,000 small terms add up, and exact in float32."""
_LOGARITHM_STEPS = 16
_MOST_THRESHOLDS = 255 * _LOGARITHM_STEPS + 1  # beyond that every result saturates


def rows_of(lowering: Lowering, value: StridedView, axes: Sequence[int]) -> tuple[StridedView, Rows]:
    """A whole tensor with `axes` as its row: the value, or a copy with them last where they are no run."""
    factors = sorted((f for axis in axes for f in merged(value.axes[axis])), key=lambda f: -f[1])
    run = merged(factors)
    in_order = list(run) == list(merged(f for axis in axes for f in merged(value.axes[axis])))
    if not (lowering.is_whole(value) and len(run) <= 1 and in_order):
        rest = [i for i in range(len(value.axes)) if i not in axes]
        value = lowering.copy(value, (*rest, *axes), "rows")
        run = ((math.prod(value.shape[i] for i in axes), 1),)
    length, inner = run[0] if run else (1, 1)
    return value, Rows(value.size // (length * inner), length, inner)


def _softmax_axes(node: Node, rank: int) -> tuple[int, ...]:
    """The axes of a softmax's row: one, before opset 13 all from it on."""
    axis = int(node.attributes.get("axis", -1 if node.version >= 13 else 1)) % rank
    return (axis,) if node.version >= 13 else tuple(range(axis, rank))


def _exponentials(lowering: Lowering, step: Step, scale: float) -> str:
    """Table of exp(n scale) for the differences n = -255 to 0 to a largest int8 number; 2^24 is one."""
    steps = np.arange(-255, 1, dtype=np.float64) * scale
    table = np.rint(_EXPONENTIAL_ONE * np.exp(steps)).astype(np.int32)
    return lowering.graph.tensor(f"{step.name}.exp", (256,), "int32", None, table)


def lower_log_softmax(lowering: Lowering, step: Step) -> None:
    """LogSoftmax: difference to the largest, less the logarithm of the sum of exponentials.

    The logarithm, in 1/16 of an output step, is the number of thresholds that the (integer) sum reaches.
    """
    value = lowering.value(step.source)
    value, rows = rows_of(lowering, value, _softmax_axes(step.head, len(value.axes)))
    out = lowering.output_like(step, value)
    inputs = [value.tensor]
    if not lowering.is_float:
        inputs.append(_exponentials(lowering, step, value.scale or 1.0))
        unit = (out.scale or 1.0) / _LOGARITHM_STEPS
        count = min(math.ceil(math.log(rows.length) / unit) + 1, _MOST_THRESHOLDS)
        levels = np.exp((np.arange(count) + 0.5) * unit)
        thresholds = np.ceil(_EXPONENTIAL_ONE * levels[levels <= rows.length + 1]).astype(np.float32)
        name = f"{step.name}.thresholds"
        inputs.append(lowering.graph.tensor(name, thresholds.shape, "float32", None, thresholds))
    ratio = float(np.float32(value.scale or 1.0) / np.float32(out.scale or 1.0))
    lowering.host(step, host.LogSoftmax(rows, ratio, 1 / _LOGARITHM_STEPS), out, *inputs)


def lower_softmax(lowering: Lowering, step: Step) -> None:
    """Softmax over one axis (before opset 13: over all axes from it on), with a constant mask if fused."""
    value = lowering.value(step.source)
    axes = _softmax_axes(step.head, len(value.axes))
    stored, rows = rows_of(lowering, value, axes)
    if step.mask and (rows.inner > 1 or stored.storage_order() is None):
        stored, rows = rows_of(lowering, lowering.copy(value, None, "rows"), axes)
    out = lowering.output_like(step, stored)
    inputs = [stored.tensor]
    if not lowering.is_float:
        inputs.append(_exponentials(lowering, step, value.scale or 1.0))
    mask_rows = 0
    if step.mask in lowering.program.constants:
        mask = _mask(lowering, step, stored)
        inputs.append(lowering.graph.tensor(f"{step.name}.mask", mask.shape, "int8", None, mask))
        mask_rows = len(mask)
    elif step.mask:
        computed = _computed_mask(lowering, step, stored)
        inputs.append(computed.tensor)
        mask_rows = computed.size // rows.length
    scale = float(np.float32(1.0) / np.float32(out.scale or 1.0))
    lowering.host(step, host.Softmax(rows, scale, mask_rows), out, *inputs)


def _computed_mask(lowering: Lowering, step: Step, value: StridedView) -> StridedView:
    """The condition that blanks, one row after the other as the scores are stored.

    Outer axes that share the rows are left out: the softmax uses mask rows in turn.
    """
    order = value.storage_order()
    assert order is not None
    mask = lowering.value(step.mask).expand(value.shape).transpose(order)
    shared = 0
    while shared < len(order) - 1 and all(stride == 0 for _, stride in merged(mask.axes[shared])):
        shared += 1
    mask = replace(mask, axes=mask.axes[shared:])
    return mask if lowering.is_dense(mask) else lowering.copy(mask, name="rows")


def _mask(lowering: Lowering, step: Step, value: StridedView) -> np.ndarray:
    """Blanked positions [rows, length]: row r of the softmax uses mask row r modulo rows.

    The softmax is along the last axis, stored innermost; a mask that other axes share is kept once
    if these are stored in order, else written out for every row.
    """
    blank = blanked(lowering.program, step).astype(np.int8)
    order = value.storage_order()
    assert order is not None
    moving = [axis for axis in order if value.shape[axis] > 1]
    if moving != sorted(moving):
        stored = np.broadcast_to(blank, value.shape).transpose(order)
        return np.ascontiguousarray(stored.reshape(-1, value.shape[-1]))
    blank = blank.reshape((1,) * (len(value.axes) - blank.ndim) + blank.shape)
    while blank.ndim > 2 and blank.shape[0] == 1:
        blank = blank[0]
    length = value.shape[-1]
    rows_shape = value.shape[len(value.axes) - blank.ndim : -1]
    return np.ascontiguousarray(np.broadcast_to(blank, (*rows_shape, length)).reshape(-1, length))


def lower_layer_norm(lowering: Lowering, step: Step) -> None:
    """LayerNormalization and RMSNormalization over the axes from `axis` on."""
    node = step.head
    value = lowering.value(node.inputs[0])
    rank = len(value.axes)
    axis = int(node.attributes.get("axis", -1)) % rank
    stored = rows_of(lowering, value, tuple(range(axis, rank)))
    centre = node.op not in ("RMSNormalization", "SimplifiedLayerNormalization")
    shape = lowering.program.shapes[node.inputs[0]][axis:]
    gamma = _vector(lowering, node.input(1), shape, 1.0)
    beta = _vector(lowering, node.input(2) if centre else "", shape, 0.0)
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    _normalise(lowering, step, *stored, (gamma, beta), epsilon, centre=centre, per_inner=False)


def lower_norm(lowering: Lowering, step: Step, norm: Norm) -> None:
    """A normalisation that the exporter spelled out."""
    value = lowering.value(norm.source)
    by_channel = norm.per_channel
    value, rows = _channel_rows(lowering, value) if by_channel else rows_of(lowering, value, norm.axes)
    count = rows.inner if by_channel else rows.length
    gamma, beta = (np.ascontiguousarray(np.broadcast_to(a, (count,))) for a in (norm.gamma, norm.beta))
    _normalise(
        lowering, step, value, rows, (gamma, beta), norm.epsilon, centre=norm.centred, per_inner=by_channel
    )


def lower_instance_norm(lowering: Lowering, step: Step) -> None:
    """InstanceNormalization: every channel of every image over its pixels."""
    node = step.head
    value, rows = _channel_rows(lowering, lowering.value(node.inputs[0]))
    gamma = _vector(lowering, node.input(1), (rows.inner,), 1.0)
    beta = _vector(lowering, node.input(2), (rows.inner,), 0.0)
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    _normalise(lowering, step, value, rows, (gamma, beta), epsilon, centre=True, per_inner=True)


def _channel_rows(lowering: Lowering, value: StridedView) -> tuple[StridedView, Rows]:
    """A value N C ... stored channels last, with all its pixels as a row."""
    rank, channels = len(value.axes), value.shape[1]
    order = (0, *range(2, rank), 1)
    if not lowering.is_dense(value, order):
        value = lowering.copy(value, order, "nhwc")
    return value, Rows(value.shape[0], math.prod(value.shape[2:]), channels)


def _normalise(
    lowering: Lowering,
    step: Step,
    value: StridedView,
    rows: Rows,
    affine: tuple[np.ndarray, np.ndarray],
    epsilon: float,
    *,
    centre: bool,
    per_inner: bool,
) -> None:
    out = lowering.output_like(step, value)
    scale = value.scale or 1.0
    inputs = [value.tensor]
    for name, data in (("gamma", affine[0]), ("beta", affine[1])):
        steps = (data.astype(np.float64) / (out.scale or 1.0)).astype(np.float32)
        inputs.append(lowering.graph.tensor(f"{step.name}.{name}", steps.shape, "float32", None, steps))
    operator = host.LayerNorm(
        rows,
        center=centre,
        per_inner=per_inner,
        epsilon=epsilon,
        variance_scale=scale * scale / (rows.length * rows.length),
        unit=scale / rows.length,
    )
    lowering.host(step, operator, out, *inputs)


def _vector(lowering: Lowering, name: str, shape: Sequence[int], default: float) -> np.ndarray:
    """A constant that broadcasts to `shape`, flat; `default` where there is none."""
    array = lowering.program.constant(name)
    content = np.asarray(default if array is None else array, np.float32)
    content = content.reshape(content.shape[max(0, content.ndim - len(shape)) :])  # (1, 1, 8) for rows of 8
    return np.ascontiguousarray(np.broadcast_to(content, tuple(shape)).reshape(-1))


def lower_reduce(lowering: Lowering, step: Step) -> None:
    """ReduceSum, ReduceMean, ReduceMax, ReduceMin over any axes."""
    node = step.head
    value = lowering.value(node.inputs[0])
    axes = reduction_axes(lowering.program, node) or ()
    source, rows = rows_of(lowering, value, axes)
    function = {"ReduceMean": "sum", "GlobalMaxPool": "max"}.get(
        node.op, node.op.removeprefix("Reduce").lower()
    )
    kept = [i for i in range(len(value.axes)) if i not in axes]
    stored = sorted(kept, key=lambda i: -_stride(source, i))
    if not _is_stored_in(source, stored):  # an axis split by a shuffle: no order of axes says it
        source, rows = rows_of(lowering, lowering.copy(value, (*kept, *axes), "rows"), axes)
        stored = kept
    shape = lowering.program.shapes[step.output]
    keeps = len(shape) == len(value.axes)
    order = [*stored, *axes] if keeps else [kept.index(i) for i in stored]
    out = lowering.output(step, order)
    ratio = np.float32(value.scale or 1.0) / np.float32(out.scale or 1.0)
    if node.op == "ReduceMean":
        ratio = ratio / np.float32(rows.length)
    lowering.host(step, host.Reduce(rows, function, float(ratio)), out, source)


def _is_stored_in(value: StridedView, axes: Sequence[int]) -> bool:
    """Whether `axes` lie in memory in this order, each in one piece."""
    strides = [stride for axis in axes for _, stride in merged(value.axes[axis])]
    return strides == sorted(strides, reverse=True)


def _stride(value: StridedView, axis: int) -> int:
    factors = merged(value.axes[axis])
    return factors[0][1] if factors else 0


def lower_arg_max(lowering: Lowering, step: Step) -> None:
    """ArgMax, ArgMin over one axis: integer indices."""
    node = step.head
    value = lowering.value(node.inputs[0])
    axis = int(node.attributes.get("axis", 0)) % len(value.axes)
    rest = [i for i in range(len(value.axes)) if i != axis]
    value = lowering.copy(value, (*rest, axis), "rows")
    out = lowering.output(step)
    operator = host.ArgMax(
        Rows(value.size // value.shape[axis], value.shape[axis], 1),
        "max" if node.op == "ArgMax" else "min",
        select_last=bool(node.attributes.get("select_last_index", 0)),
    )
    lowering.host(step, operator, out, value)


_REDUCED = (limits.known_axes, limits.float_values)
OPERATORS = (
    Operator("ArgMax", "core", lower_arg_max),
    Operator("ArgMin", "core", lower_arg_max),
    Operator(
        "InstanceNormalization", "core", lower_instance_norm, (limits.constant_inputs, limits.float_values)
    ),
    Operator(
        "LayerNormalization",
        "core",
        lower_layer_norm,
        (limits.float_values, limits.one_output, limits.constant_inputs),
    ),
    Operator("LogSoftmax", "core", lower_log_softmax, (limits.float_values,)),
    Operator("RMSNormalization", "core", lower_layer_norm, (limits.constant_inputs, limits.float_values)),
    Operator("ReduceMax", "core", lower_reduce, _REDUCED),
    Operator("ReduceMin", "core", lower_reduce, _REDUCED),
    Operator("ReduceSum", "core", lower_reduce, _REDUCED),
    Operator("Softmax", "core", lower_softmax, (limits.float_values,)),
)
