"""Models that a quantisation tool wrote: every placement and scheme converts, accuracy stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from converter import ModelError, convert
from tests.converter.oracle import compare, model_of, session, sqnr_db, weights

SYMMETRIC = {"ActivationSymmetric": True, "WeightSymmetric": True}
SCHEMES = {
    "qdq symmetric": (QuantFormat.QDQ, QuantType.QInt8, QuantType.QInt8, False, SYMMETRIC),
    "qdq uint8": (QuantFormat.QDQ, QuantType.QUInt8, QuantType.QInt8, False, {}),
    "qdq int8 zero points": (QuantFormat.QDQ, QuantType.QInt8, QuantType.QInt8, False, {}),
    "qdq per channel": (QuantFormat.QDQ, QuantType.QUInt8, QuantType.QInt8, True, {}),
    "operators symmetric": (QuantFormat.QOperator, QuantType.QInt8, QuantType.QInt8, False, SYMMETRIC),
    "operators uint8": (QuantFormat.QOperator, QuantType.QUInt8, QuantType.QUInt8, False, {}),
    "operators per channel": (QuantFormat.QOperator, QuantType.QUInt8, QuantType.QInt8, True, {}),
}


def _float_model() -> onnx.ModelProto:
    """Everything the quantiser has its own operators for."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1], name="c1"),
        helper.make_node("Relu", ["c1"], ["r1"], name="r1"),
        helper.make_node("MaxPool", ["r1"], ["p"], kernel_shape=[2, 2], strides=[2, 2], name="p"),
        helper.make_node("Conv", ["p", "w2"], ["c2"], pads=[1, 1, 1, 1], name="c2"),
        helper.make_node("Add", ["c2", "p"], ["a"], name="a"),
        helper.make_node("LeakyRelu", ["a"], ["l"], alpha=0.1, name="l"),
        helper.make_node("Concat", ["l", "p"], ["k"], axis=1, name="k"),
        helper.make_node("Sigmoid", ["k"], ["s"], name="s"),
        helper.make_node("Mul", ["k", "s"], ["m"], name="m"),
        helper.make_node("GlobalAveragePool", ["m"], ["g"], name="g"),
        helper.make_node("Flatten", ["g"], ["f"], name="f"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], name="fc"),
    ]
    constants = {
        "w1": weights(1, 8, 3, 3, 3),
        "b1": weights(2, 8),
        "w2": weights(3, 8, 8, 3, 3) / 8,
        "w3": weights(4, 16, 10),
        "b3": weights(5, 10),
    }
    return model_of(nodes, {"x": (1, 3, 12, 12)}, {"y": (1, 10)}, constants)


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self.left = [{"x": _input(i)} for i in range(8)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.left.pop() if self.left else None


def _input(seed: int) -> np.ndarray:
    return np.random.default_rng(100 + seed).standard_normal((1, 3, 12, 12)).astype(np.float32)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_of_onnxruntime(scheme: str, tmp_path: Path) -> None:
    source, path = tmp_path / "float.onnx", tmp_path / "quantised.onnx"
    onnx.save(_float_model(), source)
    form, activation, weight, per_channel, extra = SCHEMES[scheme]
    quantize_static(
        source,
        path,
        _Reader(),
        quant_format=form,
        activation_type=activation,
        weight_type=weight,
        per_channel=per_channel,
        extra_options=extra,
    )
    conversion = convert(path)
    assert not conversion.warnings  # nothing had to be calibrated
    x = _input(50)
    theirs = session(onnx.load(path)).run(None, {"x": x})[0]
    ours = session(conversion.quantized_model).run(None, {"x": x})[0]
    assert sqnr_db(theirs, ours) > 17
    checked = compare(conversion, np.random.default_rng(7))
    assert checked.lsb_to_quantized <= 4
    lossless = "symmetric" in scheme
    assert any("not bit-exact" in note for note in conversion.notes) != lossless


def test_dynamic_quantisation_is_calibrated(tmp_path: Path) -> None:
    source, path = tmp_path / "float.onnx", tmp_path / "dynamic.onnx"
    onnx.save(_float_model(), source)
    quantize_dynamic(source, path)
    conversion = convert(path, calibration=[{"x": _input(i)} for i in range(8)])
    assert any("dynamically" in note for note in conversion.notes)
    x = _input(50)
    theirs = session(onnx.load(path)).run(None, {"x": x})[0]
    assert sqnr_db(theirs, session(conversion.quantized_model).run(None, {"x": x})[0]) > 17


def test_symmetric_scales_and_integers_are_kept(tmp_path: Path) -> None:
    """A QDQ convolution in the form Gemmini executes: not one number changes."""
    integers = np.random.default_rng(0).integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
    integers.flat[0] = 90  # the largest is not 127: a new scale would change them
    integers = np.clip(integers, -90, 90)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "z"], ["wd"]),
        helper.make_node("Conv", ["xd", "wd"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "ys", "z"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "ys", "z"], ["y"]),
    ]
    scales = {n: np.array(v, np.float32) for n, v in (("xs", 0.03), ("ws", 0.002), ("ys", 0.05))}
    constants = {"w": integers, "z": np.array(0, np.int8), **scales}
    model = model_of(nodes, {"x": (1, 3, 8, 8)}, {"y": (1, 4, 6, 6)}, constants)
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    graph = convert(path, quantize="none").graph
    (layer,) = graph.tensor_core_layers
    tensors = graph.tensors
    assert tensors[layer.input.tensor].scale == np.float32(0.03)
    assert tensors[layer.weight.tensor].scale == np.float32(0.002)
    assert tensors[layer.output.tensor].scale == np.float32(0.05)
    np.testing.assert_array_equal(tensors[layer.weight.tensor].data[0], integers.transpose(2, 3, 1, 0))
    assert layer.scale == (np.float32(0.03) * np.float32(0.002)) / np.float32(0.05)


def test_relu_hidden_in_the_zero_point_returns(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("QuantizeLinear", ["c", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    constants = {"w": weights(1, 4, 3, 1, 1), "s": np.array(0.02, np.float32), "z": np.array(0, np.uint8)}
    path = tmp_path / "m.onnx"
    onnx.save(model_of(nodes, {"x": (1, 3, 4, 4)}, {"y": (1, 4, 4, 4)}, constants), path)
    (layer,) = convert(path).graph.layers
    assert layer.activation == "relu"  # type: ignore[union-attr]


def test_none_demands_a_quantised_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_float_model(), path)
    with pytest.raises(ModelError, match="not quantised"):
        convert(path, quantize="none")


def test_runtime_scale_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="quantise"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        [numpy_helper.from_array(np.array(0, np.int8), "z")],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with pytest.raises(ModelError, match=r"quantise.*computed at run time"):
        convert(path)
