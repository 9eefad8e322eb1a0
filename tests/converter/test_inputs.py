"""Inputs in their own units: what their integers mean is said column by column, weights take it back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import Conversion, convert
from fadiff.converter.check.reference import run_reference
from fadiff.converter.check.storage import from_storage, store_inputs
from tests.converter.oracle import model_of, session, sqnr_db, weights

MEAN = np.array([101325, 25, 0.5, 0.02], np.float32)
SPREAD = np.array([500, 5, 0.1, 0.01], np.float32)


def _samples(seed: int, count: int, mean: np.ndarray, spread: np.ndarray) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(seed)
    return [
        {"x": (mean + spread * generator.standard_normal((1, 4))).astype(np.float32)} for _ in range(count)
    ]


def _quality(
    model: onnx.ModelProto, conversion: Conversion, tests: list[dict[str, np.ndarray]]
) -> tuple[float, float]:
    """SQNR of the integers against the file, and how far the float model is from it, in parts."""
    graph, floats, file = conversion.graph, session(conversion.float_model), session(model)
    (name,) = graph.outputs
    real, found, normalised = [], [], []
    for feeds in tests:
        real.append(file.run(None, feeds)[0])
        normalised.append(floats.run(None, feeds)[0])
        stored = run_reference(graph, store_inputs(graph, feeds))[name]
        found.append(from_storage(graph.tensors[name], stored, real[-1].shape))
    drift = np.abs(np.array(real) - np.array(normalised)).max() / np.abs(real).max()
    return sqnr_db(np.array(real), np.array(found)), float(drift)


def test_a_normaliser_in_front_is_what_the_integers_mean(tmp_path: Path) -> None:
    """(x - mean) / std of a sensor model: no layer; by hand x = mean + std * scale * q."""
    nodes = [
        helper.make_node("Sub", ["x", "mean"], ["a"]),
        helper.make_node("Div", ["a", "std"], ["n"]),
        helper.make_node("Gemm", ["n", "w", "b"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v"], ["y"]),
    ]
    constants = {
        "mean": MEAN[None],
        "std": SPREAD[None],
        "w": weights(1, 4, 16),
        "b": weights(2, 16),
        "v": weights(3, 16, 3),
    }
    model = model_of(nodes, {"x": (1, 4)}, {"y": None}, constants)
    onnx.save(model, tmp_path / "m.onnx")
    conversion = convert(tmp_path / "m.onnx", calibration=_samples(0, 48, MEAN, SPREAD))
    graph = conversion.graph
    assert [layer.op for layer in graph.layers] == ["gemm", "gemm"]
    tensor = graph.tensors[graph.inputs[0]]
    assert tensor.along is not None and tensor.along.axis == 1
    np.testing.assert_allclose([part.offset for part in tensor.along.parts], MEAN, rtol=1e-6)
    scales = np.array([part.scale for part in tensor.along.parts])
    np.testing.assert_allclose(scales / scales[0], SPREAD / SPREAD[0], rtol=1e-6)
    decibels, drift = _quality(model, conversion, _samples(1, 16, MEAN, SPREAD))
    assert decibels > 24 and drift < 1e-5
    plain = convert(tmp_path / "m.onnx", calibration=_samples(0, 48, MEAN, SPREAD), without=["fold-inputs"])
    assert len(plain.graph.layers) == 4 and _quality(model, plain, _samples(1, 16, MEAN, SPREAD))[0] < 5


@pytest.mark.parametrize("kind", ["gemm", "gemm with alpha", "matmul", "matmul, add"])
def test_raw_columns_of_unlike_range(kind: str, tmp_path: Path) -> None:
    """As a driving policy reads its states: the weights expect them as they are."""
    mean, spread = np.array([0, 0.1, 20, -3], np.float32), np.array([0.01, 0.3, 35, 5], np.float32)
    w = weights(1, 4, 32) / spread[:, None]
    first = {
        "gemm": [helper.make_node("Gemm", ["x", "w", "b"], ["a"])],
        "gemm with alpha": [helper.make_node("Gemm", ["x", "w"], ["a"], transB=1, alpha=0.5, beta=3.0)],
        "matmul": [helper.make_node("MatMul", ["x", "w"], ["a"])],
        "matmul, add": [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Add", ["b", "m"], ["a"]),
        ],
    }[kind]
    nodes = [
        *first,
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    transposed = kind == "gemm with alpha"
    constants = {"w": w.T.copy() if transposed else w, "b": weights(2, 32), "v": weights(3, 32, 5)}
    model = model_of(nodes, {"x": (1, 4)}, {"y": None}, constants)
    onnx.save(model, tmp_path / "m.onnx")
    for input_type, in_front in (("int8", []), ("float32", ["float_binary", "float_binary", "to_int8"])):
        conversion = convert(
            tmp_path / "m.onnx", calibration=_samples(0, 200, mean, spread), input_type=input_type
        )
        decibels, drift = _quality(model, conversion, _samples(1, 32, mean, spread))
        assert decibels > 25 and drift < 1e-5
        assert conversion.graph.tensors[conversion.graph.inputs[0]].dtype == input_type
        assert [layer.op for layer in conversion.graph.layers if layer.op != "float_formula"] == [
            *in_front,
            "gemm",
            "gemm",
        ]
        assert not any("keep-float" in note for note in conversion.notes)


@pytest.mark.parametrize("padded", [False, True])
def test_pixels_have_an_offset_where_nothing_is_padded(padded: bool, tmp_path: Path) -> None:
    """From 0 to 1: all 255 steps, unless a border must stay zero."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[int(padded)] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    constants = {"w": weights(1, 8, 3, 3, 3), "b": weights(2, 8)}
    model = model_of(nodes, {"x": (1, 3, 16, 16)}, {"y": None}, constants)
    onnx.save(model, tmp_path / "m.onnx")
    generator = np.random.default_rng(0)
    samples = [{"x": generator.random((1, 3, 16, 16), np.float32)} for _ in range(12)]
    conversion = convert(tmp_path / "m.onnx", calibration=samples[:8])
    along = conversion.graph.tensors[conversion.graph.inputs[0]].along
    assert (along is None) == padded
    if along is not None:
        (part,) = along.parts
        assert part.count == 3 and part.offset == pytest.approx(0.5, abs=0.01)
        assert part.scale == pytest.approx(1 / 254, rel=0.04)
    assert _quality(model, conversion, samples[8:])[0] > 35


def test_channels_of_groups(tmp_path: Path) -> None:
    size = np.array([1, 100, 0.1, 5], np.float32)
    w = weights(1, 8, 2, 1, 1) / np.repeat(size.reshape(2, 2), 4, 0).reshape(8, 2, 1, 1)
    model = model_of(
        [helper.make_node("Conv", ["x", "w"], ["y"], group=2)], {"x": (1, 4, 8, 8)}, {"y": None}, {"w": w}
    )
    onnx.save(model, tmp_path / "m.onnx")
    samples = [{"x": size.reshape(1, 4, 1, 1) * weights(i, 1, 4, 8, 8)} for i in range(12)]
    conversion = convert(tmp_path / "m.onnx", calibration=samples[:8])
    decibels, drift = _quality(model, conversion, samples[8:])
    assert decibels > 25 and drift < 1e-5


def test_columns_that_never_moved_keep_room(tmp_path: Path) -> None:
    """A flag that calibration saw at 0 only is not given a scale that makes 1 saturate."""
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": (1, 4)},
        {"y": None},
        {"w": np.eye(4, dtype=np.float32)},
    )
    onnx.save(model, tmp_path / "m.onnx")
    still = np.array([1, 1, 0, 1e-3], np.float32)
    conversion = convert(tmp_path / "m.onnx", calibration=_samples(0, 64, 0 * still, still))
    graph = conversion.graph
    tensor = graph.tensors[graph.inputs[0]]
    stored = store_inputs(graph, {"x": np.array([[0, 0, 1, 0]], np.float32)})[tensor.name]
    assert from_storage(tensor, stored, (1, 4))[0, 2] == pytest.approx(1, abs=0.02)
