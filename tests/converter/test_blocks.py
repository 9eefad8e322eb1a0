"""Scales for blocks of output channels of float files: the float model stays, its integers become better."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.contenders import float_outputs, our_outputs
from fadiff.converter import convert
from fadiff.converter.check.noise import noise_of
from fadiff.converter.ir.program import program_of
from fadiff.converter.plan.plan import plan
from fadiff.converter.quantise.blocks import CHANNEL_BLOCK, block_scales, could_have_blocks, sort_channels
from fadiff.converter.quantise.seen import Vectors
from tests.converter.oracle import model_of, session, weights
from tests.converter.programs import program


def _unlike(seed: int, *shape: int, axis: int = 1) -> np.ndarray:
    """Weights of which a few output channels are twenty times the others."""
    return weights(seed, *shape) * _loud(shape[axis], axis) / shape[1 - axis] ** 0.5


def _loud(channels: int, axis: int) -> np.ndarray:
    loud = np.ones(channels, np.float32)
    loud[::13] = 20
    return loud.reshape([-1 if i == axis else 1 for i in range(2)])


def _dense(twin: bool = False) -> onnx.ModelProto:
    """Three products; functions, a bias, a number without axes and slopes for each channel between them."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m"], name="m1"),
        helper.make_node("Add", ["b1", "m"], ["a"]),
        helper.make_node("Sigmoid", ["a"], ["s"]),
        helper.make_node("Mul", ["a", "s"], ["d"]),
        helper.make_node("Mul", ["d", "half"], ["h"]),
        helper.make_node("Gemm", ["h", "w2", "b2"], ["c"], transB=1, name="g2"),
        helper.make_node("PRelu", ["c", "slopes"], ["p"]),
        helper.make_node("MatMul", ["p", "w3"], ["y"], name="m3"),
    ]
    constants = {"w1": _unlike(1, 24, 52), "w2": _unlike(2, 60, 52, axis=0) / _loud(52, 1)}
    constants["half"] = np.array(0.5, np.float32)
    constants["w3"] = weights(3, 60, 8) / _loud(60, 0)
    constants |= {"b1": weights(4, 52) / 9, "b2": weights(5, 60) / 9, "slopes": abs(weights(6, 60))}
    outputs = {"y": (1, 8)} | ({"h": (1, 52)} if twin else {})
    return model_of(nodes, {"x": (1, 24)}, outputs, constants)


@pytest.mark.parametrize("twin", [False, True])
def test_sorted_channels_compute_the_same(twin: bool) -> None:
    """Channels that are an output stay in their order."""
    model, x = onnx.shape_inference.infer_shapes(_dense(twin)), {"x": weights(9, 1, 24)}
    changed = sort_channels(program_of(model))
    assert changed is not None
    for before, after in zip(session(model).run(None, x), session(changed).run(None, x), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)
    found = {node.name: node.input[1] for node in changed.graph.node if node.name in ("m1", "g2")}
    now = {t.name: onnx.numpy_helper.to_array(t) for t in changed.graph.initializer}
    sizes = [np.abs(now[found["m1"]]).max(0), np.abs(now[found["g2"]]).max(1)]
    assert [bool(np.all(np.diff(size) >= 0)) for size in sizes] == [not twin, True]


def test_integers_are_better_by_what_is_predicted(tmp_path: Path) -> None:
    """On other inputs; one scale where inputs make most of the noise, or channels are alike."""
    path = tmp_path / "net.onnx"
    onnx.save(_dense(), path)
    samples = [{"x": weights(i, 1, 24)} for i in range(12)]
    inputs = {"x": np.stack([weights(100 + i, 1, 24) for i in range(16)])}
    decibels = []
    for without in ((), ("channel-scales",)):
        found = convert(path, calibration=samples, without=without)
        blocks = [
            layer.channel_block if layer.channel_scale else 0 for layer in found.graph.tensor_core_layers
        ]
        assert blocks == ([0, 0, 0] if without else [CHANNEL_BLOCK, 0, 0])
        exact = float_outputs(found, inputs, lambda _: None)
        ours = our_outputs(found, inputs, exact, lambda _: None)
        decibels.append(noise_of(exact["y"], ours["y"].reshape(exact["y"].shape)).sqnr_db)
    assert decibels[0] > decibels[1] + 1


@pytest.mark.parametrize(("small", "able"), [(0.9, False), (0.77, False), (0.76, True), (0.1, True)])
def test_blocks_are_worth_it_from_one_decibel(small: float, able: bool) -> None:
    """16 of 32 channels smaller: 10 log10(2 / (1 + small^2)) dB, which is 1.03 at 0.76."""
    channels = np.repeat(np.float32([small, 1]), CHANNEL_BLOCK)
    net = program("y = MatMul (x, w)", "float[2,32] x", "float[2,32] y", w=np.eye(32) * channels)
    expected = 10 * np.log10(2 / (1 + small**2)) >= 1
    assert bool(could_have_blocks(net, plan(net))) == expected == able


@pytest.mark.parametrize(
    ("largest", "others", "is_gain"),
    [(1.66, 0, True), (1.68, 0, False), (1.66, 1, False), (1, 1, True), (1, 2, True), (1, 3, False)],
)
def test_noise_of_inputs_and_weights_decides_on_blocks(largest: float, others: int, is_gain: bool) -> None:
    """Half of 32 channels a tenth as large: squares of steps sum to 32 with one scale, to 16.16 with two, the
    weights' own squares to 16.16.

    By L of inputs noise falls from 16.16 L^2 + 32 to 16.16 (L^2 + 1): by 1 dB at L = 1.67; at L = 1 by 33 %,
    where 0.5 dB of three products need 32.6 %, of four 43.5.
    """
    channels = np.repeat(np.float32([0.1, 1]), CHANNEL_BLOCK)
    chain = "".join(f" v{i + 1} = MatMul (v{i}, even)" for i in range(others))
    net = program(
        f"v0 = MatMul (x, w){chain} y = Relu (v{others})",
        "float[2,32] x",
        "float[2,32] y",
        w=np.eye(32) * channels,
        even=np.ones((32, 32)),
    )
    steps = plan(net)
    able = could_have_blocks(net, steps)
    assert [step.head.outputs[0] for step in able] == ["v0"]
    seen = Vectors(np.array([largest, 0.5]), np.array([0.5, 1.5]), np.ones((2, 32)))
    found = block_scales(net, steps, able, {"x": seen})
    assert list(found) == (["w"] if is_gain else [])
    if is_gain:
        np.testing.assert_allclose(found["w"], channels[None] / 127, rtol=2e-6)
        assert np.all(found["w"] * 127 > channels)


def test_no_block_is_finer_than_the_largest_by_more_than_256() -> None:
    channels = np.repeat(np.float32([1, 1e-4]), CHANNEL_BLOCK)
    net = program("y = MatMul (x, w)", "float[2,32] x", "float[2,32] y", w=np.eye(32) * channels)
    steps = plan(net)
    seen = {"x": Vectors(np.zeros(2), np.ones(2), np.ones((2, 32)))}
    scales = block_scales(net, steps, steps, seen)["w"].reshape(-1)
    assert scales[:16] / scales[16:] == pytest.approx(256)


def test_without_calibration_data_layers_have_one_scale(tmp_path: Path) -> None:
    """There is nothing to predict noise from."""
    onnx.save(_dense(), path := tmp_path / "net.onnx")
    assert all(layer.channel_scale is None for layer in convert(path).graph.tensor_core_layers)


def test_one_layer_of_many_has_no_blocks(tmp_path: Path) -> None:
    """What it gains is lost among the noise of the others."""
    model = _dense()
    chain = [helper.make_node("MatMul", [f"v{i}", f"even{i}"], [f"v{i + 1}"]) for i in range(12)]
    model.graph.node[0].input[0] = "v12"
    chain[0].input[0] = "x"
    nodes = [*chain, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.sign(weights(70 + i, 24, 24)) / 5, f"even{i}") for i in range(12)
    )
    onnx.save(model, path := tmp_path / "net.onnx")
    found = convert(path, calibration=[{"x": weights(i, 1, 24)} for i in range(12)])
    assert all(layer.channel_scale is None for layer in found.graph.tensor_core_layers)
