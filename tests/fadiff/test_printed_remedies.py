"""Models as people bring them, and what the command line says to do about them, done as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fadiff as package
from fadiff.contenders import float_outputs, our_outputs
from fadiff.converter import convert
from fadiff.converter.check.noise import noise_of
from tests.converter.oracle import model_of, session, weights


def _patches() -> onnx.ModelProto:
    """Rows of a table at places that a mask's running sum gives, added to patches that the mask selects."""
    nodes = [
        helper.make_node("Conv", ["img", "wc"], ["c"], strides=[4, 4]),
        helper.make_node("Reshape", ["c", "s"], ["p"]),
        helper.make_node("Transpose", ["p"], ["pt"], perm=[0, 2, 1]),
        helper.make_node("Cast", ["mask"], ["mi"], to=TensorProto.INT64),
        helper.make_node("CumSum", ["mi", "one"], ["pos"]),
        helper.make_node("Where", ["mask", "pos", "zero"], ["idx"]),
        helper.make_node("Unsqueeze", ["idx", "last"], ["i1"]),
        helper.make_node("Concat", ["i1", "i1"], ["i2"], axis=2),
        helper.make_node("GatherND", ["table", "i2"], ["e"]),
        helper.make_node("Unsqueeze", ["mask", "last"], ["mu"]),
        helper.make_node("Add", ["pt", "e"], ["h"]),
        helper.make_node("Where", ["mu", "h", "nothing"], ["kept"]),
        helper.make_node("MatMul", ["kept", "w"], ["y"]),
    ]
    constants = {"wc": weights(1, 8, 3, 4, 4), "table": weights(2, 17, 17, 8), "w": weights(3, 8, 4)}
    constants |= {"s": np.array([1, 8, 16]), "one": np.array(1), "zero": np.array(0), "last": np.array([-1])}
    constants["nothing"] = np.zeros((), np.float32)
    model = model_of(nodes, {"img": (1, 3, 16, 16)}, {"y": (1, 16, 4)}, constants)
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, [1, 16]))
    return model


def test_the_inputs_that_a_refusal_names_are_taken(fadiff, tmp_path: Path) -> None:
    onnx.save(_patches(), path := tmp_path / "m.onnx")
    refused = fadiff("inspect", path)
    assert refused.code == 2
    (named,) = set(re.findall(r"--inputs (\S+)", refused.err))
    assert fadiff("inspect", path, "--inputs", named).code == 0


def test_a_mask_of_ones_folds_what_it_selects(tmp_path: Path) -> None:
    """GatherND is a constant then, Where is what it chooses."""
    onnx.save(_patches(), path := tmp_path / "m.onnx")
    result = package.compile(path, tmp_path / "out", dims={"mask": 1}, method="layerwise", verify=True)
    assert result.verification is not None and result.verification.bit_exact
    assert [layer.op for layer in result.document.layers] == ["conv", "add", "gemm"]


@pytest.mark.parametrize(("flag", "has_table"), [("False", True), ("0", True), ("True", False)])
def test_a_flag_is_bound_on_the_command_line(flag: str, has_table: bool, fadiff, tmp_path: Path) -> None:
    """Tanh is a table behind the product, a Relu is part of it."""
    branches = {}
    for name, function in (("then", "Relu"), ("else", "Tanh")):
        nodes = [
            helper.make_node("MatMul", ["x", "w"], [name]),
            helper.make_node(function, [name], [name + "y"]),
        ]
        out = [helper.make_tensor_value_info(name + "y", TensorProto.FLOAT, [1, 8])]
        branches[f"{name}_branch"] = helper.make_graph(nodes, name, [], out)
    model = model_of(
        [helper.make_node("If", ["flag"], ["y"], **branches)],
        {"x": (1, 8)},
        {"y": (1, 8)},
        {"w": weights(1, 8, 8)},
    )
    model.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, [1]))
    onnx.save(model, path := tmp_path / "m.onnx")
    ended = fadiff("inspect", path, "--dim", f"flag={flag}")
    assert ended.code == 0 and ("lookup" in ended.out) == has_table


def test_a_classifier_of_scikit_learn(tmp_path: Path) -> None:
    """As sklearn-onnx writes a scaler and an MLP: columns of unlike size, labels of the largest score."""
    nodes = [
        helper.make_node(
            "Scaler", ["x"], ["n"], domain="ai.onnx.ml", offset=[0.0, 5.0, 0, 0.05], scale=[1, 0.1, 0.01, 10]
        ),
        helper.make_node("MatMul", ["n", "w1"], ["a"]),
        helper.make_node("Add", ["a", "b1"], ["b"]),
        helper.make_node("Relu", ["b"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["c"]),
        helper.make_node("Softmax", ["c"], ["scores"], axis=1),
        helper.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
        helper.make_node("ArrayFeatureExtractor", ["classes", "best"], ["found"], domain="ai.onnx.ml"),
        helper.make_node("Reshape", ["found", "flat"], ["label"]),
    ]
    constants = {"w1": weights(1, 4, 16), "b1": weights(2, 16), "w2": weights(8, 16, 3)}
    constants |= {"classes": np.array([4, 9, 2]), "flat": np.array([-1])}
    model = model_of(nodes, {"x": (1, 4)}, {"scores": (1, 3)}, constants)
    model.graph.output.append(helper.make_tensor_value_info("label", TensorProto.INT64, [1]))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    onnx.save(model, path := tmp_path / "m.onnx")
    samples = np.random.default_rng(0).standard_normal((64, 1, 4)).astype(np.float32) * np.float32(
        [1, 10, 100, 0.1]
    )
    conversion = convert(path, calibration=[{"x": sample} for sample in samples[:48]])
    inputs = {"x": samples}
    exact = float_outputs(conversion, inputs, lambda _: None)
    ours = our_outputs(conversion, inputs, exact, lambda _: None)
    theirs = [session(model).run(["scores", "label"], {"x": sample}) for sample in samples]
    labels = [int(label) for _, [label] in theirs]
    assert noise_of(exact["scores"], ours["scores"].reshape(exact["scores"].shape)).sqnr_db > 30
    assert len(set(labels)) > 1 and np.mean(ours["label"].ravel() == labels) > 0.9


def test_a_workload_without_weights_has_a_schedule_and_timeloop_files(fadiff, tmp_path: Path) -> None:
    """As ZigZag and Stream exchange them; the weights that the C has are said to be drawn."""
    nodes = [helper.make_node("Conv", ["x", "w1"], ["a"]), helper.make_node("Conv", ["a", "w2"], ["y"])]
    constants = {"w1": weights(1, 16, 3, 3, 3), "w2": weights(2, 8, 16, 1, 1)}
    model = model_of(nodes, {"x": (1, 3, 8, 8)}, {"y": (1, 8, 6, 6)}, constants)
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    ended = fadiff("compile", tmp_path / "m.onnx", "--out", tmp_path / "out", "--verify")
    assert ended.code == 0 and "drawn" in ended.err, ended.err
    assert len(list((tmp_path / "out" / "timeloop").glob("*mapping*.yaml"))) == 2
