"""Quant nodes of QONNX and Brevitas compute what their definition says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import UnsupportedError, convert
from fadiff.converter.dequantise.qonnx import expand_quant_nodes
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
    model = model_of(nodes, {"x": (4, 6)}, {"y": (4, 5), "c": (4, 5)}, constants)
    model.opset_import.append(helper.make_opsetid("onnx.brevitas", 1))
    onnx.save(model, tmp_path / "m.onnx")
    conversion = convert(tmp_path / "m.onnx")
    x = weights(2, 4, 6)
    found, product = session(conversion.float_model).run(None, {"x": x})
    np.testing.assert_allclose(product, x @ np.where(w >= 0, 0.5, -0.5), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found, np.where(product >= 0, 0.25, -0.25), atol=1e-6)


@pytest.mark.parametrize("bits", [4, 9, 12])
@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("signed", [0, 1])
def test_weights_of_other_widths_are_the_numbers_that_they_stand_for(
    bits: int, signed: int, zero: int, tmp_path: Path
) -> None:
    """Above eight bits they are no int8: 9 unsigned bits reach 511 steps, 12 signed ones 2,047."""
    w, step = weights(1, 6, 5) * 100, 0.25
    nodes = [
        _quant("wq", "w", "ws", "bits", signed=signed),
        helper.make_node("MatMul", ["x", "wq"], ["y"], name="product"),
    ]
    constants = {"w": w, "ws": np.array(step, np.float32), "bits": np.array(bits, np.float32)}
    constants["zero"] = np.array(zero, np.float32)
    model = model_of(nodes, {"x": (4, 6)}, {"y": (4, 5)}, constants)
    model.opset_import.append(helper.make_opsetid("qonnx.custom_op.general", 1))
    onnx.save(model, tmp_path / "m.onnx")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    meant = (np.clip(np.rint(w / np.float32(step)) + zero, low, high) - zero) * step
    x = weights(2, 4, 6)
    (found,) = session(convert(tmp_path / "m.onnx").float_model).run(None, {"x": x})
    np.testing.assert_allclose(found, x @ meant, rtol=1e-5, atol=1e-4)


def _expanded(nodes: list[onnx.NodeProto], opset: int = 17, **constants: np.ndarray) -> onnx.ModelProto:
    inputs = {} if "x" in constants else {"x": (3, 40)}
    model = model_of(nodes, inputs, {"y": None}, constants, opset)
    model.opset_import.append(helper.make_opsetid("qonnx.custom_op.general", 1))
    return expand_quant_nodes(model)


@pytest.mark.parametrize("opset", [10, 17])
@pytest.mark.parametrize("zero", [0, 3, -2])
@pytest.mark.parametrize(("signed", "narrow"), [(0, 0), (1, 0), (1, 1)])
@pytest.mark.parametrize("bits", [2, 3, 8])
def test_values_are_what_the_definition_says(
    bits: int, signed: int, narrow: int, zero: int, opset: int
) -> None:
    """Quant(x) = (clip(round(x / scale + zero), min, max) - zero) scale, also beyond the range.

    To the bit, but that eight narrow bits may reach one step farther down, as int8 does.
    """
    node = _quant("y", "x", "ys", "bits", signed=signed, narrow=narrow)
    constants = {"ys": np.float32(0.25), "bits": np.float32(bits), "zero": np.float32(zero)}
    model = _expanded([node], opset, **{name: np.asarray(a) for name, a in constants.items()})
    low, high = (-(2 ** (bits - 1)) + narrow, 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if not low <= zero <= high:  # it cannot be zero
        assert [node.op_type for node in model.graph.node] == ["Quant"]
        return
    x = np.linspace(-40, 70, 120, dtype=np.float32).reshape(3, 40)
    wanted = (np.clip(np.rint(x / np.float32(0.25)) + zero, low, high) - zero) * np.float32(0.25)
    (found,) = session(model).run(None, {"x": x})
    is_lowest = wanted == wanted.min()
    np.testing.assert_array_equal(found[~is_lowest], wanted[~is_lowest])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=0.25 if narrow and bits == 8 else 0)


@pytest.mark.parametrize("axis", [0, 1])
def test_weights_with_a_scale_for_each_channel_are_integers_along_their_axis(axis: int) -> None:
    values = weights(1, 3, 40)
    scale = np.float32(0.01) * np.arange(1, values.shape[axis] + 1, dtype=np.float32)
    node = _quant("y", "x", "ys", "bits", signed=1)
    broadcast = scale.reshape((-1, 1) if axis == 0 else (1, -1))
    model = _expanded(
        [node], x=values, ys=broadcast, bits=np.array(8, np.float32), zero=np.array(0, np.float32)
    )
    (found,) = session(model).run(None, {})
    integers = np.clip(np.rint(values / broadcast), -128, 127)
    np.testing.assert_array_equal(found, integers * broadcast)
    kept = [onnx.numpy_helper.to_array(t) for t in model.graph.initializer]
    assert any(array.dtype == np.int8 and np.array_equal(array, integers) for array in kept)


@pytest.mark.parametrize(
    "given",
    [
        {"zero": np.zeros(40)},
        {"bits": np.full(40, 8)},
        {"ys": np.float32([np.inf])},
        {"ys": np.float32([0])},
        {"ys": np.linspace(0.1, 1, 40)},  # values have one scale
        {"bits": np.array(9)},
    ],
)
def test_values_that_are_no_eight_bits_stay(given: dict[str, np.ndarray]) -> None:
    constants = {"ys": np.array(0.25), "bits": np.array(8), "zero": np.array(0)} | given
    model = _expanded(
        [_quant("y", "x", "ys", "bits", signed=1)], **{n: a.astype(np.float32) for n, a in constants.items()}
    )
    assert [node.op_type for node in model.graph.node] == ["Quant"]


@pytest.mark.parametrize("scales", [None, 2])
def test_a_sign_without_one_constant_scale_stays(scales: int | None) -> None:
    node = helper.make_node("BipolarQuant", ["x", "ys"], ["y"], domain="qonnx.custom_op.general")
    constants = {} if scales is None else {"ys": np.ones(scales, np.float32)}
    assert [node.op_type for node in _expanded([node], **constants).graph.node] == ["BipolarQuant"]
