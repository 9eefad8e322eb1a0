"""Labelled data: three contenders side by side, and a compiled folder as a Python function."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import fadiff as package
from fadiff.metrics import METRICS
from tests.fadiff.models import small_network

IMAGE = (8, 12, 12)


@pytest.fixture(scope="module")
def labelled(tmp_path_factory) -> tuple[Path, Path]:
    """The small network with data that it answers right in float, but for the last two of 20 samples."""
    folder = tmp_path_factory.mktemp("labelled")
    model = small_network(folder / "small.onnx")
    numbers = np.random.default_rng(3)
    np.savez(folder / "small.calibration.npz", image=numbers.standard_normal((12, *IMAGE)).astype(np.float32))
    images = numbers.standard_normal((20, 1, *IMAGE)).astype(np.float32)
    session = onnxruntime.InferenceSession(model)
    labels = np.array([int(session.run(None, {"image": image})[0].argmax()) for image in images])
    labels[-2:] = (labels[-2:] + 1) % 10
    data = folder / "data.npz"
    np.savez(data, image=images, labels=labels)
    return model, data


def test_three_contenders(fadiff, labelled, tmp_path):
    model, data = labelled
    ended = fadiff("accuracy", model, "--data", data, "--json", "-q")
    assert ended.code == 0
    found = json.loads(ended.out)
    assert found["metric"] == "top1" and found["samples"] == 20
    rows = {row["contender"]: row for row in found["rows"]}
    assert rows["float"]["top1"] == pytest.approx(0.9)
    assert set(rows) == {
        "float",
        "fadiff int8",
        "ONNX Runtime int8, per tensor",
        "ONNX Runtime int8, per channel",
    }
    assert all(row["sqnr_db"] > 15 for name, row in rows.items() if name != "float")
    assert abs(rows["fadiff int8"]["sqnr_db"] - rows["ONNX Runtime int8, per tensor"]["sqnr_db"]) < 6


def test_a_metric_of_the_user(fadiff, labelled, tmp_path):
    model, data = labelled
    (tmp_path / "mine.py").write_text("def largest(outputs, labels):\n    return outputs['scores'].max()\n")
    ended = fadiff("accuracy", model, "--data", data, "--metric", f"{tmp_path / 'mine.py'}:largest", "-q")
    assert ended.code == 0 and "20 samples" in ended.out
    for metric, message in (
        ("best", "FILE.py:FUNCTION"),
        ("none.py:f", "no file"),
        (f"{tmp_path / 'mine.py'}:f", "no function"),
    ):
        ended = fadiff("accuracy", model, "--data", data, "--metric", metric, "-q")
        assert ended.code == 2 and message in ended.err
    np.savez(tmp_path / "bare.npz", image=np.zeros((2, *IMAGE), np.float32))
    ended = fadiff("accuracy", model, "--data", tmp_path / "bare.npz", "-q")
    assert ended.code == 2 and "no array 'labels'" in ended.err


def test_metrics_by_hand():
    scores = {"y": np.array([[[0.1, 0.5, 0.4]], [[0.6, 0.3, 0.1]]])}
    labels = np.array([2, 0])
    assert METRICS["top1"](scores, labels) == 0.5
    assert METRICS["top5"](scores, labels) == 1.0
    assert METRICS["mse"]({"y": np.array([[1.0, 2.0]])}, np.array([0.0, 4.0])) == 2.5
    mask = {"y": np.array([0.9, 0.8, 0.1, 0.2])}
    assert METRICS["iou"](mask, np.array([1, 0, 0, 1])) == pytest.approx(1 / 3)


def test_a_folder_predicts(fadiff, labelled, tmp_path):
    model, data = labelled
    out = tmp_path / "out"
    fast = ("--target", "gemmini-small", "--method", "layerwise", "--test-inputs", data)
    assert fadiff("compile", model, *fast, "--out", out, "-q").code == 0
    predictor = package.load(out)
    assert predictor.inputs == {"image": (1, *IMAGE)} and predictor.outputs == {"scores": (1, 10)}
    with np.load(data) as content:
        images = content["image"]
    many = predictor.predict({"image": images})["scores"]
    assert many.shape == (20, 1, 10)
    assert np.array_equal(predictor.predict(images[4])["scores"], many[4])
    quantised = onnxruntime.InferenceSession(out / "verify" / "quantized.onnx")
    runtime = np.stack([quantised.run(None, {"image": image})[0] for image in images])
    step = next(t.scale for t in predictor.graph.tensors.values() if t.onnx_name == "scores")
    assert np.abs(many - runtime).max() <= 1.01 * step
    with pytest.raises(package.InputError, match="expected"):
        predictor.predict(np.zeros((3, 3), np.float32))
    with pytest.raises(package.InputError, match="no input"):
        predictor.predict({"photo": images})
