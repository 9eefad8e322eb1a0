"""Workloads as schedulers exchange them: sizes of weights, no numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fadiff.converter import ModelError, UnsupportedError, convert
from tests.converter.oracle import model_of, weights


def _network() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["y"]),
    ]
    constants = {"w1": np.zeros((16, 3, 3, 3), np.float32), "w2": np.zeros((8, 16, 1, 1), np.float32)}
    return model_of(nodes, {"x": (1, 3, 8, 8)}, {"y": (1, 8, 8, 8)}, constants)


def _stripped(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")


def _lost(model: onnx.ModelProto) -> None:
    _stripped(model)
    for tensor in model.graph.initializer:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="lost.bin")


def _as_inputs(model: onnx.ModelProto) -> None:
    model.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, list(tensor.dims))
        for tensor in model.graph.initializer
    )
    del model.graph.initializer[:]


def _int8_typed(model: onnx.ModelProto) -> None:
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.INT8
    for tensor in model.graph.initializer:
        tensor.data_type, tensor.raw_data = TensorProto.INT8, bytes(int(np.prod(tensor.dims)))


@pytest.mark.parametrize("spelling", [_stripped, _lost, _as_inputs, _int8_typed])
def test_layers_of_a_file_without_weights(
    spelling: Callable[[onnx.ModelProto], None], tmp_path: Path
) -> None:
    model = _network()
    spelling(model)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    conversion = convert(tmp_path / "m.onnx", calibrate=False)
    sizes = [(layer.dims.K, layer.dims.C, layer.dims.R) for layer in conversion.graph.tensor_core_layers]
    assert sizes == [(16, 3, 3), (8, 16, 1)]
    assert any("they are drawn" in warning for warning in conversion.warnings)
    assert all(conversion.graph.tensors[layer.weight.tensor].data.any() for layer in conversion.graph.layers)


def test_weights_that_calibration_brings_are_inputs(tmp_path: Path) -> None:
    model = _network()
    _as_inputs(model)
    onnx.save(model, tmp_path / "m.onnx")
    sample = {"x": weights(1, 1, 3, 8, 8), "w1": weights(2, 16, 3, 3, 3), "w2": weights(3, 8, 16, 1, 1)}
    with pytest.raises(UnsupportedError, match="computed at run time"):
        convert(tmp_path / "m.onnx", calibration=[sample])


def test_a_file_that_has_some_weights_is_damaged(tmp_path: Path) -> None:
    model = _network()
    _lost(model)
    model.graph.initializer[0].external_data[0].value = "there.bin"
    (tmp_path / "there.bin").write_bytes(bytes(4 * 16 * 27))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=r"lost\.bin is missing; put it beside the model"):
        convert(tmp_path / "m.onnx")


def test_a_gemm_of_two_activations_has_no_weights(tmp_path: Path) -> None:
    model = model_of(
        [helper.make_node("Gemm", ["a", "b"], ["y"], transB=1)], {"a": (4, 8), "b": (6, 8)}, {"y": (4, 6)}
    )
    onnx.save(model, tmp_path / "m.onnx")
    conversion = convert(tmp_path / "m.onnx", calibrate=False)
    assert list(conversion.graph.inputs) == ["a", "b"]
    assert not any("drawn" in warning for warning in conversion.warnings)
