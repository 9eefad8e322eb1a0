"""Operators of integers that ONNX Runtime's quantiser writes: dequantised, then as their float form.

(Those with a float operator of ONNX behind them are in converter/dequantise/qoperators.py.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fadiff.converter.decompose.attention import ALONE, SETTINGS, attend_with_past, mask_shape, split_heads
from fadiff.converter.decompose.nodes import Function, Nodes, unshaped
from fadiff.converter.decompose.norms import embed, known_words
from fadiff.converter.ir.program import Node, Program


def dynamic_quantize_matmul(nodes: Nodes, program: Program, node: Node) -> None:
    """Product of floats (calibrated like any) and dequantised weights, plus a bias."""
    y = nodes.op("MatMul", node.input(0), _weights(nodes, program, node, 1, 2, 3))
    nodes.give(nodes.op("Add", y, node.input(4)) if node.input(4) else y, node.output(0))


def matmul_integer_to_float(nodes: Nodes, program: Program, node: Node) -> None:
    """The same, of integers that DynamicQuantizeLinear made, or whose scale is constant."""
    x = _floats(nodes, program, node, 2, 4)
    y = nodes.op("MatMul", x, _weights(nodes, program, node, 1, 3, 5))
    nodes.give(nodes.op("Add", y, node.input(6)) if node.input(6) else y, node.output(0))


def q_attention(nodes: Nodes, program: Program, node: Node) -> None:
    """Attention of dequantised input and weights."""
    batch, length, _ = program.shapes[node.input(0)]
    heads, columns = int(node.attributes["num_heads"]), program.shapes[node.input(1)][1] // 3
    x = _floats(nodes, program, node, 3, 6)
    parts = []
    for i in range(3):
        start, end = i * columns, (i + 1) * columns
        product = nodes.op("MatMul", x, _weights(nodes, program, node, 1, 4, 7, start, end))
        product = nodes.op("Add", product, nodes.slice(node.input(2), 0, start, end))
        parts.append(split_heads(nodes, product, (batch, length, heads, columns // heads)))
    queries, keys, values = parts
    attend_with_past(
        nodes, program, node, queries, keys, values, (columns,) * 3, length, mask=5, past=8, bias=-1
    )


def known_quantised_attention(program: Program, node: Node) -> str | None:
    """Shapes of input, mask and past are static; weights are constant."""
    return unshaped(program, node, 0, 5, 8) or constant_weights(program, node) or mask_shape(program, node, 5)


def constant_weights(program: Program, node: Node) -> str | None:
    """Weights are constant."""
    return None if program.constant(node.input(1)) is not None else f"{node.input(1)} is computed at run time"


def q_embed_layer_norm(nodes: Nodes, program: Program, node: Node) -> None:
    """EmbedLayerNormalization of dequantised tables, gamma and beta."""
    tables = [
        _dequantised(nodes, *(node.input(i + first) for first in (2, 8, 13))) if node.input(i + 2) else ""
        for i in range(5)
    ]
    embed(nodes, program, node, tables, places="")


def _floats(nodes: Nodes, program: Program, node: Node, scale: int, zero: int) -> str:
    """The first input as floats: what DynamicQuantizeLinear read, or dequantised."""
    source = program.producer.get(node.input(0))
    if source is not None and source.op == "DynamicQuantizeLinear":
        return source.inputs[0]
    return _dequantised(nodes, *(node.input(i) for i in (0, scale, zero)))


def _dequantised(nodes: Nodes, x: str, scale: str, zero: str, **attributes: Any) -> str:
    return nodes.op("DequantizeLinear", x, scale, *([zero] if zero else []), **attributes)


def _weights(
    nodes: Nodes,
    program: Program,
    node: Node,
    weight: int,
    scale: int,
    zero: int,
    start: int = 0,
    end: int | None = None,
) -> str:
    """Dequantised columns of constant weights, with one scale or one for each column."""
    integers, steps, centre = (program.constant(node.input(i)) for i in (weight, scale, zero))
    assert integers is not None
    columns = np.ascontiguousarray(integers[:, start:end])
    if steps is None:
        return _dequantised(nodes, nodes.constant(columns, "weight"), node.input(scale), node.input(zero))
    names = [nodes.constant(columns, "weight")]
    for vector in (steps, centre):
        if vector is not None:
            names.append(nodes.constant(_of_columns(vector, start, end), "scale"))
    if steps.size == 1:
        return nodes.op("DequantizeLinear", *names)
    return nodes.op("DequantizeLinear", *names, axis=1)


def _of_columns(vector: np.ndarray, start: int, end: int | None) -> np.ndarray:
    """Scales or zero points of some columns, or of all."""
    return vector.reshape(()) if vector.size == 1 else vector.reshape(-1)[start:end]


FUNCTIONS = (
    Function("DynamicQuantizeMatMul", dynamic_quantize_matmul, 5, (), (constant_weights,)),
    Function("MatMulIntegerToFloat", matmul_integer_to_float, 7, (), (constant_weights,)),
    Function(
        "QAttention",
        q_attention,
        9,
        SETTINGS,
        (known_quantised_attention,),
        ALONE,
        outputs=(0, 1),
    ),
    Function(
        "QEmbedLayerNormalization",
        q_embed_layer_norm,
        18,
        ("epsilon",),
        (known_words,),
        outputs=(0, 1),
    ),
)
