"""Channels of unlike weights are scaled alike where that changes no result of the float model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import Conversion, convert
from tests.converter.oracle import compare, model_of, session, weights

CHANNELS = 8
LOUDER = np.exp2(np.arange(CHANNELS)).astype(np.float32)  # 1 to 128


def _separable(between: str = "Relu", *, group: int = CHANNELS, loudest: float = 128) -> onnx.ModelProto:
    """Conv, grouped conv, pool, Gemm; the convolutions have channels up to 128 times as loud as others."""
    loud = LOUDER * loudest / 128
    w = weights(0, CHANNELS, 3, 3, 3) * loud[:, None, None, None]
    d = weights(1, CHANNELS, CHANNELS // group, 3, 3) * LOUDER[::-1, None, None, None]
    d = d / loud.reshape(group, -1)[np.arange(CHANNELS) * group // CHANNELS][:, :, None, None]
    f = weights(2, 5, CHANNELS) / LOUDER[::-1]
    extra = {"Clip": {"low": np.float32(0), "high": np.float32(6)}}.get(between, {})
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node(between, ["c", *extra], ["r"]),
        helper.make_node("Conv", ["r", "d"], ["e"], group=group),
        helper.make_node("Relu", ["e"], ["s"]),
        helper.make_node("GlobalAveragePool", ["s"], ["g"]),
        helper.make_node("Flatten", ["g"], ["h"]),
        helper.make_node("Gemm", ["h", "f"], ["y"], transB=1),
    ]
    constants = {"w": w, "b": weights(3, CHANNELS) * loud, "d": d, "f": f, **extra}
    return model_of(nodes, {"x": (1, 3, 10, 10)}, {"y": None}, constants)


def _convert(model: onnx.ModelProto, folder: Path, **options: object) -> Conversion:
    onnx.save(model, folder / "model.onnx")
    return convert(folder / "model.onnx", **options)


@pytest.mark.parametrize("group", [CHANNELS, 2])
def test_int8_keeps_what_one_scale_per_tensor_lost(group: int, tmp_path: Path) -> None:
    model = _separable(group=group)
    alike = _convert(model, tmp_path)
    unlike = _convert(model, tmp_path, without=["equalise-channels"])
    generator = np.random.default_rng(4)
    gained = compare(alike, generator).sqnr_db - compare(unlike, np.random.default_rng(4)).sqnr_db
    assert gained > 6
    assert any(line.startswith("equalise-channels: ") for line in alike.notes)
    assert not any(line.startswith("equalise-channels: ") for line in unlike.notes)
    x = {"x": weights(5, 1, 3, 10, 10)}
    (found,), (wanted,) = (session(c.float_model).run(None, x) for c in (alike, unlike))
    np.testing.assert_array_equal(found, wanted)


def _weight(conversion: Conversion, name: str) -> np.ndarray:
    (tensor,) = (t for t in conversion.float_model.graph.initializer if t.name == name)
    return onnx.numpy_helper.to_array(tensor)


def test_across_a_clip_channels_rise_below_their_bound(tmp_path: Path) -> None:
    """Bounds become one per channel, which saturation stands for: nothing calibrated reaches the least."""
    model = _separable("Clip", loudest=2)
    samples = [{"x": weights(seed, 1, 3, 10, 10)} for seed in range(8)]
    alike = _convert(model, tmp_path, calibration=samples)
    unlike = _convert(model, tmp_path, calibration=samples, without=["equalise-channels"])
    assert np.any(_weight(alike, "w") != _weight(unlike, "w"))
    assert len(alike.graph.layers) == len(unlike.graph.layers)
    scales = [c.graph.tensors[c.graph.layers[0].outputs[0]].scale for c in (alike, unlike)]
    assert scales[0] is not None and 127 * scales[0] <= 6.01
    checked, before = (compare(c, np.random.default_rng(4)) for c in (alike, unlike))
    assert checked.lsb_to_quantized <= 1.01
    assert checked.sqnr_db - before.sqnr_db > 3
    for loud in (1, 30):  # what calibration saw, and what is clipped in every channel
        x = {"x": loud * weights(9, 1, 3, 10, 10)}
        found, wanted = (session(c.float_model).run(None, x)[0] for c in (alike, unlike))
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("between", ["Sigmoid", "Clip"])
def test_functions_that_do_not_scale_keep_their_channels(between: str, tmp_path: Path) -> None:
    """(A Clip scales where there is calibration data.)"""
    conversion = _convert(_separable(between), tmp_path)
    before = {t.name: onnx.numpy_helper.to_array(t) for t in _separable(between).graph.initializer}
    np.testing.assert_array_equal(_weight(conversion, "w"), before["w"])


def test_a_value_that_others_read_keeps_its_channels(tmp_path: Path) -> None:
    model = _separable()
    model.graph.output.append(helper.make_empty_tensor_value_info("r"))
    conversion = _convert(model, tmp_path)
    before = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    np.testing.assert_array_equal(_weight(conversion, "w"), before["w"])
    assert np.any(_weight(conversion, "d") != before["d"])  # behind it they are


def test_channels_that_are_alike_stay_as_they_are(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["y"]),
    ]
    constants = {"w": weights(0, 8, 3, 3, 3), "v": weights(1, 6, 8, 1, 1)}
    conversion = _convert(model_of(nodes, {"x": (1, 3, 8, 8)}, {"y": None}, constants), tmp_path)
    np.testing.assert_array_equal(_weight(conversion, "w"), constants["w"])


@pytest.mark.parametrize("rows", [(), (3,), (2, 3)])
@pytest.mark.parametrize("biased", [True, False])
def test_matrix_products_with_an_add_behind_them(rows: tuple[int, ...], biased: bool, tmp_path: Path) -> None:
    """Their channels are the last axis, whatever the rank; the bias is scaled along."""
    loud = LOUDER[None, :]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"])]
    constants = {"w": weights(0, 6, CHANNELS) * loud, "v": weights(1, CHANNELS, 4) / loud.T}
    if biased:
        nodes.append(helper.make_node("Add", ["b", "m"], ["a"]))
        constants["b"] = weights(2, CHANNELS) * loud[0]
    nodes += [
        helper.make_node("Relu", ["a" if biased else "m"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    model = model_of(nodes, {"x": (1, *rows, 6)}, {"y": None}, constants)
    samples = [{"x": weights(seed, 1, *rows, 6)} for seed in range(100, 190)]
    others = ("choose-ranges", "correct-biases", "round-weights", "shift-zeros")
    alike = _convert(model, tmp_path, calibration=samples, without=others)
    unlike = _convert(model, tmp_path, calibration=samples, without=("equalise-channels", *others))
    assert np.any(_weight(alike, "w") != _weight(unlike, "w"))
    x = {"x": weights(5, 1, *rows, 6)}
    (found,), (wanted,) = (session(c.float_model).run(None, x) for c in (alike, unlike))
    np.testing.assert_array_equal(found, wanted)
    gained = [compare(c, np.random.default_rng(4)).sqnr_db for c in (alike, unlike)]
    assert gained[0] > gained[1] + 6


def test_an_add_that_others_see_stays(tmp_path: Path) -> None:
    """A constant of one number, or one that two sums share, is no bias of channels."""
    for constant, shared in ((np.float32(1.5), False), (weights(2, CHANNELS), True)):
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Add", ["m", "b"], ["a"]),
            helper.make_node("Relu", ["a"], ["r"]),
            helper.make_node("MatMul", ["r", "v"], ["y"]),
            *([helper.make_node("Add", ["z", "b"], ["u"])] if shared else []),
        ]
        loud = LOUDER[None, :]
        constants = {
            "w": weights(0, 6, CHANNELS) * loud,
            "v": weights(1, CHANNELS, 4) / loud.T,
            "b": constant,
        }
        inputs = {"x": (1, 6)} | ({"z": (1, CHANNELS)} if shared else {})
        outputs = {"y": None} | ({"u": None} if shared else {})
        found = _convert(model_of(nodes, inputs, outputs, constants), tmp_path)
        assert not any(line.startswith("equalise-channels: ") for line in found.notes)
