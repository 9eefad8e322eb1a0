"""Operators on two computed values, however these are stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.converter.oracle import check, ints, model_of

TWO_OPERANDS = {
    "a @ b": ((2, 3, 4, 8), (2, 3, 8, 5), None),
    "a @ b transposed": ((2, 3, 4, 8), (2, 3, 5, 8), (0, 1, 3, 2)),
    "broadcast right": ((2, 3, 4, 8), (8, 5), None),
    "broadcast left": ((4, 8), (3, 8, 5), None),
    "grouped queries": ((2, 2, 3, 4, 8), (2, 2, 1, 8, 5), None),
    "vector": ((3, 4, 8), (8,), None),
    "vector left": ((8,), (3, 8, 5), None),
    "vectors": ((8,), (8,), None),
}


@pytest.mark.parametrize("case", TWO_OPERANDS)
def test_matmul_of_two_activations(case: str, tmp_path: Path) -> None:
    a, b, order = TWO_OPERANDS[case]
    nodes = [helper.make_node("MatMul", ["a", "b" if order is None else "t"], ["y"], name="product")]
    if order is not None:
        nodes.insert(0, helper.make_node("Transpose", ["b"], ["t"], perm=order))
    checked = check(model_of(nodes, {"a": a, "b": b}, {"y": None}), tmp_path)
    assert checked.lsb_to_quantized <= 1.01
    graph = checked.conversion.graph
    assert all(layer.op == "bmm" for layer in graph.layers)  # no copies
    size = int(np.prod(np.matmul(np.zeros(a), np.zeros(b).transpose(order) if order else np.zeros(b)).shape))
    assert sum(layer.macs for layer in graph.tensor_core_layers) == size * a[-1]


def turned(
    node: onnx.NodeProto, a: tuple[int, ...], b: tuple[int, ...], **more: tuple[int, ...]
) -> onnx.ModelProto:
    """A node whose operands p and q come by turned axes that are merged in another order each."""
    nodes = []
    shapes = {}
    for name, shape, result in (("a", a, "p"), ("b", b, "q")):
        nodes.append(helper.make_node("Transpose", [name], [f"{name}t"], perm=[1, 0, *range(2, len(shape))]))
        nodes.append(helper.make_node("Reshape", [f"{name}t", f"{name}s"], [result]))
        shapes[f"{name}s"] = ints(shape[0] * shape[1], *shape[2:])
    bools = [helper.make_node("Greater", [name, "none"], [f"{name}.bool"]) for name in more]
    constants = {**shapes, **({"none": np.float32(0)} if more else {})}
    return model_of([*nodes, *bools, node], {"a": a, "b": b, **more}, {"y": None}, constants)


TURNED = {
    "add": turned(helper.make_node("Add", ["p", "q"], ["y"]), (2, 3), (3, 2)),
    "mul": turned(helper.make_node("Mul", ["p", "q"], ["y"]), (2, 3, 4), (3, 2, 4)),
    "where": turned(helper.make_node("Where", ["c.bool", "p", "q"], ["y"]), (2, 3), (3, 2), c=(6,)),
    "matmul": turned(helper.make_node("MatMul", ["p", "q"], ["y"]), (2, 3, 4, 8), (3, 2, 8, 5)),
}


@pytest.mark.parametrize("case", TURNED)
def test_operands_whose_axes_split_unlike_are_copied(case: str, tmp_path: Path) -> None:
    checked = check(TURNED[case], tmp_path)
    assert checked.lsb_to_quantized <= 1.01
    assert checked.sqnr_db > 20
    assert sum(layer.op == "copy" for layer in checked.conversion.graph.layers) in (1, 2, 3)
