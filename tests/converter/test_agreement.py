"""Where the integers and ONNX Runtime's quantised model part, layer by layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import Conversion, Graph, TensorCoreLayer, convert
from fadiff.converter.check.agreement import Agreement, agreement
from fadiff.converter.check.reference import run_reference
from fadiff.converter.check.storage import store_inputs
from tests.converter.oracle import model_of, weights

SHAPE = (1, 8, 16, 16)


def face_detector() -> onnx.ModelProto:
    """Separable convolutions, a pyramid merged by Resize and Add, and a Sigmoid, as detectors have them."""
    constants = {
        "w0": weights(0, 8, 8, 1, 1),
        "d0": weights(1, 8, 1, 3, 3),
        "w1": weights(2, 8, 8, 1, 1),
        "w2": weights(3, 1, 8, 1, 1),
        "scales": np.array([1, 1, 2, 2], np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="point"),
        helper.make_node("Conv", ["a", "d0"], ["b"], name="depth", group=8, pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["b"], ["r"], name="relu"),
        helper.make_node("MaxPool", ["r"], ["m"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["m", "w1"], ["n"], name="deep"),
        helper.make_node("Resize", ["n", "", "scales"], ["u"], name="up", mode="nearest"),
        helper.make_node("Add", ["u", "a"], ["s"], name="merge"),
        helper.make_node("Conv", ["s", "w2"], ["logit"], name="score"),
        helper.make_node("Sigmoid", ["logit"], ["y"], name="probability"),
    ]
    return model_of(nodes, {"x": SHAPE}, {"y": None}, constants)


@pytest.fixture(scope="module")
def conversion(tmp_path_factory: pytest.TempPathFactory) -> Conversion:
    path = tmp_path_factory.mktemp("agreement") / "model.onnx"
    onnx.save(face_detector(), path)
    return convert(path)


def compared(conversion: Conversion) -> Agreement:
    graph = conversion.graph
    x = np.random.default_rng(5).standard_normal(SHAPE).astype(np.float32)
    return agreement(conversion, {"x": x}, run_reference(graph, store_inputs(graph, {"x": x})))


def with_scale(graph: Graph, layer: str, factor: float) -> Graph:
    """The graph with one layer's requantisation off by a factor."""
    layers = tuple(
        replace(node, scale=float(np.float32(node.scale * factor)))
        if isinstance(node, TensorCoreLayer) and node.name == layer
        else node
        for node in graph.layers
    )
    assert layers != graph.layers
    return replace(graph, layers=layers)


def test_every_layer_alone_is_within_a_step_of_onnx_runtime(conversion):
    found = compared(conversion)
    tensors = {d.tensor.removesuffix(".nhwc") for d in found.differences}  # s is written in place of a copy
    assert {"a", "r", "m", "n", "s", "logit", "y"} <= tensors
    assert all(d.own_steps <= 1 and d.own <= 2 for d in found.differences)


def test_a_step_is_charged_to_the_layer_that_made_it_and_followed_from_there(conversion):
    off = replace(conversion, graph=with_scale(conversion.graph, "point", 1.003))
    found = compared(off)
    by_tensor = {d.tensor: d for d in found.differences}
    assert by_tensor["a"].own > 20 and by_tensor["a"].own_steps == 1
    assert all(d.own <= 2 and d.own_steps <= 1 for d in found.differences if d.tensor != "a")
    worst = max(found.differences, key=lambda d: d.carried_steps)
    assert worst.own == 0 and worst.carried_steps > 1
    assert "by one step;" in found.note
    assert f"at most {worst.carried_steps} steps (at {worst.tensor})" in found.note


def test_a_wrong_layer_is_named(conversion):
    found = compared(replace(conversion, graph=with_scale(conversion.graph, "deep", 1.5)))
    assert max(found.differences, key=lambda d: d.own_steps).tensor == "n"
    assert "(at n)" in found.note


def test_nothing_to_say_of_equal_integers(conversion):
    found = compared(conversion)
    equal = tuple(replace(d, own=0, own_steps=0, carried_steps=0) for d in found.differences)
    assert Agreement(equal).note == "" and Agreement(()).note == ""


def test_values_behind_movement_are_compared_in_their_own_order(tmp_path):
    """Heads of a rotary embedding: the product is stored as its operand is, in no order of its own axes."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["q"]),
        helper.make_node("Reshape", ["q", "heads"], ["h"]),
        helper.make_node("Transpose", ["h"], ["t"], perm=[0, 2, 1, 3]),
        helper.make_node("Mul", ["t", "cos"], ["m"]),
        helper.make_node("Sigmoid", ["m"], ["s"]),
        helper.make_node("MatMul", ["s", "v"], ["y"]),
    ]
    constants = {"w": weights(0, 12, 12), "heads": np.array([1, 7, 3, 4]), "cos": weights(1, 7, 4)}
    constants["v"] = weights(2, 4, 5)
    model = model_of(nodes, {"x": (1, 7, 12)}, {"y": None}, constants)
    onnx.save(model, tmp_path / "model.onnx")
    conversion = convert(tmp_path / "model.onnx")
    graph = conversion.graph
    x = np.random.default_rng(5).standard_normal((1, 7, 12)).astype(np.float32)
    found = run_reference(graph, store_inputs(graph, {"x": x}))
    differences = {d.tensor: d for d in agreement(conversion, {"x": x}, found).differences}
    assert {"m", "s"} <= differences.keys()
    assert max(d.carried_steps for d in differences.values()) <= 1
