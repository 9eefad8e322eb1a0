"""Operators whose result follows from shapes alone, and Resize over some axes only."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto, helper

from converter.decompose.nodes import Nodes
from converter.program import Node, Program


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
    """Of values of which some have no elements."""
    sizes = [math.prod(program.shapes.get(v, (1,))) for v in node.inputs]
    return 0 in sizes and any(sizes)


def without_empty(nodes: Nodes, program: Program, node: Node) -> None:
    """Concat of the values that have elements."""
    values = [v for v in node.inputs if math.prod(program.shapes[v])]
    nodes.give(
        nodes.op("Concat", *values, **node.attributes) if len(values) > 1 else values[0], node.outputs[0]
    )


def over_some_axes(program: Program, node: Node) -> bool:
    """With axes, without keep_aspect_ratio_policy."""
    return "axes" in node.attributes and "keep_aspect_ratio_policy" not in node.attributes


def resize(nodes: Nodes, program: Program, node: Node) -> None:
    """Resize over some axes as one over all of them."""
    shape, out = program.shapes[node.inputs[0]], program.shapes[node.outputs[0]]
    axes = [axis % len(shape) for axis in node.attributes["axes"]]
    given = program.constant(node.input(2))
    rest = {k: v for k, v in node.attributes.items() if k != "axes"}
    if given is not None and given.size:
        scales = np.ones(len(shape), np.float32)
        scales[axes] = given
        y = nodes.op("Resize", node.inputs[0], "", nodes.constant(scales), **rest)
    else:
        y = nodes.op("Resize", node.inputs[0], "", "", nodes.ints(out), **rest)
    nodes.give(y, node.outputs[0])
