"""Reshape, Transpose, Concat, Slice, Gather, Scatter, Pad, Tile...: accesses where possible, else copies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fadiff.converter.ir.host import Fill, Gather, Rows, Scatter
from fadiff.converter.ir.kinds import Kind, named
from fadiff.converter.ir.operators import padding, parts_along, written_positions
from fadiff.converter.ir.scale import AxisScales, Part
from fadiff.converter.ir.strided import StridedView, dense
from fadiff.converter.lower import constraints as limits
from fadiff.converter.lower.constraints import Operator
from fadiff.converter.lower.context import Lowering
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.scales import in_models_order, way_out


def lower_reshape(lowering: Lowering, step: Step) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze, Identity: the inferred output shape says it all."""
    value = lowering.value(step.head.inputs[0])
    lowering.values[step.output] = lowering.reshaped(value, lowering.program.shapes[step.output])


def lower_transpose(lowering: Lowering, step: Step) -> None:
    """Transpose: axes are permuted, nothing moves."""
    value = lowering.value(step.head.inputs[0])
    order = step.head.attributes.get("perm", tuple(reversed(range(len(value.axes)))))
    lowering.values[step.output] = value.transpose(order)


def lower_concat(lowering: Lowering, step: Step) -> None:
    """Concat: every operand is written to its offset of one tensor."""
    names = [name for name in step.head.inputs if lowering.program.shapes[name] and lowering.value(name).size]
    operands = [lowering.value(name) for name in names]
    rank = len(operands[0].axes)
    axis = int(step.head.attributes.get("axis", 1)) % rank
    orders = [v.storage_order() for v in operands if lowering.is_whole(v)]
    order = next((order for order in orders if order is not None), None)
    if step.output in lowering.quantisation.joined:
        _join(lowering, step, names, axis, order)
        return
    out = lowering.output(step, order)
    for operand, part in zip(operands, _parts(out, operands, axis), strict=True):
        lowering.rescale(operand, part, step.name, step.onnx_nodes)


def _parts(out: StridedView, operands: Sequence[StridedView], axis: int) -> list[StridedView]:
    """Where operands lie in a concatenation."""
    ends = itertools.accumulate(operand.shape[axis] for operand in operands)
    found = []
    for operand, end in zip(operands, ends, strict=True):
        count = operand.shape[axis]
        part = out.slice(axis, end - count, 1, count)
        assert part is not None
        found.append(part)
    return found


def _join(
    lowering: Lowering, step: Step, names: Sequence[str], axis: int, order: tuple[int, ...] | None
) -> None:
    """A concatenation for an output: the integers of the operands as they are, each part with a meaning."""
    order = None if in_models_order(lowering.program, way_out(lowering.program, step.output)) else order
    out = lowering.output(step, order)
    operands = [lowering.value(name) for name in names]
    meanings = list[Part]()
    for name, operand, place in zip(names, operands, _parts(out, operands, axis), strict=True):
        meanings.extend(_meanings(lowering, name, operand, axis))
        lowering.move(operand, place, step.name, step.onnx_nodes)
    stored_axis = axis if order is None else order.index(axis)
    tensor = lowering.graph.tensors[out.tensor]
    along = AxisScales(stored_axis, merged_parts(meanings))
    lowering.graph.tensors[out.tensor] = replace(tensor, along=along)


def _meanings(lowering: Lowering, name: str, operand: StridedView, axis: int) -> Sequence[Part]:
    """Of the indices of an axis of an operand, which may itself be a join under another shape."""
    assert operand.scale is not None
    source = lowering.graph.tensors[operand.tensor]
    if source.along is None or name not in lowering.quantisation.joined:
        offset = float(np.float32(0.0 - operand.scale * lowering.zero(name)))
        return (Part(operand.shape[axis], operand.scale, offset),)
    found = parts_along(source.shape, source.along.axis, operand.shape, axis)
    assert found is not None
    times, repeats = found
    return tuple(replace(part, count=part.count * times) for part in source.along.parts) * repeats


def merged_parts(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Neighbours of one meaning as one part."""
    runs = itertools.groupby(parts, key=lambda part: (part.scale, part.offset))
    return tuple(Part(sum(part.count for part in run), *meaning) for meaning, run in runs)


def lower_slice(lowering: Lowering, step: Step) -> None:
    """Slice with constant bounds; a negative step is copied, as no view runs backwards."""
    node, program = step.head, lowering.program
    value = lowering.value(node.inputs[0])
    starts, ends = (program.constants[v].tolist() for v in node.inputs[1:3])
    axes = program.constants[node.input(3)].tolist() if node.input(3) else range(len(starts))
    steps = program.constants[node.input(4)].tolist() if node.input(4) else [1] * len(starts)
    for axis, start, end, stride in zip(axes, starts, ends, steps, strict=True):
        axis %= len(value.axes)
        picked = range(*slice(start, end, stride).indices(value.shape[axis]))
        value = take_range(lowering, value, axis, picked)
    lowering.values[step.output] = value


def take_range(lowering: Lowering, value: StridedView, axis: int, picked: range) -> StridedView:
    """The given indices of an axis as a view, through a dense copy where strides cannot say it."""
    if picked.step < 0 and len(picked) > 1:
        part = take_range(lowering, value, axis, picked[::-1])
        backwards = lowering.sliced(part, axis, len(picked) - 1, -1, len(picked))
        return lowering.copy(backwards, name="reversed")
    return lowering.sliced(value, axis, picked.start, picked.step, len(picked))


def lower_split(lowering: Lowering, step: Step) -> None:
    """Split: every output is a view of the input."""
    node = step.head
    value = lowering.value(node.inputs[0])
    axis = int(node.attributes.get("axis", 0)) % len(value.axes)
    start = 0
    for output in node.outputs:
        count = lowering.program.shapes[output][axis]
        if not count:  # nothing reads it
            continue
        lowering.values[output] = take_range(lowering, value, axis, range(start, start + count))
        start += count


def lower_gather(lowering: Lowering, step: Step) -> None:
    """Gather: evenly spaced constant indices are a view, others op `gather`."""
    node = step.head
    value = lowering.value(node.inputs[0])
    axis = int(node.attributes.get("axis", 0)) % len(value.axes)
    indices = lowering.program.constant(node.inputs[1])
    if indices is not None and indices.ndim <= 1 and indices.size:
        wrapped = [int(i) % value.shape[axis] for i in indices.reshape(-1)]
        stride = wrapped[1] - wrapped[0] if len(wrapped) > 1 else 1
        even = stride > 0 and all(b - a == stride for a, b in itertools.pairwise(wrapped))
        if even:
            picked = range(wrapped[0], wrapped[-1] + 1, stride)
            part = take_range(lowering, value, axis, picked)
            if indices.ndim == 0:
                part = replace(part, axes=(*part.axes[:axis], *part.axes[axis + 1 :]))
            lowering.values[step.output] = part
            return
    if indices is not None:
        data = (indices % value.shape[axis]).astype(np.int32)
        name = lowering.graph.tensor(f"{step.name}.indices", data.shape, "int32", None, data)
    else:
        stored = lowering.value(node.inputs[1])
        name = (stored if lowering.is_dense(stored) else lowering.copy(stored)).tensor
    gather(lowering, step, value, axis, name, lowering.output(step))


def gather(
    lowering: Lowering, step: Step, value: StridedView, axis: int, indices: str, out: StridedView
) -> None:
    """out[..., j..., ...] = value[..., indices[j...], ...] between row-major tensors."""
    if not lowering.is_dense(value):
        value = lowering.copy(value)
    # from the shape: strides do not tell where an axis of size one stands
    rows = Rows(math.prod(value.shape[:axis]), value.shape[axis], math.prod(value.shape[axis + 1 :]))
    lowering.host(step, Gather(rows), out, value, indices)


def lower_expand(lowering: Lowering, step: Step) -> None:
    """Expand: strides of zero."""
    shape = lowering.program.shapes[step.output]
    lowering.values[step.output] = lowering.value(step.head.inputs[0]).expand(shape)


def lower_tile(lowering: Lowering, step: Step) -> None:
    """Tile with constant repeats: strides of zero."""
    value = lowering.value(step.head.inputs[0])
    repeats = lowering.program.constants[step.head.inputs[1]].tolist()
    axes = tuple(((int(r), 0), *axis) for r, axis in zip(repeats, value.axes, strict=True))
    lowering.values[step.output] = replace(value, axes=axes)


def lower_pad(lowering: Lowering, step: Step) -> None:
    """Pad: constant (fill, then copy), edge, reflect and wrap (gather along each axis)."""
    node, program = step.head, lowering.program
    value = lowering.value(node.inputs[0])
    rank = len(value.axes)
    found = padding(program, node)
    assert found is not None
    begin, end, fill = found
    mode = node.attributes.get("mode", "constant")
    if mode != "constant":  # edge, reflect, wrap: numpy's names, too
        _pad_by_index(lowering, step, value, begin, end, mode)
        return
    kept = [
        range(max(0, -before), size + min(0, after))
        for before, after, size in zip(begin, end, value.shape, strict=True)
    ]
    nothing_left = not all(kept)  # all that a negative pad leaves is padding
    for axis, picked in enumerate(() if nothing_left else kept):
        value = take_range(lowering, value, axis, picked)
    order = value.storage_order() if lowering.is_whole(value) else None
    out = lowering.output(step, order)
    operator = Fill(_element(lowering, fill, out.scale))
    lowering.graph.host(f"{step.name}.fill", operator, (), (out.tensor,), step.onnx_nodes)
    if nothing_left:
        return
    target = out
    for axis in range(rank):
        inner = target.slice(axis, max(0, begin[axis]), 1, value.shape[axis])
        assert inner is not None
        target = inner
    lowering.rescale(value, target, step.name, step.onnx_nodes)


def _element(lowering: Lowering, value: float, scale: float | None) -> float:
    """A number as an element: rounded and saturated where elements are integers."""
    if lowering.is_float:
        limits = np.finfo(np.float32)
        return float(np.clip(np.float32(value), limits.min, limits.max))
    return int(np.clip(np.nan_to_num(np.rint(value / (scale or 1.0))), -128, 127))


def _pad_by_index(
    lowering: Lowering, step: Step, value: StridedView, begin: list[int], end: list[int], mode: str
) -> None:
    padded = [i for i in range(len(begin)) if begin[i] or end[i]]
    if not padded:
        lowering.values[step.output] = value
    for axis in padded:
        size = value.shape[axis]
        low, high = max(0, begin[axis]), max(0, end[axis])
        index = np.pad(np.arange(size, dtype=np.int32), (low, high), mode=mode)  # type: ignore[call-overload]
        index = index[max(0, -begin[axis]) : len(index) - max(0, -end[axis])]
        value = gather_axis(lowering, step, value, axis, index, last=axis == padded[-1])


def gather_axis(
    lowering: Lowering, step: Step, value: StridedView, axis: int, index: np.ndarray, *, last: bool
) -> StridedView:
    """One axis picked by constant indices; the last of several writes the step's output."""
    shape = tuple(len(index) if i == axis else size for i, size in enumerate(value.shape))
    name = lowering.graph.tensor(f"{step.name}.indices", index.shape, "int32", None, index.astype(np.int32))
    if last:
        out = lowering.output(step)
    else:
        out = dense(
            lowering.graph.tensor(f"{step.output}.partial", shape, lowering.element, value.scale),
            shape,
            value.scale,
        )
    gather(lowering, step, value, axis, name, out)
    return out


def lower_depth_to_space(lowering: Lowering, step: Step) -> None:
    """DepthToSpace and SpaceToDepth: reshapes and transposes of the access."""
    node = step.head
    value = lowering.value(node.inputs[0])
    n, c, h, w = value.shape
    b = int(node.attributes["blocksize"])
    if node.op == "SpaceToDepth":
        blocks, order = (n, c, h // b, b, w // b, b), (0, 3, 5, 1, 2, 4)
    elif node.attributes.get("mode", "DCR") == "DCR":
        blocks, order = (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2)
    else:
        blocks, order = (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3)
    moved = lowering.reshaped(value, blocks).transpose(order)
    lowering.values[step.output] = lowering.reshaped(moved, lowering.program.shapes[step.output])


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
    lowering: Lowering, step: Step, value: StridedView, out: StridedView, order: Sequence[int], name: str
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


OPERATORS = (
    Operator("Concat", "gone", lower_concat, (limits.comparable,)),
    Operator("DepthToSpace", "gone", lower_depth_to_space),
    Operator("Expand", "gone", lower_expand),
    Operator("Gather", "core", lower_gather, (limits.int32_indices,)),
    Operator("Pad", "core", lower_pad, (limits.constant_inputs, limits.float_values)),
    Operator("ScatterElements", "core", lower_scatter, (limits.slices_along_one_axis,)),
    Operator("ScatterND", "core", lower_scatter, (limits.slices_along_one_axis,)),
    Operator("Slice", "gone", lower_slice, (limits.constant_inputs,)),
    Operator("SpaceToDepth", "gone", lower_depth_to_space),
    Operator("Split", "gone", lower_split, (limits.parts_of_all,)),
    *(
        Operator(op, "gone", lower_reshape, (limits.same_elements,))
        for op in sorted(named(Kind.RESHAPE) | {"Identity"})
    ),
    Operator("Transpose", "gone", lower_transpose),
    Operator("Tile", "gone", lower_tile, (limits.constant_inputs,)),
)
