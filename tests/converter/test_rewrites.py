"""Graph rewrites keep every number, and can be switched off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from converter import Graph, convert, integer_reference
from converter.reference import reference_session
from converter.rewrites import REWRITES, rewrite
from tests.converter.oracle import model_of, weights


def _branches() -> onnx.ModelProto:
    """Two branches and a copy of the first, concatenated, then a convolution."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1], name="a"),
        helper.make_node("Conv", ["x", "w2"], ["b"], name="b"),
        helper.make_node("Relu", ["b"], ["rb"], name="rb"),
        helper.make_node("Concat", ["a", "rb"], ["k"], axis=1, name="k"),
        helper.make_node("Conv", ["k", "w3"], ["y"], name="c"),
    ]
    constants = {
        "w1": weights(1, 4, 3, 3, 3) / 3,
        "w2": weights(2, 6, 3, 1, 1),
        "w3": weights(3, 5, 10, 1, 1),
    }
    return model_of(nodes, {"x": (2, 3, 6, 7)}, {"y": None}, constants)


def _run(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    feeds = {n: generator.integers(-128, 128, graph.tensors[n].shape).astype(np.int8) for n in graph.inputs}
    return [
        np.asarray(v) for v in reference_session(integer_reference(graph)).run(list(graph.outputs), feeds)
    ]


def test_a_concatenation_is_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_branches(), path)
    plain = convert(path, without=list(REWRITES))
    better = convert(path)
    assert [layer.op for layer in plain.graph.layers].count("copy") == 2
    assert [layer.op for layer in better.graph.layers] == ["conv", "conv", "conv"]
    first, second, third = better.graph.tensor_core_layers
    assert first.output.tensor == second.output.tensor == third.input.tensor
    assert (first.output.offset, second.output.offset) == (0, 4)
    assert any(line.startswith("write-in-place") for line in better.rewrites)
    np.testing.assert_array_equal(_run(plain.graph), _run(better.graph))


def test_duplicates_are_merged(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="a"),
        helper.make_node("Conv", ["x", "v"], ["b"], name="b"),
        helper.make_node("Sigmoid", ["a"], ["sa"], name="sa"),
        helper.make_node("Tanh", ["b"], ["tb"], name="tb"),
        helper.make_node("Add", ["sa", "tb"], ["y"], name="add"),
    ]
    same = weights(1, 4, 3, 1, 1)
    path = tmp_path / "m.onnx"
    onnx.save(model_of(nodes, {"x": (1, 3, 4, 4)}, {"y": None}, {"w": same, "v": same.copy()}), path)
    plain, better = convert(path, without=["merge-duplicates"]), convert(path)
    assert len(better.graph.tensor_core_layers) <= len(plain.graph.tensor_core_layers)
    assert len(better.graph.tensor_core_layers) == 1
    np.testing.assert_array_equal(_run(plain.graph), _run(better.graph))


def test_unknown_rewrites_are_named() -> None:
    with pytest.raises(ValueError, match="write-in-place"):
        rewrite(Graph("g", {}, (), (), ()), without=["fuse"])
