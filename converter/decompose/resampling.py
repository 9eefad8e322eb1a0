"""Resize over some axes only, and what is no nearest or bilinear image: products with constant matrices."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from fadiff.converter.decompose.nodes import Nodes
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.read.runtime import run_nodes


def written_otherwise(program: Program, node: Node) -> bool:
    """With axes; or cubic, with antialias, or linear over other axes than the two last of four: products."""
    return "axes" in node.attributes or _by_matrices(program, node)


def constant_size(program: Program, node: Node) -> str | None:
    """Sizes or scales are constant, the values floating point; keep_aspect_ratio_policy is stretch, there
    is no cropping."""
    policy = node.attributes.get("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        return f"keep_aspect_ratio_policy {policy}"
    if node.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        return "coordinate_transformation_mode tf_crop_and_resize"
    computed = [v for v in node.inputs[1:] if v and v not in program.constants]
    if computed:
        return f"{computed[0]} is computed at run time"
    return None if program.is_float(node.inputs[0]) else f"{node.inputs[0]} is not floating point"


def resize(nodes: Nodes, program: Program, node: Node) -> None:
    """Resize over all axes, or one matrix product per axis whose size changes."""
    shape, out = program.shapes[node.inputs[0]], program.shapes[node.outputs[0]]
    scales = _scales(program, node)
    if not _by_matrices(program, node):
        rest = {k: v for k, v in node.attributes.items() if k != "axes"}
        size = ("", nodes.ints(out)) if scales is None else (nodes.constant(scales),)
        nodes.give(nodes.op("Resize", node.inputs[0], "", *size, **rest), node.outputs[0])
        return
    y = node.inputs[0]
    for axis, (before, after) in enumerate(zip(shape, out, strict=True)):
        scale = None if scales is None else float(scales[axis])
        if before == after and scale in (None, 1.0):
            continue
        order = [i for i in range(len(shape)) if i != axis] + [axis]
        back = [order.index(i) for i in range(len(shape))]
        matrix = nodes.constant(_matrix(node, before, after, scale), "taps")
        y = nodes.transpose(nodes.op("MatMul", nodes.transpose(y, order), matrix), back)
    nodes.give(y, node.outputs[0])


def _by_matrices(program: Program, node: Node) -> bool:
    """Whether neither an index nor two taps per axis of an image compute it."""
    mode = node.attributes.get("mode", "nearest")
    if mode == "nearest" or node.outputs[0] not in program.shapes:
        return False
    shape, out = program.shapes[node.inputs[0]], program.shapes[node.outputs[0]]
    special = any(node.attributes.get(name, 0) for name in ("antialias", "exclude_outside"))
    return mode == "cubic" or special or len(shape) != 4 or shape[:2] != out[:2]


def _scales(program: Program, node: Node) -> np.ndarray | None:
    """Scales of all axes; None where sizes are given."""
    given = program.constant(node.input(1 if node.version < 11 else 2))
    if given is None or not given.size:
        return None
    rank = len(program.shapes[node.inputs[0]])
    scales = np.ones(rank, np.float32)
    scales[[axis % rank for axis in node.attributes.get("axes", range(rank))]] = given
    return scales


def _matrix(node: Node, size: int, out: int, scale: float | None) -> np.ndarray:
    """The weights [size, out] of one axis: what ONNX Runtime makes of every unit vector."""
    attributes = {k: v for k, v in node.attributes.items() if k != "axes"}
    if node.version < 11:
        attributes["coordinate_transformation_mode"] = "asymmetric"
    if scale is None:
        size_or_scale = helper.make_tensor("sizes", TensorProto.INT64, [4], [1, 1, size, out])
        inputs = ["x", "", "", "sizes"]
    else:
        size_or_scale = helper.make_tensor("scales", TensorProto.FLOAT, [4], [1, 1, 1, scale])
        inputs = ["x", "", "scales"]
    probe = helper.make_node("Resize", inputs, ["y"], **attributes)
    like = helper.make_model(
        onnx.GraphProto(), opset_imports=[helper.make_opsetid("", max(node.version, 13))], ir_version=8
    )
    unit = {"x": np.eye(size, dtype=np.float32)[None, None]}
    (taps,) = run_nodes([probe], [unit], ["y"], [size_or_scale], like=like)
    return np.asarray(taps["y"][0, 0])
