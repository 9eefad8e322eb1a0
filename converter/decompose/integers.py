"""Operators of one integer as operators of two, OneHot and Hardmax as comparisons, what shapes tell alone."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper

from fadiff.converter.decompose.nodes import Decomposition, Nodes
from fadiff.converter.ir.operators import reduction_axes
from fadiff.converter.ir.program import Node, Program


def shape_of(nodes: Nodes, program: Program, node: Node) -> None:
    """Shape (from start to end) and Size as constants."""
    shape = program.shapes[node.inputs[0]]
    if node.op == "Size":
        nodes.give(nodes.constant(np.int64(math.prod(shape))), node.outputs[0])
        return
    part = slice(node.attributes.get("start", 0), node.attributes.get("end"))
    nodes.give(nodes.ints(shape[part]), node.outputs[0])


def eye(nodes: Nodes, program: Program, node: Node) -> None:
    """EyeLike as a constant."""
    rows, columns = program.shapes[node.inputs[0]]
    kind = int(node.attributes.get("dtype", program.types.get(node.inputs[0], TensorProto.FLOAT)))
    matrix = np.eye(rows, columns, int(node.attributes.get("k", 0)))
    nodes.give(nodes.constant(matrix.astype(helper.tensor_dtype_to_np_dtype(kind))), node.outputs[0])


def has_empty_operands(program: Program, node: Node) -> bool:
    """Some operands have no elements, others have some."""
    sizes = [math.prod(program.shapes.get(v, (1,))) for v in node.inputs]
    return 0 in sizes and any(sizes)


def without_empty(nodes: Nodes, program: Program, node: Node) -> None:
    """Concat of the values that have elements."""
    values = [v for v in node.inputs if math.prod(program.shapes[v])]
    nodes.give(
        nodes.op("Concat", *values, **node.attributes) if len(values) > 1 else values[0], node.outputs[0]
    )


def on_integers(program: Program, node: Node) -> bool:
    """The operand is integers."""
    return program.is_integer(node.inputs[0])


def signed_or_16_bits(program: Program, node: Node) -> str | None:
    """Signed integers, or unsigned ones of 8 or 16 bits."""
    wide = (onnx.TensorProto.UINT32, onnx.TensorProto.UINT64)
    return "unsigned integers of more than 16 bits" if program.types.get(node.inputs[0]) in wide else None


def negated(nodes: Nodes, program: Program, node: Node) -> None:
    """Neg: 0 - x."""
    zero = nodes.constant(np.zeros((), program.numpy_type(node.inputs[0])))
    nodes.give(nodes.op("Sub", zero, node.inputs[0]), node.outputs[0])


def magnitude(nodes: Nodes, program: Program, node: Node) -> None:
    """Abs: max(x, 0 - x)."""
    zero = nodes.constant(np.zeros((), program.numpy_type(node.inputs[0])))
    opposite = nodes.op("Sub", zero, node.inputs[0])
    nodes.give(nodes.op("Max", node.inputs[0], opposite), node.outputs[0])


def clipped(nodes: Nodes, program: Program, node: Node) -> None:
    """Clip: min(max(x, low), high)."""
    value = node.inputs[0]
    for op, bound in (("Max", node.input(1)), ("Min", node.input(2))):
        value = nodes.op(op, value, bound) if bound else value
    nodes.give(value, node.outputs[0])


def inverted(nodes: Nodes, program: Program, node: Node) -> None:
    """BitwiseNot: all bits flipped."""
    dtype = program.numpy_type(node.inputs[0])
    limits = np.iinfo(dtype)
    ones = -1 if limits.min < 0 else limits.max
    nodes.give(
        nodes.op("BitwiseXor", node.inputs[0], nodes.constant(np.asarray(ones, dtype))), node.outputs[0]
    )


def constant_depth(program: Program, node: Node) -> str | None:
    """Depth and values are constant, indices are integers."""
    if not program.is_integer(node.inputs[0]):
        return f"{node.inputs[0]} is no integer"
    bad = [v for v in node.inputs[1:] if v not in program.constants]
    return f"{bad[0]} is computed at run time" if bad else None


def one_hot(nodes: Nodes, program: Program, node: Node) -> None:
    """OneHot: index (counted from the end where negative) equal to the position, else the other value."""
    depth = int(program.constants[node.inputs[1]].reshape(-1)[0])
    off, on = program.constants[node.inputs[2]].reshape(-1)
    rank = len(program.shapes[node.inputs[0]]) + 1
    axis = int(node.attributes.get("axis", -1)) % rank
    dtype = program.numpy_type(node.inputs[0])
    shape = list(program.shapes[node.inputs[0]])
    indices = nodes.reshape(node.inputs[0], [*shape[:axis], 1, *shape[axis:]])
    positions = np.arange(depth, dtype=dtype).reshape(-1, *(1,) * (rank - 1 - axis))
    hit = nodes.op("Equal", indices, nodes.constant(positions))
    if np.iinfo(dtype).min < 0:
        hit = nodes.op("Or", hit, nodes.op("Equal", indices, nodes.constant(positions - dtype.type(depth))))
    nodes.give(nodes.op("Where", hit, nodes.constant(on), nodes.constant(off)), node.outputs[0])


def one_axis(program: Program, node: Node) -> str | None:
    """Over one axis: from opset 13 on, or the last axis."""
    rank = len(program.shapes[node.inputs[0]])
    last = int(node.attributes.get("axis", 1)) % rank == rank - 1
    return None if node.version >= 13 or last else "before opset 13 it spans all axes from `axis` on"


def hardmax(nodes: Nodes, program: Program, node: Node) -> None:
    """Hardmax: 1 at the first maximum along the axis, else 0."""
    shape = program.shapes[node.inputs[0]]
    axis = int(node.attributes.get("axis", -1 if node.version >= 13 else 1)) % len(shape)
    positions = np.arange(shape[axis], dtype=np.int64).reshape(-1, *(1,) * (len(shape) - 1 - axis))
    first = nodes.op("ArgMax", node.inputs[0], axis=axis, keepdims=1)
    hit = nodes.op("Equal", first, nodes.constant(positions))
    nodes.give(nodes.op("Where", hit, nodes.number(1.0), nodes.number(0.0)), node.outputs[0])


def on_integers_of_known_axes(program: Program, node: Node) -> bool:
    """The operand is integers, the axes are constant."""
    return on_integers(program, node) and reduction_axes(program, node) is not None


def total(nodes: Nodes, program: Program, node: Node) -> None:
    """ReduceSum of integers: no float sum would be exact."""
    x, shape = node.inputs[0], program.shapes[node.inputs[0]]
    for axis in reduction_axes(program, node) or ():
        x = summed(nodes, x, axis % len(shape), shape[axis])
    nodes.give(nodes.reshape(x, program.shapes[node.outputs[0]]), node.outputs[0])


def summed(nodes: Nodes, x: str, axis: int, size: int) -> str:
    """Sum over an axis of `size`, which stays with size one: halves are added as long as there are two."""
    rest = ""
    while size > 1:
        half = size // 2
        if size % 2:
            last = nodes.slice(x, axis, size - 1, size)
            rest = nodes.op("Add", rest, last) if rest else last
        x = nodes.op("Add", nodes.slice(x, axis, 0, half), nodes.slice(x, axis, half, 2 * half))
        size = half
    return nodes.op("Add", x, rest) if rest else x


DECOMPOSITIONS = (
    Decomposition("Concat", without_empty, applies=has_empty_operands),
    Decomposition("EyeLike", eye),
    Decomposition("Shape", shape_of),
    Decomposition("Size", shape_of),
    Decomposition("Abs", magnitude, applies=on_integers),
    Decomposition("BitwiseNot", inverted, (signed_or_16_bits,), applies=on_integers),
    Decomposition("Clip", clipped, applies=on_integers),
    Decomposition("Hardmax", hardmax, (one_axis,)),
    Decomposition("Neg", negated, applies=on_integers),
    Decomposition("OneHot", one_hot, (constant_depth,)),
    Decomposition("ReduceSum", total, applies=on_integers_of_known_axes),
)
