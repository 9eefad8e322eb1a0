"""Nodes may have no name, or that of another: layers have names of their own all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.converter.oracle import check, model_of, weights


@pytest.mark.parametrize(
    "names",
    [
        ("", "Conv_0", ""),
        ("Conv_1", "", "Conv_2"),
        ("", "", ""),
        ("same", "same", "same"),
        ("", "Conv", "Conv_1"),
    ],
)
def test_every_node_is_found_whatever_it_is_called(names: tuple[str, str, str], tmp_path: Path) -> None:
    """Weights and biases reach the layer of their own node: the int8 model is near the float one."""
    first, second, third = names
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], name=first),
        helper.make_node("Conv", ["a", "w2", "b2"], ["b"], name=second),
        helper.make_node("Sigmoid", ["b"], ["s"], name=third),
        helper.make_node("Tanh", ["a"], ["t"], name=third),
        helper.make_node("Conv", ["s", "w3"], ["c"], name=third),
        helper.make_node("Conv", ["t", "w3"], ["d"], name=third),
        helper.make_node("Add", ["c", "d"], ["y"], name=first),
    ]
    constants = {
        "w1": weights(1, 4, 3, 1, 1),
        "b1": weights(2, 4),
        "w2": weights(3, 4, 4, 1, 1),
        "b2": weights(4, 4),
        "w3": weights(5, 6, 4, 1, 1),
    }
    checked = check(model_of(nodes, {"x": (1, 3, 5, 6)}, {"y": None}, constants), tmp_path)
    layers = [layer.name for layer in checked.conversion.graph.layers]
    assert len(set(layers)) == len(layers) == 7
    assert checked.lsb_to_quantized <= 1 and checked.sqnr_db > 25


@pytest.mark.parametrize("suffix", ["scale", "zero", "q", "dq", "float"])
@pytest.mark.parametrize("what", ["constant", "float constant", "value", "input", "output"])
def test_values_called_as_the_quantised_model_calls_its_own(what: str, suffix: str, tmp_path: Path) -> None:
    """`a.scale` beside `a` is no scale of `a`."""
    other = f"a.{suffix}"
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Mul", ["a", other], ["m"], name="together"),
        helper.make_node("Tanh", ["m"], ["y"], name="last"),
    ]
    inputs, constants = {"x": (3, 4)}, {"w": weights(1, 4, 4)}
    outputs: dict[str, tuple[int, ...] | None] = {"y": None}
    if what == "constant":
        constants[other] = weights(2, 4)
    elif what == "float constant":
        constants |= {other: np.array(0.7, np.float32), "zero": np.float32(0)}
        nodes[1:2] = [
            helper.make_node("Less", ["a", "zero"], ["less"]),
            helper.make_node("Cast", ["less"], ["one"], to=1),
            helper.make_node("Sub", [other, "one"], ["m"]),
        ]
    elif what == "input":
        inputs[other] = (3, 4)
    else:
        nodes[1:1] = [helper.make_node("MatMul", ["x", "v"], [other], name="second")]
        constants["v"] = weights(3, 4, 4)
    if what == "output":
        outputs[other] = None
    checked = check(model_of(nodes, inputs, outputs, constants), tmp_path)
    assert checked.lsb_to_quantized <= 1 and checked.sqnr_db > 20


def test_inputs_called_as_the_quantised_model_calls_its_own(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "x.q"], ["y"])]
    checked = check(model_of(nodes, {"x": (3, 4), "x.q": (3, 4)}, {"y": None}), tmp_path)
    assert checked.lsb_to_quantized <= 1 and checked.sqnr_db > 30


def _hardmax(value: str) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], [value], name="a"),
        helper.make_node("Hardmax", [value], ["y"], name="h", axis=1),
    ]
    return model_of(nodes, {"x": (2, 5)}, {"y": None})


def _looped(value: str) -> onnx.ModelProto:
    shape = (2, 3)
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "one"], ["t"]), helper.make_node("Identity", ["c"], ["co"])],
        "body",
        [
            helper.make_tensor_value_info("i", onnx.TensorProto.INT64, ()),
            helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, ()),
            helper.make_tensor_value_info("s", onnx.TensorProto.FLOAT, shape),
        ],
        [
            helper.make_tensor_value_info("co", onnx.TensorProto.BOOL, ()),
            helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, shape),
        ],
    )
    nodes = [
        helper.make_node("Relu", ["x"], [value], name="a"),
        helper.make_node("Loop", ["n", "go", value], ["z"], name="L", body=body),
        helper.make_node("Add", ["z", value], ["y"], name="s"),
    ]
    constants = {"n": np.array(2), "go": np.array(True), "one": np.ones(3, np.float32)}
    return model_of(nodes, {"x": shape}, {"y": None}, constants)


@pytest.mark.parametrize(
    "model",
    [_hardmax("h.ArgMax_0.out"), _hardmax("h.y"), _looped("L/0/t"), _looped("L/one"), _looped("L/go")],
)
def test_values_called_as_passes_call_theirs(model: onnx.ModelProto, tmp_path: Path) -> None:
    """What is written in place of a node has names of its own."""
    assert check(model, tmp_path).lsb_to_quantized <= 1
