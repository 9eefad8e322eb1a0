"""Channels of unlike weights become layers of their own, where that gains much and nobody else sees them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import Conversion, convert
from fadiff.converter.quantise.split import _cuts
from tests.converter.oracle import compare, model_of, session, sqnr_db, weights

LOUD = np.random.default_rng(7).permutation(np.repeat([1, 4, 20], 16)).astype(np.float32)


def _dense(activation: str = "Relu") -> onnx.ModelProto:
    """MatMul + bias, activation, MatMul + bias; loud channels read few features, so results are alike."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["c"]),
        helper.make_node("Add", ["c", "b"], ["d"]),
        helper.make_node(activation, ["d", *(["slope"] if activation == "PRelu" else [])], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["e"]),
        helper.make_node("Add", ["e", "a"], ["y"]),
    ]
    slope = {"slope": np.abs(weights(6, 48))} if activation == "PRelu" else {}
    reads = np.arange(400)[:, None] % (LOUD * LOUD) == 0
    w = np.random.default_rng(0).uniform(0.5, 1, (400, 48)) * np.sign(weights(1, 400, 48)) * reads * LOUD / 20
    constants = {"w": w.astype(np.float32), "b": weights(1, 48) / 4, **slope}
    constants |= {"v": weights(2, 48, 6), "a": weights(3, 6)}
    return model_of(nodes, {"x": (4, 400)}, {"y": None}, constants)


def _separable() -> onnx.ModelProto:
    """1x1 convolution, depthwise one with unlike channels, 1x1 convolution."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "d", "e"], ["f"], group=48, pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["f"], ["s"]),
        helper.make_node("Conv", ["s", "v"], ["y"]),
    ]
    constants = {"w": weights(0, 48, 8, 1, 1), "b": weights(1, 48)}
    constants |= {"d": weights(2, 48, 1, 3, 3) * LOUD[:, None, None, None], "e": weights(3, 48)}
    constants |= {"v": weights(4, 8, 48, 1, 1) / LOUD[:, None, None]}
    return model_of(nodes, {"x": (1, 8, 6, 6)}, {"y": None}, constants)


def _pair(model: onnx.ModelProto, folder: Path) -> tuple[Conversion, Conversion]:
    """With and without the rewrite; equalising would do part of its work."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    shape = [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim]
    samples = [{"x": weights(seed, *shape)} for seed in range(9)]
    without = (["equalise-channels"], ["equalise-channels", "split-channels"])
    first, second = (convert(path, calibration=samples, without=names) for names in without)
    return first, second


@pytest.mark.parametrize("activation", ["Relu", "PRelu", "Tanh"])
def test_a_matrix_product(activation: str, tmp_path: Path) -> None:
    split, whole = _pair(_dense(activation), tmp_path)
    assert any(note.startswith("split-channels: ") for note in split.notes)
    assert len(split.graph.tensor_core_layers) == len(whole.graph.tensor_core_layers) + 2
    assert sum(layer.op == "copy" for layer in split.graph.layers) == 0
    scales = {split.graph.tensors[layer.weight.tensor].scale for layer in split.graph.tensor_core_layers[:3]}
    assert len(scales) == 3
    x = {"x": weights(99, 4, 400)}
    wanted = _same_floats(split, whole, x)
    finer, coarse = (session(c.quantized_model).run(None, x)[0] for c in (split, whole))
    assert sqnr_db(wanted, finer) > sqnr_db(wanted, coarse) + 2


def test_a_depthwise_convolution_and_what_feeds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fadiff.converter.draft._SPLIT_WORTH_DB", -np.inf)
    split, whole = _pair(_separable(), tmp_path)
    assert any(note.startswith("split-channels: ") for note in split.notes)
    depthwise = [layer for layer in split.graph.tensor_core_layers if layer.op == "depthwise"]
    assert [layer.dims.G for layer in depthwise] == [16, 16, 16]
    assert len({layer.output.tensor for layer in depthwise}) == 1
    assert sum(layer.op == "copy" for layer in split.graph.layers) == 0
    _same_floats(split, whole, {"x": weights(99, 1, 8, 6, 6)})


def _same_floats(split: Conversion, whole: Conversion, x: dict[str, np.ndarray]) -> np.ndarray:
    found, wanted = (session(c.float_model).run(None, x)[0] for c in (split, whole))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert compare(split, np.random.default_rng(4)).lsb_to_quantized <= 1.01
    return np.asarray(wanted)


def test_channels_that_others_see_stay(tmp_path: Path) -> None:
    model = _dense()
    model.graph.output.append(helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT, None))
    split, _ = _pair(model, tmp_path)
    assert not any(note.startswith("split-channels: ") for note in split.notes)


def test_parts_are_whole_blocks_of_half_the_range() -> None:
    assert _cuts(np.repeat([1.0, 2.0, 4.0], 16)) == [0, 16, 32, 48]
    assert _cuts(np.repeat([1.0, 1.5, 2.0], 16)) == [0, 16, 48]
    assert _cuts(np.repeat([1.0, 4.0], 8)) == [0, 16]
    assert _cuts(np.repeat([1.0, 4.0], [20, 8])) == [0, 16, 28]
    assert len(_cuts(np.exp2(np.arange(200.0) / 8))) == 5
