"""Slices written at positions that are computed: the new rows of a cache."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fadiff.converter.ir.host import Rows, Scatter
from fadiff.converter.ir.operators import written_positions
from fadiff.converter.ir.strided import Strided, dense
from fadiff.converter.lower.context import Lowering
from fadiff.converter.plan.plan import Step


def lower_scatter(lowering: Lowering, step: Step) -> None:
    """Data with updates at positions; it is stored as the data is, so that they can share a place."""
    node, program = step.head, lowering.program
    found = written_positions(program, node)
    assert found is not None
    positions, axis = found
    count = math.prod(program.shapes[positions])
    data = lowering.value(node.inputs[0])
    shape = data.shape
    order = (data.storage_order() if lowering.is_whole(data) else None) or tuple(range(len(shape)))
    out = lowering.output(step, order)
    updates = lowering.reshaped(lowering.value(node.inputs[2]), (*shape[:axis], count, *shape[axis + 1 :]))
    stored = tuple(shape[i] for i in order)
    place = order.index(axis)
    rows = Rows(math.prod(stored[:place]), stored[place], math.prod(stored[place + 1 :]))
    inputs = (
        _like(lowering, step, data, out, order, "data"),
        lowering.reshaped(lowering.value(positions), (count,)).tensor,
        _like(lowering, step, updates, out, order, "updates"),
    )
    lowering.host(step, Scatter(rows), out, *inputs)


def _like(
    lowering: Lowering, step: Step, value: Strided, out: Strided, order: Sequence[int], name: str
) -> str:
    """A whole tensor that holds a value as the output is stored: in its order, of its scale."""
    tensor = lowering.graph.tensors[value.tensor]
    if lowering.is_dense(value, order) and value.scale == out.scale:
        return value.tensor
    shape = tuple(value.shape[i] for i in order)
    moved = lowering.graph.tensor(f"{step.output}.{name}", shape, tensor.dtype, out.scale)
    target = dense(moved, value.shape, out.scale, order)
    lowering.rescale(value, target, f"{step.name}.{name}", step.onnx_nodes)
    return moved
