"""How much the products of a model compute."""

from __future__ import annotations

import math

from fadiff.converter.ir.kinds import WEIGHTED, is_a
from fadiff.converter.ir.program import Node, Program


def macs_of(program: Program, node: Node) -> int:
    """Multiply-accumulates of a product (Conv, ConvTranspose, Gemm, MatMul), 0 of any other node, and of
    one whose shapes are not known."""
    if not is_a(node, WEIGHTED) or node.domain:
        return 0
    shapes = [program.shapes.get(value, ()) for value in (*node.inputs[:2], node.outputs[0])]
    if not all(shapes):
        return 0
    first, second, result = shapes
    if node.op == "MatMul":
        return math.prod(result) * first[-1]
    if node.op == "ConvTranspose":  # every input element meets every weight of its channel
        return math.prod(first) * math.prod(second[1:])
    if node.op == "Gemm":
        return math.prod(result) * first[0 if node.attributes.get("transA") else 1]
    return math.prod(result) * math.prod(second[1:])
