"""Operators of ai.onnx.ml in front of and behind the networks of scikit-learn pipelines."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from fadiff.converter.contrib.call import Call
from fadiff.converter.decompose.nodes import Nodes


def scaler(nodes: Nodes, call: Call) -> None:
    """(x - offset) * scale, with numbers for each column or one for all."""
    x = nodes.op("Cast", call.input(0), to=TensorProto.FLOAT)
    offset, scale = (
        np.asarray(call.attribute(n, (d,)), np.float32) for n, d in (("offset", 0), ("scale", 1))
    )
    centred = nodes.op("Sub", x, nodes.constant(offset[None]))
    nodes.give(nodes.op("Mul", centred, nodes.constant(scale[None])), call.output(0))


def normalizer(nodes: Nodes, call: Call) -> None:
    """Every row over its largest number, the sum of its magnitudes, or its length."""
    x = nodes.op("Cast", call.input(0), to=TensorProto.FLOAT)
    norm = call.attribute("norm", b"MAX")
    if norm in (b"MAX", "MAX"):
        size = nodes.reduce("ReduceMax", x, [-1])
    elif norm in (b"L1", "L1"):
        size = nodes.reduce("ReduceSum", nodes.op("Abs", x), [-1])
    else:
        size = nodes.op("Sqrt", nodes.reduce("ReduceSum", nodes.op("Mul", x, x), [-1]))
    nodes.give(nodes.op("Div", x, size), call.output(0))


def array_feature_extractor(nodes: Nodes, call: Call) -> None:
    """Columns by their numbers, which may be computed: the label of the best class."""
    flat = nodes.reshape(call.input(1), [-1])
    axis = len(call.sizes(0)) - 1
    picked = nodes.op("Gather", call.input(0), flat, axis=axis)
    nodes.give(nodes.reshape(picked, [1, -1]) if axis == 0 else picked, call.output(0))


def known_array(call: Call) -> str | None:
    """The shape of the array is static."""
    return call.unshaped(0)
