"""A file's zero points of values that are read with padding: the border holds them, nothing else changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

import fadiff
from fadiff.converter import convert
from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.converter.read.interface import InputType
from tests.converter.oracle import Calibration, compare, model_of, session, sqnr_db, weights


def _images() -> onnx.ModelProto:
    """Rectified values read with one border, with two unlike ones, and without any."""
    constants, nodes, value = {}, [], "x"
    windows = ({}, {"pads": [1, 1, 1, 1]}, {"auto_pad": "SAME_UPPER", "strides": [2, 2]})
    for i, window in enumerate(windows):
        shape = (8, 3 if i == 0 else 8, 3, 3)
        constants |= {f"w{i}": weights(i, *shape) / 5, f"b{i}": weights(9 + i, 8) / 4}
        nodes.append(helper.make_node("Conv", [value, f"w{i}", f"b{i}"], [f"c{i}"], **window))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"]))
        value = f"r{i}"
    constants |= {"wide": weights(5, 8, 1, 5, 3), "narrow": weights(6, 4, 8, 1, 1)}
    constants |= {"last": weights(7, 5, 8, 3, 3), "ends": weights(8, 5, 4, 2, 2)}
    nodes += [
        helper.make_node("Conv", [value, "wide"], ["deep"], group=8, pads=[2, 0, 3, 1]),
        helper.make_node("Conv", [value, "narrow"], ["n"]),
        helper.make_node("Conv", [value, "last"], ["y"], pads=[0, 1, 1, 0]),
        helper.make_node("Relu", ["n"], ["rn"]),
        helper.make_node("Conv", ["rn", "ends"], ["z"], dilations=[2, 2], pads=[0, 0, 2, 2]),
    ]
    return model_of(nodes, {"x": (1, 3, 11, 9)}, {"deep": None, "y": None, "z": None}, constants)


def _rows() -> onnx.ModelProto:
    constants = {"a": weights(0, 8, 4, 3), "b": weights(1, 8, 8, 3) / 4, "c": weights(2, 6, 8, 5)}
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["p"], pads=[1, 1]),
        helper.make_node("Relu", ["p"], ["q"]),
        helper.make_node("Conv", ["q", "b"], ["r"], pads=[2, 0]),
        helper.make_node("Relu", ["r"], ["s"]),
        helper.make_node("Conv", ["s", "c"], ["y"], pads=[2, 2], strides=[2]),
    ]
    return model_of(nodes, {"x": (1, 4, 19)}, {"y": None}, constants)


MODELS = {"images": _images, "rows": _rows}


def _samples(model: onnx.ModelProto, first: int, count: int) -> list[dict[str, np.ndarray]]:
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    return [{"x": weights(first + i, *shape)} for i in range(count)]


@pytest.mark.parametrize("name", MODELS)
def test_the_integers_are_the_quantised_models(name: str, tmp_path: Path) -> None:
    conversion = convert(_as_uint8(tmp_path, name))
    assert any("zero points of the file are kept" in note for note in conversion.notes)
    assert compare(conversion, np.random.default_rng(0)).lsb_to_quantized <= 1.01
    padded = [
        layer
        for layer in conversion.graph.layers
        if isinstance(layer, TensorCoreLayer) and any(layer.pads) and layer.input.tensor != "x"
    ]
    assert not padded
    copied = {layer.inputs[0] for layer in conversion.graph.layers if layer.name.endswith(".inside")}
    assert copied <= {"x"}  # others are written in place


@pytest.mark.parametrize("kind", ["float32", "uint8"])
def test_inputs_of_other_types(kind: InputType, tmp_path: Path) -> None:
    conversion = convert(_as_uint8(tmp_path), input_type=kind)
    tensor = conversion.graph.tensors[conversion.graph.inputs[0]]
    assert tensor.dtype == kind
    assert compare(conversion, np.random.default_rng(0)).lsb_to_quantized <= 1.01


@pytest.mark.parametrize("name", MODELS)
def test_the_device_computes_them(name: str, tmp_path: Path) -> None:
    result = fadiff.compile(_as_uint8(tmp_path, name), tmp_path / "out", verify=True)
    assert result.verification is not None
    assert result.verification.bit_exact
    assert any("bordered" in tensor.name for tensor in result.document.tensors)


def _as_uint8(folder: Path, name: str = "images") -> Path:
    """The model as ONNX Runtime quantises it: activations of uint8 with zero points."""
    model = MODELS[name]()
    onnx.save(model, folder / "float.onnx")
    quantize_static(
        folder / "float.onnx",
        folder / "uint8.onnx",
        Calibration(_samples(model, 100, 8)),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return folder / "uint8.onnx"


def test_a_file_keeps_its_zero_points(tmp_path: Path) -> None:
    path = _as_uint8(tmp_path)
    found = {}
    for without in ((), ("border-zeros",), ("shift-zeros",)):
        conversion = convert(path, without=without)
        runs = [
            [session(model).run(None, sample) for sample in _samples(MODELS["images"](), 500, 10)]
            for model in (onnx.load(path), conversion.quantized_model)
        ]
        found[without] = min(sqnr_db(*(np.stack([r[i] for r in run]) for run in runs)) for i in range(3))
        if not without:
            kept = conversion
    scales = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    inner = {
        v: t for t in kept.graph.tensors.values() for v in [t.onnx_name] if v in ("r0", "r1", "r2", "rn")
    }
    for value, tensor in inner.items():
        assert tensor.zero == int(scales[f"{value}_zero_point"]) - 128 == -128
        assert tensor.scale == scales[f"{value}_scale"]
    assert any("zero points of the file are kept" in note for note in kept.notes)
    assert found[()] > found[("border-zeros",)] >= found[("shift-zeros",)]
    assert compare(kept, np.random.default_rng(0)).lsb_to_quantized <= 1.01
