"""Kernel taps that only meet padding: dropped, and no number changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from fadiff.converter import Graph, convert
from fadiff.converter.check.reference import run_reference
from tests.converter.oracle import model_of, weights


def _conv(size: int, kernel: int, pads: list[int], stride: int, dilation: int, group: int) -> onnx.ModelProto:
    node = helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        "conv",
        pads=pads,
        strides=[stride] * 2,
        dilations=[dilation] * 2,
        group=group,
    )
    return model_of(
        [node], {"x": (1, 4, size, size)}, {"y": None}, {"w": weights(1, 4, 4 // group, kernel, kernel)}
    )


def _both(model: onnx.ModelProto, folder: Path) -> tuple[Graph, Graph]:
    path = folder / "m.onnx"
    onnx.save(model, path)
    return convert(path, without=["drop-padding-taps"]).graph, convert(path).graph


def _run(graph: Graph) -> np.ndarray:
    feeds = {
        n: np.arange(-60, 4 * 64 * 64, dtype=np.int64)[: graph.tensors[n].size] % 251 - 125
        for n in graph.inputs
    }
    stored = {n: v.astype(np.int8).reshape(graph.tensors[n].shape) for n, v in feeds.items()}
    return run_reference(graph, stored)[graph.outputs[0]]


@pytest.mark.parametrize(
    ("size", "kernel", "pads", "stride", "dilation", "taps"),
    [
        (2, 5, [2, 2, 2, 2], 1, 1, (3, 3)),  # MobileNetV3 on 64 pixels
        (1, 5, [2, 2, 2, 2], 1, 1, (1, 1)),
        (2, 3, [1, 1, 1, 1], 2, 1, (2, 2)),  # the tap above meets only padding
        (3, 5, [2, 2, 2, 2], 1, 1, (5, 5)),
        (2, 3, [2, 2, 2, 2], 1, 2, (1, 1)),  # dilation jumps over the image
        (4, 3, [0, 0, 0, 0], 1, 1, (3, 3)),
        (2, 4, [3, 0, 2, 2], 1, 1, (4, 2)),
    ],
)
@pytest.mark.parametrize("group", [1, 4])
def test_live_taps(
    size: int,
    kernel: int,
    pads: list[int],
    stride: int,
    dilation: int,
    taps: tuple[int, int],
    group: int,
    tmp_path: Path,
) -> None:
    whole, cropped = _both(_conv(size, kernel, pads, stride, dilation, group), tmp_path)
    (layer,) = cropped.tensor_core_layers
    live = layer.dims.R, layer.dims.S
    assert live == taps
    np.testing.assert_array_equal(_run(whole), _run(cropped))


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 5),
    kernel=st.integers(1, 5),
    pads=st.lists(st.integers(0, 4), min_size=4, max_size=4),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 3),
    group=st.sampled_from([1, 2, 4]),
)
def test_every_number_stays(
    size: int,
    kernel: int,
    pads: list[int],
    stride: int,
    dilation: int,
    group: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    reach = (kernel - 1) * dilation + 1
    if min(pads[0] + pads[2], pads[1] + pads[3]) + size < reach:
        return  # no output
    whole, cropped = _both(
        _conv(size, kernel, pads, stride, dilation, group), tmp_path_factory.mktemp("conv")
    )
    np.testing.assert_array_equal(_run(whole), _run(cropped))


def test_one_pixel_needs_one_tap(tmp_path: Path) -> None:
    """The work and the weights shrink with the kernel; the whole kernel is not kept beside it."""
    whole, cropped = _both(_conv(1, 3, [1, 1, 1, 1], 1, 1, 4), tmp_path)
    assert [layer.macs for layer in whole.tensor_core_layers] == [36]
    assert [layer.macs for layer in cropped.tensor_core_layers] == [4]
    assert len([t for t in cropped.tensors.values() if t.data is not None]) == 1
