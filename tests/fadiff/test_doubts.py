"""Calibration data that is not typical is named, and what it does to real data is no success."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from fadiff.converter import convert
from fadiff.vectors import make_vectors

FAST = ("--target", "gemmini-small", "--method", "layerwise")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, np.ndarray]:
    """A perceptron that was trained on handwritten digits with pixels from 0 to 1, and two sets of them."""
    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels / 16).astype(np.float32)
    trained = MLPClassifier((32,), max_iter=60, random_state=0, tol=1e-2).fit(pixels[:1200], labels[:1200])
    constants = {"w1": trained.coefs_[0], "b1": trained.intercepts_[0]}
    constants |= {"w2": trained.coefs_[1], "b2": trained.intercepts_[1]}
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], "hidden"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["y"], "scores"),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 64))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 10))],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in constants.items()],
    )
    path = tmp_path_factory.mktemp("digits") / "digits.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path, pixels[1200:1232, None], pixels[1300:1332, None]


def _one_hot_pixel(real: np.ndarray) -> np.ndarray:
    return np.where(np.arange(real.size).reshape(real.shape) == 0, np.float32(1e6), real)


CASES = {
    "constant": (lambda real: np.full_like(real, 0.5), "are equal"),
    "flat": (lambda real: real * 0 + np.arange(32, dtype=np.float32)[:, None, None], "one number everywhere"),
    "one": (lambda real: real[:1], "there is 1 calibration sample"),
    "few": (lambda real: real[:5], "there are 5 calibration samples"),
    "repeated": (lambda real: real[:1].repeat(16, 0), "are equal"),
    "outlier": (_one_hot_pixel, "sample 0 alone sets the range of x: it reaches 1e+06, the others 1"),
    "bytes": (lambda real: np.rint(real * 255), "trained on 0 to 1, divide by 255"),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_named(case: str, digits):
    model, real, _ = digits
    spoil, said = CASES[case]
    found = convert(model, calibration=[{"x": sample} for sample in spoil(real)])
    assert any(said in doubt for doubt in found.doubts) and set(found.doubts) <= set(found.warnings)


@pytest.mark.parametrize("case", ["constant", "outlier"])
def test_real_data_tells(case: str, digits, tmp_path: Path, fadiff):
    model, real, others = digits
    np.savez(tmp_path / "data.npz", x=CASES[case][0](real))
    np.savez(tmp_path / "test.npz", x=others)
    options = ("--calibration", tmp_path / "data.npz", "--test-inputs", tmp_path / "test.npz", "--json", "-q")
    ended = fadiff("compile", model, *FAST, *options, "--out", tmp_path / "out")
    assert ended.code == 1 and json.loads(ended.out)["accuracy"]["state"] == "failed"


def test_an_outlier_does_not_hide_the_others(digits, tmp_path: Path, fadiff):
    """Judged on the spoilt samples themselves: one is 1e6 times as loud, so that all together look well."""
    model, real, _ = digits
    np.savez(tmp_path / "data.npz", x=_one_hot_pixel(real))
    options = ("--calibration", tmp_path / "data.npz", "--json", "-q", "--out", tmp_path / "out")
    ended = fadiff("compile", model, *FAST, *options)
    assert "warning: calibration sample 0 alone" in ended.err
    accuracy = json.loads(ended.out)["accuracy"]
    assert accuracy["sqnr_db"] > 20 > 10 > accuracy["least_db"]
    assert ended.code == 1 and accuracy["least_of"] == "nine samples in ten of y"


def test_usual_data_is_not_doubted(digits, tmp_path: Path, fadiff):
    model, real, others = digits
    np.savez(tmp_path / "data.npz", x=real)
    options = ("--calibration", tmp_path / "data.npz", "--out", tmp_path / "out", "-q", "--verify")
    ended = fadiff("compile", model, *FAST, *options)
    assert ended.code == 0 and "warning" not in ended.err
    measured = next(line for line in ended.out.splitlines() if "measured  " in line)
    assert "on 16 random vectors, which say nothing about real data" in measured
    found = json.loads(fadiff("verify", tmp_path / "out", "--json", "-q").out)
    assert found["vectors_are"] == "random" and found["outputs"][0]["tenth_db"] is not None
    np.savez(tmp_path / "test.npz", x=others)
    options = ("--test-inputs", tmp_path / "test.npz", *options, "--force")
    assert "random" not in fadiff("compile", model, *FAST, *options).out


def test_integers_where_a_quantised_file_takes_what_they_mean(tmp_path: Path) -> None:
    """Bytes of a uint8 input are 0.02 * (integer - 100) here: as they come, all would saturate unnoticed."""
    parsed = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> net (uint8[1,8] x) => (float[1,4] y)
        <float s = {0.02}, uint8 z = {100}, float t = {0.01}, int8 n = {0}, float u = {0.5}> {
            a = DequantizeLinear (x, s, z)
            b = DequantizeLinear (w, t, n)
            c = MatMul (a, b)
            d = QuantizeLinear (c, u, n)
            y = DequantizeLinear (d, u, n)
        }"""
    )
    generator = np.random.default_rng(0)
    weights = generator.integers(-127, 128, (8, 4)).astype(np.int8)
    parsed.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(parsed, tmp_path / "m.onnx")
    data = generator.integers(0, 256, (16, 1, 8)).astype(np.uint8)
    said = "of x reaches 25[0-9], where the model's first operators expect -2 to 3.1"
    conversion = convert(tmp_path / "m.onnx", calibration=[{"x": sample} for sample in data])
    assert len([w for w in conversion.warnings if re.search(f"calibration data {said}", w)]) == 1
    np.savez(tmp_path / "data.npz", x=data)
    vectors = make_vectors(convert(tmp_path / "m.onnx"), tmp_path / "data.npz", seed=0)
    assert len([w for w in vectors.warnings if re.search(said, w)]) == 1
    meant = [{"x": np.float32(0.02) * (sample.astype(np.float32) - 100)} for sample in data]
    assert not convert(tmp_path / "m.onnx", calibration=meant).warnings
