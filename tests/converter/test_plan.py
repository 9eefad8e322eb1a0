"""Nodes that join: spelled-out normalisations, function bodies, leftovers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import convert
from tests.converter.oracle import check, model_of, weights

ROWS = (2, 5, 12)


def _norm(centred: bool, reciprocal: bool, gamma: bool) -> onnx.ModelProto:
    nodes = []
    deviation = "x"
    if centred:
        nodes += [
            helper.make_node("ReduceMean", ["x"], ["m"], axes=[-1]),
            helper.make_node("Sub", ["x", "m"], ["d"]),
        ]
        deviation = "d"
    nodes += [
        helper.make_node("Pow", [deviation, "two"], ["p"]),
        helper.make_node("ReduceMean", ["p"], ["v"], axes=[2]),
        helper.make_node("Add", ["v", "eps"], ["e"]),
        helper.make_node("Sqrt", ["e"], ["r"]),
    ]
    if reciprocal:
        nodes += [
            helper.make_node("Reciprocal", ["r"], ["i"]),
            helper.make_node("Mul", ["i", deviation], ["n"]),
        ]
    else:
        nodes.append(helper.make_node("Div", [deviation, "r"], ["n"]))
    if gamma:
        nodes += [
            helper.make_node("Mul", ["n", "g"], ["s"]),
            helper.make_node("Add", ["b", "s"], ["y"])
            if centred
            else helper.make_node("Identity", ["s"], ["y"]),
        ]
    else:
        nodes.append(helper.make_node("Identity", ["n"], ["y"]))
    constants = {
        "two": np.array(2, np.float32),
        "eps": np.array(1e-5, np.float32),
        "g": weights(1, 12),
        "b": weights(2, 12),
    }
    used = {value for node in nodes for value in node.input}
    return model_of(
        nodes, {"x": ROWS}, {"y": ROWS}, {n: a for n, a in constants.items() if n in used}, opset=13
    )


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("reciprocal", [True, False])
@pytest.mark.parametrize("gamma", [True, False])
def test_spelled_out_norm_is_one_layer(centred: bool, reciprocal: bool, gamma: bool, tmp_path: Path) -> None:
    checked = check(_norm(centred, reciprocal, gamma), tmp_path)
    (layer,) = checked.conversion.graph.layers
    assert layer.op == "layer_norm"
    assert layer.operator.center == centred  # type: ignore[union-attr]
    assert checked.lsb_to_quantized <= 1.01
    assert checked.sqnr_db > 30


@pytest.mark.parametrize(("read", "left"), [("r", []), ("d", ["binary", "layer_norm"])])
def test_a_norm_whose_inside_is_read_stays_apart(read: str, left: list[str], tmp_path: Path) -> None:
    """(The normalisation of the deviation d is one without a centre.)"""
    model = _norm(True, False, False)
    shape = (*ROWS[:-1], 1) if read == "r" else ROWS
    model.graph.output.append(helper.make_tensor_value_info(read, onnx.TensorProto.FLOAT, shape))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    graph = convert(path).graph
    norms = [layer for layer in graph.layers if layer.op == "layer_norm"]
    assert [layer.op for layer in graph.layers if layer.op in left] == left
    assert all(not layer.operator.center for layer in norms)  # type: ignore[union-attr]
    assert len(norms) == left.count("layer_norm")


def test_attention_is_expanded(tmp_path: Path) -> None:
    shape = (1, 2, 6, 8)
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], name="attention")
    checked = check(model_of([node], dict.fromkeys("qkv", shape), {"y": shape}, opset=23), tmp_path)
    ops = [layer.op for layer in checked.conversion.graph.layers]
    assert ops.count("bmm") == 2
    assert ops.count("softmax") == 1
    assert any("Attention" in note for note in checked.conversion.notes)
    assert checked.sqnr_db > 20


@pytest.mark.parametrize("opset", [7, 9, 11, 15, 21, 24])
def test_opsets(opset: int, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("Softmax", ["f"], ["y"], axis=1),
    ]
    constants = {"w": weights(1, 4, 3, 3, 3), "b": weights(2, 4)}
    checked = check(model_of(nodes, {"x": (1, 3, 5, 5)}, {"y": None}, constants, opset), tmp_path)
    assert checked.conversion.graph.layers[0].op == "conv"
    assert checked.sqnr_db > 20


def test_half_precision_is_read(tmp_path: Path) -> None:
    model = model_of(
        [helper.make_node("Gemm", ["x", "w"], ["y"])],
        {"x": (2, 8)},
        {"y": (2, 4)},
        {"w": weights(1, 8, 4).astype(np.float16)},
    )
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    checked = check(model, tmp_path)
    assert any("float32" in note for note in checked.conversion.notes)
    assert checked.lsb_to_quantized <= 1.01
