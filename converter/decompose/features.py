"""Operators around networks: of scikit-learn pipelines (ai.onnx.ml), of ONNX 1.0 (Core ML, Windows ML)."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from fadiff.converter.decompose.nodes import LEARNING, Function, Nodes, unshaped
from fadiff.converter.ir.program import Node, Program


def scaler(nodes: Nodes, program: Program, node: Node) -> None:
    """(x - offset) * scale, with numbers for each column or one for all."""
    x = nodes.op("Cast", node.input(0), to=TensorProto.FLOAT)
    offset, scale = (
        np.asarray(node.attributes.get(n, (d,)), np.float32) for n, d in (("offset", 0), ("scale", 1))
    )
    centred = nodes.op("Sub", x, nodes.constant(offset[None]))
    nodes.give(nodes.op("Mul", centred, nodes.constant(scale[None])), node.output(0))


def normalizer(nodes: Nodes, program: Program, node: Node) -> None:
    """Every row over its largest number, the sum of its magnitudes, or its length."""
    x = nodes.op("Cast", node.input(0), to=TensorProto.FLOAT)
    norm = node.attributes.get("norm", "MAX")
    if norm == "MAX":
        size = nodes.reduce("ReduceMax", x, [-1])
    elif norm == "L1":
        size = nodes.reduce("ReduceSum", nodes.op("Abs", x), [-1])
    else:
        size = nodes.op("Sqrt", nodes.reduce("ReduceSum", nodes.op("Mul", x, x), [-1]))
    nodes.give(nodes.op("Div", x, size), node.output(0))


def array_feature_extractor(nodes: Nodes, program: Program, node: Node) -> None:
    """Columns by their numbers, which may be computed: the label of the best class."""
    flat = nodes.reshape(node.input(1), [-1])
    axis = len(program.shapes[node.input(0)]) - 1
    picked = nodes.op("Gather", node.input(0), flat, axis=axis)
    nodes.give(nodes.reshape(picked, [1, -1]) if axis == 0 else picked, node.output(0))


def known_array(program: Program, node: Node) -> str | None:
    """The shape of the array is static."""
    return unshaped(program, node, 0)


_END = int(np.iinfo(np.int32).max)


def image_scaler(nodes: Nodes, program: Program, node: Node) -> None:
    """x * scale + bias, with a bias for each channel."""
    bias = np.asarray(node.attributes.get("bias", (0.0,)), np.float32)[None, :, None, None]
    scaled = nodes.op("Mul", node.input(0), nodes.number(node.attributes.get("scale", 1.0)))
    nodes.give(nodes.op("Add", scaled, nodes.constant(bias)), node.output(0))


def affine(nodes: Nodes, program: Program, node: Node) -> None:
    """alpha * x + beta."""
    product = nodes.op("Mul", node.input(0), nodes.number(node.attributes.get("alpha", 1.0)))
    nodes.give(nodes.op("Add", product, nodes.number(node.attributes.get("beta", 0.0))), node.output(0))


def crop(nodes: Nodes, program: Program, node: Node) -> None:
    """An image without its border (left, top, right, bottom), or `scale` pixels from there."""
    left, top, right, bottom = node.attributes["border"]
    height, width = node.attributes.get("scale") or (None, None)
    rows = nodes.slice(node.input(0), 2, top, top + height if height else -bottom or _END)
    nodes.give(nodes.slice(rows, 3, left, left + width if width else -right or _END), node.output(0))


FUNCTIONS = (
    Function(
        "ArrayFeatureExtractor",
        array_feature_extractor,
        2,
        constraints=(known_array,),
        domain=LEARNING,
    ),
    Function("Normalizer", normalizer, 1, ("norm",), domain=LEARNING),
    Function("Scaler", scaler, 1, ("offset", "scale"), domain=LEARNING),
    Function("Affine", affine, 1, ("alpha", "beta"), domain=""),
    Function("Crop", crop, 1, ("border", "scale"), domain=""),
    Function("ImageScaler", image_scaler, 1, ("bias", "scale"), domain=""),
)
