"""Experimental operators of ONNX 1.0, which converters of 2018 wrote (Core ML, Windows ML)."""

from __future__ import annotations

import numpy as np

from fadiff.converter.contrib.call import Call
from fadiff.converter.decompose.nodes import Nodes

_END = int(np.iinfo(np.int32).max)


def image_scaler(nodes: Nodes, call: Call) -> None:
    """x * scale + bias, with a bias for each channel."""
    bias = np.asarray(call.attribute("bias", (0.0,)), np.float32)[None, :, None, None]
    scaled = nodes.op("Mul", call.input(0), nodes.number(call.attribute("scale", 1.0)))
    nodes.give(nodes.op("Add", scaled, nodes.constant(bias)), call.output(0))


def affine(nodes: Nodes, call: Call) -> None:
    """alpha * x + beta."""
    product = nodes.op("Mul", call.input(0), nodes.number(call.attribute("alpha", 1.0)))
    nodes.give(nodes.op("Add", product, nodes.number(call.attribute("beta", 0.0))), call.output(0))


def crop(nodes: Nodes, call: Call) -> None:
    """An image without its border (left, top, right, bottom), or `scale` pixels from there."""
    left, top, right, bottom = call.attribute("border")
    height, width = call.attribute("scale") or (None, None)
    rows = nodes.slice(call.input(0), 2, top, top + height if height else -bottom or _END)
    nodes.give(nodes.slice(rows, 3, left, left + width if width else -right or _END), call.output(0))
