"""Padding with the lowest number before a maximum: the pool's own."""

from __future__ import annotations

from fadiff.converter.decompose.nodes import Nodes
from fadiff.converter.ir.operators import padding
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.plan.plan import BLANK


def behind_lowest(program: Program, node: Node) -> bool:
    """The image is padded with -1e4 or less: the pool pads."""
    return _joined_pads(program, node) is not None


def max_pool(nodes: Nodes, program: Program, node: Node) -> None:
    """The pool of what was padded, with the pads of both."""
    pads = _joined_pads(program, node)
    assert pads is not None
    pad = program.producer[node.inputs[0]]
    kept = {key: value for key, value in node.attributes.items() if key not in ("auto_pad", "pads")}
    pooled = nodes.ops("MaxPool", len(node.outputs), pad.inputs[0], pads=pads, **kept)
    for value, output in zip(pooled, node.outputs, strict=True):
        nodes.give(value, output)


def _joined_pads(program: Program, node: Node) -> list[int] | None:
    """Pads of a max pool that takes those of the Pad before it, too, where a pool can have them."""
    pad = program.producer.get(node.inputs[0])
    constant = pad is not None and pad.op == "Pad" and pad.attributes.get("mode", "constant") == "constant"
    found = padding(program, pad) if pad is not None and constant else None
    if found is None or found[2] > BLANK or len([v for v in node.outputs if v]) > 1:
        return None
    begin, end, _ = found
    kernel = node.attributes["kernel_shape"]
    spatial = len(kernel)
    own = node.attributes.get("pads", (0,) * (2 * spatial))
    if node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or node.attributes.get(
        "ceil_mode"
    ):
        return None
    if any((*begin[:2], *end[:2])) or min(*begin, *end) < 0:
        return None
    pads = [a + b for a, b in zip((*begin[2:], *end[2:]), own, strict=True)]
    return pads if all(p < k for p, k in zip(pads, (*kernel, *kernel), strict=True)) else None
