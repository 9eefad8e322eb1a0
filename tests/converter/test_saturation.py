"""Quantisation tools drop a Clip that their integers cannot exceed: ours keep it where they have none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

from fadiff.converter import convert
from fadiff.converter.dequantise.affine import leaves, reach
from tests.converter.oracle import Calibration, model_of, session, sqnr_db, weights


def _hard_swish() -> onnx.ModelProto:
    """x * Clip(x + 3, 0, 6) / 6 between two convolutions, as Paddle exports it."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c"], name="first"),
        helper.make_node("Add", ["c", "three"], ["a"], name="add"),
        helper.make_node("Clip", ["a", "zero", "six"], ["k"], name="clip"),
        helper.make_node("Mul", ["c", "k"], ["m"], name="mul"),
        helper.make_node("Div", ["m", "six"], ["d"], name="div"),
        helper.make_node("Conv", ["d", "w2"], ["y"], name="second"),
    ]
    constants = {
        "w1": weights(1, 8, 3, 1, 1) * 3,
        "w2": weights(2, 4, 8, 1, 1),
        "zero": np.array(0, np.float32),
        "three": np.array(3, np.float32),
        "six": np.array(6, np.float32),
    }
    return model_of(nodes, {"x": (1, 3, 8, 8)}, {"y": (1, 4, 8, 8)}, constants)


def _input(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 3, 8, 8)).astype(np.float32)


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_a_hard_swish_without_its_clip_is_still_one(form: QuantFormat, tmp_path: Path) -> None:
    source, path = tmp_path / "float.onnx", tmp_path / "quantised.onnx"
    onnx.save(_hard_swish(), source)
    samples = Calibration({"x": _input(i)} for i in range(8))
    quantize_static(
        source,
        path,
        samples,
        quant_format=form,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QUInt8,
    )
    quantised = onnx.load(path)
    assert "Clip" not in {node.op_type for node in quantised.graph.node}
    calibration = [{"x": _input(i)} for i in range(8)]  # (operators leave a division in float)
    conversion = convert(path, calibration=calibration)
    x = _input(50)
    wanted = session(_hard_swish()).run(None, {"x": x})[0]
    found = session(conversion.quantized_model).run(None, {"x": x})[0]
    theirs = session(quantised).run(None, {"x": x})[0]
    assert sqnr_db(wanted, found) > sqnr_db(wanted, theirs) - 3
    assert sum(layer.op == "lookup" for layer in conversion.graph.layers) == 1  # with the clip in it


def test_a_multiple_needs_no_clip(tmp_path: Path) -> None:
    """Ranges that only differ by rounding: what a factor does stays a matter of the scale."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "z"], ["xd"]),
        helper.make_node("Mul", ["xd", "half"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "ms", "z"], ["mq"]),
        helper.make_node("DequantizeLinear", ["mq", "ms", "z"], ["md"]),
        helper.make_node("Conv", ["md", "w"], ["y"]),
    ]
    numbers = {"xs": 0.02, "ms": 0.00999, "half": 0.5}
    constants = {name: np.array(value, np.float32) for name, value in numbers.items()}
    constants |= {"z": np.array(0, np.int8), "w": weights(1, 4, 3, 1, 1)}
    path = tmp_path / "m.onnx"
    onnx.save(model_of(nodes, {"x": (1, 3, 4, 4)}, {"y": (1, 4, 4, 4)}, constants), path)
    model = convert(path, calibration=[{"x": _input(i)[:, :, :4, :4]} for i in range(4)]).float_model
    assert [node.op_type for node in model.graph.node] == ["Mul", "Conv"]
    assert model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_ranges_by_hand() -> None:
    three, four = np.array(3.0), np.array(4.0)
    assert reach("Add", [(-5.0, 8.0), None], [None, three]) == (-2.0, 11.0)
    assert reach("Sub", [None, (-5.0, 8.0)], [three, None]) == (-5.0, 8.0)  # 3 - x
    assert reach("Sub", [(-5.0, 8.0), None], [None, three]) == (-8.0, 5.0)
    assert reach("Mul", [(-5.0, 8.0), None], [None, -three]) == (-24.0, 15.0)
    assert reach("Div", [(-5.0, 8.0), None], [None, four]) == (-1.25, 2.0)
    assert reach("Div", [None, (-5.0, 8.0)], [four, None]) is None
    assert reach("Add", [(-5.0, 8.0), (0.0, 1.0)], [None, None]) is None
    assert reach("Relu", [(-5.0, 8.0)], [None]) is None
    assert leaves((-2.0, 11.0), (0.0, 6.0))
    assert not leaves((-5.0, 8.0), (-4.95, 8.1))
    assert not leaves(None, (0.0, 1.0))
