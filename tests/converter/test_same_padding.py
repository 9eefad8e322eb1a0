"""Dilated convolutions and pools with auto_pad SAME, which ONNX Runtime does not run, against PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from fadiff.converter import convert
from fadiff.converter.read.load import load_model
from fadiff.converter.read.normalise import normalise
from fadiff.converter.read.runtime import open_session
from tests.converter.oracle import model_of, weights

X = np.random.default_rng(0).standard_normal((1, 3, 9, 14)).astype(np.float32)
W = weights(1, 4, 3, 3, 2)


def run(path: Path, node: onnx.NodeProto) -> np.ndarray:
    """What ONNX Runtime makes of X with the model as we normalise it."""
    onnx.save(model_of([node], {"x": X.shape}, {"y": None}, {"w": W}), path)
    model, _, _ = load_model(path, {})
    (found,) = open_session(normalise(str(path), model)).run(None, {"x": X})
    return np.asarray(found)


def flipped(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array[..., ::-1, ::-1])


@pytest.mark.filterwarnings("ignore:Using padding")
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_dilated_convolutions(tmp_path: Path, auto_pad: str) -> None:
    """PyTorch pads an odd pixel behind; before, in the mirror."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad=auto_pad, dilations=[2, 3])
    x, w = (X, W) if auto_pad == "SAME_UPPER" else (flipped(X), flipped(W))
    expected = torch.conv2d(torch.tensor(x), torch.tensor(w), padding="same", dilation=(2, 3)).numpy()
    if auto_pad == "SAME_LOWER":
        expected = flipped(expected)
    found = run(tmp_path / "net.onnx", node)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_strides_and_pools(tmp_path: Path) -> None:
    """3 taps, 2 apart, every 2 pixels: of 9 rows 2 before and behind, of 14 columns 1 before and 2 behind."""
    window = {"kernel_shape": [3, 3], "dilations": [2, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"}
    padded = torch.nn.functional.pad(torch.tensor(X), (1, 2, 2, 2), value=-torch.inf)
    expected = torch.max_pool2d(padded, 3, 2, 0, 2).numpy()
    assert expected.shape == (1, 3, 5, 7)
    np.testing.assert_array_equal(
        run(tmp_path / "net.onnx", helper.make_node("MaxPool", ["x"], ["y"], **window)), expected
    )


def test_such_a_model_converts(tmp_path: Path) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", dilations=[2, 3])
    onnx.save(model_of([node], {"x": X.shape}, {"y": None}, {"w": W}), tmp_path / "net.onnx")
    (layer,) = convert(tmp_path / "net.onnx").graph.layers
    assert layer.pads == (2, 1, 2, 2)
