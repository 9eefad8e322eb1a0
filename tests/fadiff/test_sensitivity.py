"""What int8 costs, tensor by tensor, and what the user is told of it."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fadiff.converter import convert
from fadiff.sensitivity import sensitivity
from fadiff.vectors import make_vectors

SHAPE = (1, 4, 8, 8)
LOUD = 200.0


@pytest.fixture(scope="module")
def lopsided(tmp_path_factory):
    """Two layers: `coarse` has one channel 200 times as loud as those that `fine` then reads."""
    generator = np.random.default_rng(0)
    coarse = generator.standard_normal((4, 4, 1, 1)).astype(np.float32)
    coarse[0] *= LOUD
    fine = generator.standard_normal((2, 4, 1, 1)).astype(np.float32)
    fine[:, 0] = 0
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["a"], name="coarse"),
            helper.make_node("Conv", ["a", "v"], ["y"], name="fine"),
        ],
        "lopsided",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(coarse, "w"), numpy_helper.from_array(fine, "v")],
    )
    path = tmp_path_factory.mktemp("lopsided") / "lopsided.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_ratios_are_those_of_the_calibration_inputs(lopsided):
    samples = [
        {"x": np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)} for seed in (7, 8)
    ]
    conversion = convert(lopsided, calibration=samples)
    found = sensitivity(make_vectors(conversion, None, seed=0))
    model = onnx.load(lopsided)
    w = numpy_helper.to_array(model.graph.initializer[0])[:, :, 0, 0].astype(np.float64)
    # by hand: x and w are rounded to their grids, the products to that of a
    x = np.concatenate([sample["x"] for sample in samples]).astype(np.float64)
    scale_x, scale_w = np.abs(x).max() / 127, np.abs(w).max() / 127
    a = np.einsum("kc,nchw->nkhw", w, x)
    rounded = np.einsum("kc,nchw->nkhw", np.rint(w / scale_w) * scale_w, np.rint(x / scale_x) * scale_x)
    scale_a = np.abs(a).max() / 127
    noise = a - np.clip(np.rint(rounded / scale_a), -128, 127) * scale_a
    expected = 10 * np.log10((a**2).sum() / (noise**2).sum())
    assert found.sqnr_db["a"] == pytest.approx(expected, abs=0.2)
    assert found.sqnr_db["y"] < 15 < found.sqnr_db["a"]


def test_compile_names_the_layer_that_int8_hurts(fadiff, lopsided, tmp_path):
    fast = ("--target", "gemmini-small", "--method", "layerwise")
    ended = fadiff("compile", lopsided, *fast, "--out", tmp_path / "out")
    judged, *lines = [line for line in ended.out.splitlines() if "SQNR" in line]
    assert "says nothing about real data" in judged  # the inputs are random
    assert ended.code == 0 and len(lines) == 1 and lines[0].split()[:2] == ["sensitive", "fine:"]
    rows = json.loads((tmp_path / "out" / "schedule.json").read_text())["conversion"]["quantization"]
    worst = min(row["sqnr_db"] for row in rows)
    assert f"{worst:.1f} dB" in lines[0] and f"{worst:.1f} dB" in (tmp_path / "out/report.html").read_text()
    ended = fadiff("compile", lopsided, *fast, "--out", tmp_path / "loud", "-v")
    assert [line.split(":")[0].split()[-1] for line in ended.out.splitlines() if ": SQNR" in line] == [
        "fine",
        "coarse",
        "x",  # what inputs lose is measured, too
    ]
