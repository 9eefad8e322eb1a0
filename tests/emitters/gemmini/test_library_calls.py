"""Layers emitted as calls of gemmini.h's automatic tiling give the same numbers as the loop nests."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import numpy as np

from fadiff.converter.check.reference import run_reference
from fadiff.costmodel.target.target import load_target
from fadiff.emitters.gemmini import emit
from fadiff.emulator.build import build_firmware
from fadiff.emulator.run import Firmware
from fadiff.optimizer import optimize
from tests.emitters.gemmini.executed import random_inputs
from tests.emitters.gemmini.nets import Net


def test_same_numbers() -> None:
    net = Net(random.Random(2))
    shape = (1, 9, 9, 20)
    x = net.input(shape)
    same = net.conv(x, shape, outputs=20, kernel=(3, 3), pads=(1, 1, 1, 1))
    assert same
    added = net.add(same[0], x, shape)
    depthwise = net.conv(added, shape, outputs=20, groups=20, kernel=(3, 3), pads=(1, 1, 1, 1))
    assert depthwise
    strided = net.conv(depthwise[0], shape, outputs=36, kernel=(1, 1), stride=(2, 2))
    assert strided
    # Asymmetric padding: the library has no such convolution, it stays on hardware loops.
    last = net.conv(strided[0], strided[1], outputs=8, kernel=(3, 3), pads=(1, 0, 1, 0))
    assert last
    graph = net.builder.build((last[0],))
    target = load_target("gemmini-default")
    schedule = optimize(graph, target, method="layerwise").schedule
    inputs = random_inputs(graph)
    with tempfile.TemporaryDirectory() as scratch:
        folder = emit(schedule, model_name="calls", out_dir=Path(scratch) / "firmware", library_calls=True)
        code = (folder / "calls.c").read_text()
        result = Firmware(folder, build_firmware(folder, target, Path(scratch)), target).run(inputs)
    for call in ("tiled_conv_stride_auto", "tiled_conv_dw_auto", "tiled_resadd_auto", "convolution_tile"):
        assert f"{call}(" in code
    for name, expected in run_reference(graph, inputs).items():
        np.testing.assert_array_equal(result.tensors[name], expected, err_msg=name)
