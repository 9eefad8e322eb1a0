"""Quant nodes of QONNX and Brevitas compute what their definition says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import UnsupportedError, convert
from tests.converter.oracle import compare, model_of, session, sqnr_db, weights


def _quant(name: str, value: str, scale: str, bits: str, **attributes: object) -> onnx.NodeProto:
    settings = {"signed": 1, "narrow": 0, "rounding_mode": "ROUND", **attributes}
    domain = "qonnx.custom_op.general"
    return helper.make_node(
        "Quant", [value, scale, "zero", bits], [name], name=name, domain=domain, **settings
    )


def _model(bits: int, folder: Path, **more: object) -> Path:
    """A convolution of a quantised value and quantised weights, rectified and quantised to `bits`."""
    nodes = [
        _quant("xq", "x", "xs", "eight"),
        _quant("wq", "w", "ws", "eight", narrow=1),
        helper.make_node("Conv", ["xq", "wq"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        _quant("y", "r", "ys", "bits", signed=0, **more),
    ]
    constants = {
        "w": weights(1, 4, 3, 1, 1),
        "ws": (np.abs(weights(1, 4, 3, 1, 1)).max((1, 2, 3), keepdims=True) / 127).astype(np.float32),
        "xs": np.array(0.03, np.float32),
        "ys": np.array(8 / 2**bits, np.float32),
        "zero": np.array(0, np.float32),
        "eight": np.array(8, np.float32),
        "bits": np.array(bits, np.float32),
    }
    model = model_of(nodes, {"x": (1, 3, 8, 8)}, {"y": (1, 4, 8, 8)}, constants)
    model.opset_import.append(helper.make_opsetid("qonnx.custom_op.general", 1))
    path = folder / "m.onnx"
    onnx.save(model, path)
    return path


def _expected(x: np.ndarray, bits: int) -> np.ndarray:
    """The definition, in numpy."""
    xq = np.clip(np.rint(x / np.float32(0.03)), -128, 127) * 0.03
    w = weights(1, 4, 3, 1, 1)
    ws = np.abs(w).max((1, 2, 3), keepdims=True) / 127
    wq = np.clip(np.rint(w / ws), -127, 127) * ws
    c = np.einsum("kc,nchw->nkhw", wq[:, :, 0, 0], xq)
    ys = 8 / 2**bits
    return np.clip(np.rint(np.maximum(c, 0) / ys), 0, 2**bits - 1) * ys


@pytest.mark.parametrize(("bits", "least_db"), [(8, 33), (6, 24), (4, 18)])
def test_a_quantised_convolution(bits: int, least_db: float, tmp_path: Path) -> None:
    conversion = convert(_model(bits, tmp_path), quantize="none")
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    ours = session(conversion.quantized_model).run(None, {"x": x})[0]
    assert sqnr_db(_expected(x, bits), ours) > least_db
    assert compare(conversion, np.random.default_rng(1)).lsb_to_quantized <= 1.01
    if bits < 8:  # the few levels of the file, and nothing between
        levels = ours / (8 / 2**bits)
        np.testing.assert_allclose(levels, np.rint(levels), atol=1e-4)
        assert levels.max() <= 2**bits - 1


def test_other_roundings_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"y \(qonnx.custom_op.general.Quant\)"):
        convert(_model(8, tmp_path, rounding_mode="FLOOR"))


def test_bipolar_weights_and_values(tmp_path: Path) -> None:
    """Brevitas' BipolarQuant: the scale with the sign of the value, 0 counting as positive."""
    nodes = [
        helper.make_node("BipolarQuant", ["w", "ws"], ["wq"], name="wq", domain="onnx.brevitas"),
        helper.make_node("MatMul", ["x", "wq"], ["c"], name="product"),
        helper.make_node("BipolarQuant", ["c", "ys"], ["y"], name="yq", domain="onnx.brevitas"),
    ]
    w = weights(1, 6, 5)
    w[0, 0] = 0
    constants = {"w": w, "ws": np.array(0.5, np.float32), "ys": np.array([0.25], np.float32)}
    model = model_of(nodes, {"x": (4, 6)}, {"y": (4, 5)}, constants)
    model.opset_import.append(helper.make_opsetid("onnx.brevitas", 1))
    onnx.save(model, tmp_path / "m.onnx")
    conversion = convert(tmp_path / "m.onnx")
    x = weights(2, 4, 6)
    (found,) = session(conversion.float_model).run(None, {"x": x})
    expected = np.where(x @ np.where(w >= 0, 0.5, -0.5) >= 0, 0.25, -0.25)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("bits", [4, 9, 12])
@pytest.mark.parametrize("signed", [0, 1])
def test_weights_of_other_widths_are_the_numbers_that_they_stand_for(
    bits: int, signed: int, tmp_path: Path
) -> None:
    """Above eight bits they are no int8: 9 unsigned bits reach 511 steps, 12 signed ones 2,047."""
    w, step = weights(1, 6, 5) * 100, 0.25
    nodes = [
        _quant("wq", "w", "ws", "bits", signed=signed),
        helper.make_node("MatMul", ["x", "wq"], ["y"], name="product"),
    ]
    constants = {"w": w, "ws": np.array(step, np.float32), "bits": np.array(bits, np.float32)}
    constants["zero"] = np.array(0, np.float32)
    model = model_of(nodes, {"x": (4, 6)}, {"y": (4, 5)}, constants)
    model.opset_import.append(helper.make_opsetid("qonnx.custom_op.general", 1))
    onnx.save(model, tmp_path / "m.onnx")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    meant = np.clip(np.rint(w / np.float32(step)), low, high) * step
    x = weights(2, 4, 6)
    (found,) = session(convert(tmp_path / "m.onnx").float_model).run(None, {"x": x})
    np.testing.assert_allclose(found, x @ meant, rtol=1e-5, atol=1e-4)
