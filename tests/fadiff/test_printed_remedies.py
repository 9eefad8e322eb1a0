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


def test_the_outputs_that_a_refusal_names_are_taken(fadiff, tmp_path: Path) -> None:
    """One filter for boxes, scores and more, with a NonZero for each, as Ultralytics' nms=True has it."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("ReduceMax", ["p"], ["best"], axes=[1], keepdims=0),
        helper.make_node("Greater", ["best", "least"], ["mask"]),
    ]
    for i in range(5):
        nodes += [
            helper.make_node("NonZero", ["mask"], [f"n{i}"]),
            helper.make_node("Transpose", [f"n{i}"], [f"t{i}"]),
            helper.make_node("Add", ["p", f"b{i}"], [f"p{i}"]),
            helper.make_node("GatherND", [f"p{i}", f"t{i}"], [f"y{i}"]),
        ]
    constants = {f"b{i}": weights(i, 4) for i in range(5)} | {"w": weights(9, 8, 4), "least": np.float32(0.5)}
    model = model_of(nodes, {"x": (30, 8)}, {f"y{i}": None for i in range(5)}, constants)
    onnx.save(model, path := tmp_path / "m.onnx")
    refused = fadiff("inspect", path)
    assert refused.code == 2
    (named,) = set(re.findall(r"converts: --outputs (\S+)", refused.err))
    assert set(named.split(",")) == {"mask", *(f"p{i}" for i in range(5))}
    assert fadiff("inspect", path, "--outputs", named).code == 0


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


def _step_of_a_decoder() -> onnx.ModelProto:
    """Queries and keys turned by angles of a position; the key joins a cache of 63 rows; all are scored."""
    nodes = [
        helper.make_node("Cast", ["position_ids"], ["p"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["p", "frequencies"], ["f"]),
        helper.make_node("Concat", ["f", "f"], ["angles"], axis=-1),
        helper.make_node("Cos", ["angles"], ["cos"]),
        helper.make_node("Sin", ["angles"], ["sin"]),
    ]
    for n in "qk":
        nodes += [
            helper.make_node("MatMul", ["x", f"w{n}"], [f"{n}0"]),
            helper.make_node("Reshape", [f"{n}0", "heads"], [f"{n}1"]),
            helper.make_node("Transpose", [f"{n}1"], [f"{n}2"], perm=[0, 2, 1, 3]),
            helper.make_node("Split", [f"{n}2", "halves"], [f"{n}a", f"{n}b"], axis=-1),
            helper.make_node("Neg", [f"{n}b"], [f"{n}n"]),
            helper.make_node("Concat", [f"{n}n", f"{n}a"], [f"{n}r"], axis=-1),
            helper.make_node("Mul", [f"{n}2", "cos"], [f"{n}c"]),
            helper.make_node("Mul", [f"{n}r", "sin"], [f"{n}s"]),
            helper.make_node("Add", [f"{n}c", f"{n}s"], [n]),
        ]
    nodes += [
        helper.make_node("Concat", ["past", "k"], ["present"], axis=2),
        helper.make_node("Transpose", ["present"], ["columns"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "columns"], ["scores"]),
    ]
    constants = {"wq": weights(1, 16, 16) / 4, "wk": weights(2, 16, 16) / 4}
    constants |= {"heads": np.array([1, 1, 2, 8]), "halves": np.array([4, 4])}
    constants["frequencies"] = (1 / 10000 ** (np.arange(0, 8, 2) / 8)).astype(np.float32)
    inputs, outputs = (
        {"x": (1, 1, 16), "past": (1, 2, 63, 8)},
        {"scores": (1, 2, 1, 64), "present": (1, 2, 64, 8)},
    )
    model = model_of(nodes, inputs, outputs, constants)
    model.graph.input.append(helper.make_tensor_value_info("position_ids", TensorProto.INT64, [1, 1]))
    return model


def test_positions_and_a_cache_keep_scores_and_the_new_row(tmp_path: Path) -> None:
    """Against ONNX Runtime's float run; old rows pass through and tell nothing."""
    onnx.save(model := _step_of_a_decoder(), path := tmp_path / "m.onnx")
    generator = np.random.default_rng(3)

    def steps(count: int) -> dict[str, np.ndarray]:
        return {
            "x": generator.standard_normal((count, 1, 1, 16)).astype(np.float32),
            "past": generator.standard_normal((count, 1, 2, 63, 8)).astype(np.float32),
            "position_ids": generator.integers(0, 512, (count, 1, 1)),
        }

    seen, tests = steps(64), steps(16)
    conversion = convert(path, calibration=[{n: a[i] for n, a in seen.items()} for i in range(64)])
    ours = our_outputs(conversion, tests, float_outputs(conversion, tests, print), print)
    run = session(model).run
    theirs = [run(["scores", "present"], {n: a[i] for n, a in tests.items()}) for i in range(16)]
    scores, present = (np.stack(arrays) for arrays in zip(*theirs, strict=True))
    rows = ours["present"].reshape(present.shape)[..., -1, :]
    assert noise_of(scores, ours["scores"].reshape(scores.shape)).sqnr_db > 25
    assert noise_of(present[..., -1, :], rows).sqnr_db > 25


def test_a_folder_of_mappings_is_there_already(fadiff, tmp_path: Path) -> None:
    """`map` has no --force, and advised it."""
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"])]
    onnx.save(model_of(nodes, {"x": (1, 8)}, {"y": (1, 4)}, {"w": weights(1, 8, 4)}), tmp_path / "m.onnx")
    run = (
        "map",
        tmp_path / "m.onnx",
        "--arch",
        "eyeriss-like",
        "--method",
        "local",
        "-q",
        "-o",
        tmp_path / "out",
    )
    assert fadiff(*run).code == 0
    again = fadiff(*run)
    assert again.code == 2 and "choose another --out" in again.err and "--force" not in again.err
