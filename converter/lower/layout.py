"""Operators that only rearrange: they become strides, or a copy where strides cannot say it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fadiff.converter.ir.graph import AxisScales, Part
from fadiff.converter.ir.kinds import Kind, named
from fadiff.converter.ir.strided import Strided
from fadiff.converter.lower import constraints as limits
from fadiff.converter.lower.constraints import Operator
from fadiff.converter.lower.context import Lowering
from fadiff.converter.lower.movement import merged_parts
from fadiff.converter.plan.inputs import UNCHANGED, Affine, affine_of
from fadiff.converter.plan.plan import Step


def lower_reshape(lowering: Lowering, step: Step) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze, Identity: the inferred output shape says it all."""
    value = lowering.value(step.head.inputs[0])
    lowering.values[step.output] = lowering.reshaped(value, lowering.program.shapes[step.output])


def lower_transpose(lowering: Lowering, step: Step) -> None:
    """Transpose: axes are permuted, nothing moves."""
    value = lowering.value(step.head.inputs[0])
    order = step.head.attributes.get("perm", tuple(reversed(range(len(value.axes)))))
    lowering.values[step.output] = value.transpose(order)


def meaning_along(affine: Affine, scale: float, zero: int, stored: Sequence[int], axis: int) -> AxisScales:
    """What integers of a scale and zero point mean after an affine function that varies along an axis of the
    stored shape, if at all."""
    factor, shift = (array.reshape(-1) for array in np.broadcast_arrays(affine.factor, affine.shift))
    count = stored[axis] if factor.size == 1 else 1
    parts = [
        Part(count, float(np.float32(scale * f)), float(np.float32(s - zero * scale * f)))
        for f, s in zip(factor.tolist(), shift.tolist(), strict=True)
    ]
    return AxisScales(axis, merged_parts(parts))


def finish_outputs(lowering: Lowering, ends: Mapping[str, Step]) -> tuple[str, ...]:
    """Names of the graph outputs: each a whole tensor that stores exactly one ONNX output.

    An output that is a view, shuffles an axis, has another scale than its tensor, or is a graph input
    is copied; one that is a state, too, where it is stored otherwise than the input that it becomes.
    `ends` are steps of kind output, by what they give: what the integers mean.
    """
    names: list[str] = []
    inputs = {state.output: lowering.values[state.input] for state in lowering.program.states}
    for value in lowering.program.outputs:
        stored = lowering.value(value)
        tensor = lowering.graph.tensors[stored.tensor]
        whole = lowering.is_whole(stored) and tensor.scale == stored.scale
        sizes = ([n for n in of if n > 1] for of in (tensor.shape, lowering.program.shapes[value]))
        if value in ends and len({tuple(sorted(some)) for some in sizes}) > 1:
            whole = False  # (its axes are not those that the meaning is along)
        row_major = stored.is_row_major
        shuffled = not row_major and stored.storage_order() is None
        again = inputs.get(value)
        unlike = again is not None and (stored.scale != again.scale or not _ordered_alike(stored, again))
        if (
            not whole
            or shuffled
            or unlike
            or stored.tensor in (*lowering.graph.inputs, *names)
            or tensor.data is not None
        ):
            stored = (
                lowering.copy(stored, name="out") if again is None else _stored_like(lowering, stored, again)
            )
            row_major = stored.is_row_major
        lowering.rename(stored, value, row_major)
        if value in ends or lowering.zero(value):
            _give_meaning(lowering, stored.tensor, value, ends.get(value))
        names.append(stored.tensor)
    return tuple(names)


def _give_meaning(lowering: Lowering, name: str, value: str, step: Step | None) -> None:
    """Of the integers of an output that has a zero point, or that a step of kind output ends."""
    tensor, shape = lowering.graph.tensors[name], lowering.program.shapes[value]
    affine = UNCHANGED if step is None else affine_of(lowering.program, step.nodes)
    axis, source = len(tensor.shape) - 1, value if step is None else step.source
    order = tensor.onnx_axes or tuple(range(len(shape)))
    if affine.axis is not None and shape[affine.axis] > 1:
        sizes = [shape[i] for i in order]  # (as stored, but for axes of size 1)
        inner = math.prod(sizes[order.index(affine.axis) + 1 :])
        places = enumerate(tensor.shape)
        axis = next(i for i, n in places if n > 1 and math.prod(tensor.shape[i + 1 :]) == inner)
    assert tensor.scale is not None
    along = meaning_along(affine, tensor.scale, lowering.zero(source), tensor.shape, axis)
    lowering.graph.tensors[name] = replace(tensor, along=along)


def _ordered_alike(a: Strided, b: Strided) -> bool:
    return (a.is_row_major and b.is_row_major) or (
        a.storage_order() is not None and a.storage_order() == b.storage_order()
    )


def _stored_like(lowering: Lowering, value: Strided, like: Strided) -> Strided:
    """The value in a tensor of its own with the scale and the order of axes of another one."""
    model = lowering.graph.tensors[like.tensor]
    tensor = lowering.graph.tensor(f"{value.tensor}.state", model.shape, model.dtype, model.scale)
    target = replace(like, tensor=tensor)
    lowering.rescale(value, target, f"{tensor}.copy")
    return target


OPERATORS = (
    *(
        Operator(op, "gone", lower_reshape, (limits.same_elements,))
        for op in sorted(named(Kind.RESHAPE) | {"Identity"})
    ),
    Operator("Transpose", "gone", lower_transpose),
)
