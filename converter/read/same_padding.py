"""Dilated windows padded by `auto_pad` SAME, as PyTorch writes `padding="same"`: ONNX Runtime has none.

Their padding is written out, which needs the size of the image.
"""

from __future__ import annotations

import onnx

from fadiff.converter.ir.kinds import Kind, is_a
from fadiff.converter.ir.program import program_of
from fadiff.converter.ir.window import pads_of


def write_out_padding(model: onnx.ModelProto) -> None:
    """Rewrite such nodes in place; those whose sizes are unknown stay as they are."""
    program = program_of(model)
    for proto, node in zip(model.graph.node, program.nodes, strict=True):
        same = node.attributes.get("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
        windowed = is_a(node, Kind.POOL) or node.op == "Conv"
        if not windowed or not same or max(node.attributes.get("dilations", (1,))) == 1:
            continue
        size = program.shapes.get(node.inputs[0], ())[2:]
        kernel = node.attributes.get("kernel_shape") or program.shapes.get(node.input(1), ())[2:]
        if len(size) != len(kernel) or not size:
            continue
        kept = [attribute for attribute in proto.attribute if attribute.name not in ("auto_pad", "pads")]
        del proto.attribute[:]
        proto.attribute.extend([*kept, onnx.helper.make_attribute("pads", pads_of(node, size, kernel))])
