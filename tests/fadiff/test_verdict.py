"""A network that int8 destroys is not reported as a success."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fadiff.costmodel.schedule.conversion_record import AccuracyRecord, ConversionRecord, OutputAccuracyRecord
from fadiff.costmodel.schedule.document import ScheduleDocument
from fadiff.costmodel.schedule.verdict import verdict_of

SHAPE = (1, 8)
FAST = ("--target", "gemmini-small", "--method", "layerwise")


def _network(path: Path, loud: float) -> Path:
    """Scores of 4 classes from features; one, `loud` times as large as the others, counts for nothing."""
    generator = np.random.default_rng(0)
    spread = generator.standard_normal((8, 16)).astype(np.float32)
    spread[:, 0] *= loud
    scores = generator.standard_normal((16, 4)).astype(np.float32)
    scores[0] = 0
    nodes = [
        helper.make_node("MatMul", ["x", "spread"], ["features"], name="spread"),
        helper.make_node("Relu", ["features"], ["positive"], name="relu"),
        helper.make_node("MatMul", ["positive", "scores"], ["logits"], name="score"),
        helper.make_node("Softmax", ["logits"], ["y"], name="softmax"),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4))],
        [numpy_helper.from_array(spread, "spread"), numpy_helper.from_array(scores, "scores")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "real.npz"
    np.savez(file, x=np.random.default_rng(1).standard_normal((24, *SHAPE)).astype(np.float32))
    return file


def test_a_network_that_survives(fadiff, tmp_path, data):
    model, out = _network(tmp_path / "good.onnx", 1.0), tmp_path / "out"
    ended = fadiff("compile", model, *FAST, "--calibration", data, "--out", out, "--verify", "--json", "-q")
    assert ended.code == 0
    accuracy = json.loads(ended.out)["accuracy"]
    assert accuracy["state"] == "good"
    assert accuracy["inputs"] == "calibration" and accuracy["samples"] == 24
    (output,) = accuracy["outputs"]
    assert output["output"] == "y" and output["classifies"]
    assert output["top1_agreement"] >= 0.9 and output["sqnr_db"] > 20
    assert "against the float model" in (out / "report.html").read_text()


def test_a_network_that_is_lost(fadiff, tmp_path, data):
    model, out = _network(tmp_path / "lost.onnx", 500.0), tmp_path / "out"
    ended = fadiff("compile", model, *FAST, "--calibration", data, "--out", out, "--verify", "-q")
    assert ended.code == 1
    assert "FAILED" in ended.out and "lost at spread" in ended.out and "--calibration" not in ended.err
    assert "bit-exact   3 of 3" in ended.out  # right integers, all the same
    assert "as ONNX Runtime's quantised model" in ended.out
    assert fadiff("verify", out, "-q").code == 1
    found = json.loads(fadiff("verify", out, "--json", "-q").out)
    assert found["bit_exact"] and not found["passed"]
    assert found["accuracy"]["state"] == "failed"
    assert found["top1_agreement"] < 0.9 < found["quantized_top1_agreement"]
    assert fadiff("verify", out, "-q", "--min-sqnr", -99, "--min-top1", 0).code == 0


def test_test_inputs_come_first(fadiff, tmp_path, data):
    model = _network(tmp_path / "good.onnx", 1.0)
    test = tmp_path / "test.npz"
    np.savez(test, x=np.random.default_rng(2).standard_normal((5, *SHAPE)).astype(np.float32))
    options = ("--calibration", data, "--test-inputs", test, "--out", tmp_path / "out", "--json", "-q")
    accuracy = json.loads(fadiff("compile", model, *FAST, *options).out)["accuracy"]
    assert accuracy["inputs"] == "test" and accuracy["samples"] == 5


def test_random_inputs_judge_nothing(fadiff, tmp_path):
    model = _network(tmp_path / "lost.onnx", 500.0)
    ended = fadiff("compile", model, *FAST, "--out", tmp_path / "out", "-q")
    assert ended.code == 0
    assert "says nothing about real data" in ended.out and "--calibration FILE.npz" in ended.out


def _judged(sqnr: float | None, top1: float | None, classifies: bool, **options: float) -> str:
    output = OutputAccuracyRecord(output="y", sqnr_db=sqnr, top1_agreement=top1, classifies=classifies)
    record = AccuracyRecord(inputs="test", samples=10, outputs=(output,))
    document = ScheduleDocument.model_construct(conversion=ConversionRecord(accuracy=record), layers=())
    verdict = verdict_of(document, **options)
    assert verdict is not None
    return verdict.state


def test_thresholds():
    assert _judged(25, 0.95, True) == "good"
    assert _judged(15, 0.95, True) == "poor"
    assert _judged(9, 0.95, True) == "failed"
    assert _judged(25, 0.85, True) == "failed"
    assert _judged(25, 0.85, False) == "poor"  # any vector has a largest entry
    assert _judged(15, 0.85, False) == "failed"
    assert _judged(None, None, False) == "good"
    assert _judged(9, 0.85, True, min_sqnr=5, min_top1=80) == "poor"
    assert _judged(25, 0.95, True, min_sqnr=30) == "failed"
