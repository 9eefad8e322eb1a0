"""What the integers of inputs and outputs mean: the header says it, and Python fills and reads them so."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

import fadiff
from tests.converter.oracle import model_of, session, sqnr_db, weights

QUICK = {"method": "layerwise", "time_budget": 1.0, "verify": True}


def _numbers(header: str, macro: str) -> np.ndarray:
    """The numbers of a macro that is a braced list."""
    (found,) = re.findall(rf"#define \w+_{macro} \{{(.*)\}}", header)
    return np.array([float(number.strip().rstrip("f")) for number in found.split(",")])


def test_an_output_of_unlike_parts(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]),
        helper.make_node("MatMul", ["x", "w"], ["b"]),
        helper.make_node("Sigmoid", ["b"], ["s"]),
        helper.make_node("Concat", ["a", "s"], ["y"], axis=1),
    ]
    constants = {"v": 100 * weights(1, 16, 4), "w": weights(2, 16, 12)}
    model = model_of(nodes, {"x": (8, 16)}, {"y": None}, constants)
    path = tmp_path / "head.onnx"
    onnx.save(model, path)
    samples = [{"x": weights(i, 8, 16)} for i in range(9)]
    result = fadiff.compile(path, tmp_path / "out", calibration=samples, **QUICK)
    assert result.verification is not None
    assert result.verification.bit_exact and result.verification.traffic_exact
    header = (tmp_path / "out" / "firmware" / "head.h").read_text()
    assert "HEAD_OUTPUT0_SCALE" not in header and "HEAD_OUTPUT0_PARTS 2" in header
    assert _numbers(header, "OUTPUT0_PART_COUNTS").tolist() == [4, 12]
    scales, offsets = (_numbers(header, f"OUTPUT0_PART_{what}") for what in ("SCALES", "OFFSETS"))
    x = weights(50, 8, 16)
    (expected,) = session(model).run(None, {"x": x})
    found = fadiff.load(tmp_path / "out").predict(x)["y"]
    assert sqnr_db(expected[:, 4:], found[:, 4:]) > 25 and sqnr_db(expected[:, :4], found[:, :4]) > 25
    for part, scale, offset in zip((found[:, :4], found[:, 4:]), scales, offsets, strict=True):
        integers = (part - offset) / scale
        assert np.abs(integers - np.rint(integers)).max() < 1e-3 and np.abs(integers).max() <= 128.001


def test_an_input_of_unlike_columns(tmp_path: Path) -> None:
    mean, spread = np.array([1013, 25, 0.5, 0.02]), np.array([50, 5, 0.1, 0.01])
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v"], ["y"]),
    ]
    w = weights(1, 4, 16) / spread[:, None].astype(np.float32)
    constants = {"w": w, "b": -mean.astype(np.float32) @ w, "v": weights(2, 16, 3)}
    model = model_of(nodes, {"x": (1, 4)}, {"y": None}, constants)
    path = tmp_path / "table.onnx"
    onnx.save(model, path)
    generator = np.random.default_rng(0)
    samples = (mean + spread * generator.standard_normal((64, 1, 4))).astype(np.float32)
    result = fadiff.compile(path, tmp_path / "out", calibration=[{"x": x} for x in samples[:48]], **QUICK)
    assert result.verification is not None
    assert result.verification.bit_exact and result.verification.traffic_exact
    header = (tmp_path / "out" / "firmware" / "table.h").read_text()
    scales, offsets = (_numbers(header, f"INPUT0_PART_{what}") for what in ("SCALES", "OFFSETS"))
    predictor = fadiff.load(tmp_path / "out")
    expected = np.stack([session(model).run(None, {"x": x})[0] for x in samples[48:]])
    found = np.stack([predictor.predict(x)["y"] for x in samples[48:]])
    assert sqnr_db(expected, found) > 24
    filled = np.clip(np.rint((samples[48:] - offsets) / scales), -128, 127)  # as the manual says
    again = np.stack([predictor.predict((scales * x + offsets).astype(np.float32))["y"] for x in filled])
    np.testing.assert_array_equal(again, found)
