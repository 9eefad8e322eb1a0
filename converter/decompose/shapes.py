"""Operators whose result follows from shapes alone."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto, helper

from fadiff.converter.decompose.nodes import Nodes
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
