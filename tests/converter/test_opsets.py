"""Old and newest opsets: read as an opset that ONNX Runtime knows, without another meaning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fadiff.converter import ModelError, convert
from fadiff.converter.read.opsets import settle_opset
from tests.converter.oracle import check, model_of, session, weights


def _declared(model: onnx.ModelProto, version: int) -> int:
    model.opset_import[0].version = version
    return settle_opset("m.onnx", model).opset_import[0].version


def test_an_operator_that_only_got_more_types_is_read_as_the_older_one() -> None:
    model = model_of([helper.make_node("Celu", ["x"], ["y"])], {"x": (2, 3)}, {"y": None})
    newest = onnx.defs.onnx_opset_version()
    grew = onnx.defs.get_schema("Celu", newest).since_version > 26  # (in onnx 1.23)
    assert _declared(model, newest) in ((23, 26) if grew else (newest,))


def test_a_new_attribute_keeps_the_opset() -> None:
    node = helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2, mode="CRD")
    model = model_of([node], {"x": (1, 4, 4, 4)}, {"y": None})
    newest = onnx.defs.onnx_opset_version()
    assert newest < 28 or "mode" in onnx.defs.get_schema("SpaceToDepth", newest).attributes
    assert _declared(model, newest) == newest


def test_operators_that_came_after_the_installed_onnx_are_named() -> None:
    """Not handed to ONNX Runtime as something of an older opset."""
    model = model_of([helper.make_node("Sparkle", ["x"], ["y"])], {"x": (2, 3)}, {"y": None})
    version = onnx.defs.onnx_opset_version() + 1
    with pytest.raises(ModelError, match=rf"not Sparkle of opset {version}; install a newer onnx"):
        _declared(model, version)


@pytest.mark.parametrize("version", [9, 10, 11, 13, 17, 21, 26])
def test_every_opset_from_9_on(version: int, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    model = model_of(
        nodes, {"x": (1, 3, 8, 8)}, {"y": (1, 4, 4, 4)}, {"w": weights(0, 4, 3, 3, 3)}, opset=version
    )
    assert check(model, tmp_path).lsb_to_quantized <= 1.01


def test_old_slopes_that_two_read_beside_a_constant_of_a_like_name(tmp_path: Path) -> None:
    """They were written twice, as `s.2`."""
    nodes = [
        helper.make_node("PRelu", ["x", "s"], ["a"]),
        helper.make_node("PRelu", ["a", "s"], ["b"]),
        helper.make_node("PRelu", ["b", "s.2"], ["y"]),
    ]
    constants = {"s": np.array([0.5, 0.25, 2], np.float32), "s.2": np.array([4, 2, 1], np.float32)}
    onnx.save(
        model_of(nodes, {"x": (1, 3, 2, 2)}, {"y": (1, 3, 2, 2)}, constants, opset=6), tmp_path / "m.onnx"
    )
    x = -np.ones((1, 3, 2, 2), np.float32)
    (found,) = session(convert(tmp_path / "m.onnx", element="float32").float_model).run(None, {"x": x})
    np.testing.assert_array_equal(found[0, :, 0, 0], [-1, -0.125, -4])


def test_slopes_per_channel_of_old_prelu(tmp_path: Path) -> None:
    """Before opset 7 a PRelu slope [C] belongs to axis 1, whatever comes after."""
    x, slope = weights(1, 2, 3, 4, 4), np.abs(weights(2, 3))
    node = helper.make_node("PRelu", ["x", "s"], ["y"])
    model = model_of([node], {"x": x.shape}, {"y": x.shape}, {"s": slope}, opset=6)
    model.ir_version = 3
    model.graph.input.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, [3]))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    conversion = convert(path)
    stored = [numpy_helper.to_array(t).reshape(-1) for t in conversion.float_model.graph.initializer]
    assert any(np.array_equal(array, slope) for array in stored)
    assert check(model, tmp_path).sqnr_db > 30


def test_equal_parts_of_an_export_to_an_older_opset(tmp_path: Path) -> None:
    """torch.onnx.export(dynamo=True, opset_version=17) leaves the num_outputs of opset 18 in the file."""
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2),
        helper.make_node("Sigmoid", ["b"], ["s"]),
        helper.make_node("Mul", ["a", "s"], ["y"]),
    ]
    checked = check(model_of(nodes, {"x": (2, 6, 4)}, {"y": None}, opset=17), tmp_path)
    assert checked.lsb_to_quantized <= 1 and checked.sqnr_db > 30


@pytest.mark.parametrize("version", [9, 10, 12])
def test_a_gemm_that_needs_its_bias_is_calibrated(version: int, tmp_path: Path) -> None:
    """Before opset 11 a Gemm has three inputs; nine samples judge, and correct biases."""
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v", "c"], ["y"], transB=1),
    ]
    constants = {"w": weights(1, 32, 16), "b": weights(2, 32), "v": weights(3, 8, 32), "c": weights(4, 8)}
    path = tmp_path / "m.onnx"
    onnx.save(model_of(nodes, {"x": (1, 16)}, {"y": None}, constants, opset=version), path)
    conversion = convert(path, calibration=({"x": weights(i, 1, 16)} for i in range(9)))
    assert conversion.float_model.opset_import[0].version == 13
    assert len(conversion.samples) == 9 and not conversion.random_calibration  # (a generator gives them once)
    assert any("correct" in line or "biases" in line for line in conversion.rewrites)


@pytest.mark.filterwarnings("error")
def test_weights_too_small_for_a_scale(tmp_path: Path) -> None:
    """What they add up to is nothing beside the bias; nobody hears of a division by zero."""
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"])
    constants = {"w": weights(1, 16, 8) * np.float32(1e-36), "b": np.zeros(8, np.float32)}
    path = tmp_path / "m.onnx"
    onnx.save(model_of([node], {"x": (1, 16)}, {"y": None}, constants), path)
    convert(path, calibration=[{"x": weights(i, 1, 16) * np.float32(1e-20)} for i in range(9)])
