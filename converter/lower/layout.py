"""Operators that only rearrange: they become strides, or a copy where strides cannot say it."""

from __future__ import annotations

from converter.lower.context import Lowering
from converter.plan.plan import Step


def lower_reshape(lowering: Lowering, step: Step) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze, Identity: the inferred output shape says it all."""
    value = lowering.value(step.head.inputs[0])
    lowering.values[step.output] = lowering.reshaped(value, lowering.program.shapes[step.output])


def lower_transpose(lowering: Lowering, step: Step) -> None:
    """Transpose: axes are permuted, nothing moves."""
    value = lowering.value(step.head.inputs[0])
    order = step.head.attributes.get("perm", tuple(reversed(range(len(value.axes)))))
    lowering.values[step.output] = value.transpose(order)


def finish_outputs(lowering: Lowering) -> tuple[str, ...]:
    """Names of the graph outputs: each a whole tensor that stores exactly one ONNX output.

    An output that is a view, shuffles an axis, has another scale than its tensor, or is a graph input
    is copied.
    """
    names: list[str] = []
    for value in lowering.program.outputs:
        stored = lowering.value(value)
        tensor = lowering.graph.tensors[stored.tensor]
        whole = lowering.is_whole(stored) and tensor.scale == stored.scale
        row_major = stored.is_row_major
        shuffled = not row_major and stored.storage_order() is None
        if (
            not whole
            or shuffled
            or stored.tensor in (*lowering.graph.inputs, *names)
            or tensor.data is not None
        ):
            stored = lowering.copy(stored, name="out")
            row_major = True
        lowering.rename(stored, value, row_major)
        names.append(stored.tensor)
    return tuple(names)
