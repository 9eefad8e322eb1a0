"""Calibration data that is not typical is named, and what it does to real data is no success."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from fadiff.converter import convert

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
