"""Graph rewrites keep every number, and can be switched off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import Graph, convert
from fadiff.converter.check.reference import run_reference
from fadiff.converter.rewrites import NAMES, REWRITES, rewrite
from tests.converter.oracle import compare, model_of, weights


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
    found = run_reference(graph, feeds)
    return [found[name] for name in graph.outputs]


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
    """Common sub-expressions, by ONNX Runtime as it folds constants."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="a"),
        helper.make_node("Conv", ["x", "w"], ["b"], name="b"),
        helper.make_node("Sigmoid", ["a"], ["sa"], name="sa"),
        helper.make_node("Tanh", ["b"], ["tb"], name="tb"),
        helper.make_node("Add", ["sa", "tb"], ["y"], name="add"),
    ]
    path = tmp_path / "m.onnx"
    onnx.save(model_of(nodes, {"x": (1, 3, 4, 4)}, {"y": None}, {"w": weights(1, 4, 3, 1, 1)}), path)
    assert len(convert(path).graph.tensor_core_layers) == 1


def test_unknown_rewrites_are_named() -> None:
    with pytest.raises(ValueError, match="write-in-place"):
        rewrite(Graph("g", {}, (), (), ()), without=["fuse"])


@pytest.mark.parametrize("name", NAMES)
def test_every_rewrite_can_be_left_out(name: str, tmp_path: Path) -> None:
    """The numbers stay: more layers round more often, so compare with the float model."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b"], ["a0"], pads=[1, 1, 1, 1], name="a"),
        helper.make_node("Relu", ["a0"], ["a"], name="ra"),
        helper.make_node("Conv", ["a", "w2"], ["c"], name="c"),
        helper.make_node("Sigmoid", ["c"], ["s"], name="s"),
        helper.make_node("Mul", ["c", "s"], ["m"], name="silu"),
        helper.make_node("Concat", ["m", "a"], ["k"], axis=1, name="k"),
        helper.make_node("Reshape", ["k", "flat"], ["f"], name="f"),
        helper.make_node("Transpose", ["f"], ["t"], perm=[0, 2, 1], name="t"),
        helper.make_node("MatMul", ["t", "w3"], ["y"], name="product"),
    ]
    constants = {
        "w1": weights(1, 4, 3, 3, 3) / 5,
        "b": weights(2, 4),
        "w2": weights(3, 4, 4, 1, 1) / 2,
        "w3": weights(4, 8, 5) / 3,
        "flat": np.array((1, 8, 36), np.int64),
    }
    path = tmp_path / "m.onnx"
    onnx.save(model_of(nodes, {"x": (1, 3, 6, 6)}, {"y": (1, 36, 5)}, constants), path)
    # (what is not absorbed is copied, and copies may be written in place)
    both = ["write-in-place"] if name == "absorb-movement" else []
    every, fewer = convert(path, without=both), convert(path, without=[name, *both])
    assert len(fewer.graph.layers) >= len(every.graph.layers)
    assert compare(fewer, np.random.default_rng(0)).sqnr_db > 24
    mine = [line for line in every.rewrites if line.startswith(name)]
    assert len([line for line in fewer.rewrites if line.startswith(name)]) <= len(mine)
    if name in ("fold-epilogues", "fold-chains", "absorb-movement"):
        assert len(fewer.graph.layers) > len(every.graph.layers) and mine


def _dense_block() -> onnx.ModelProto:
    """Each layer reads everything before it through a batch norm, and adds four channels."""
    nodes, constants = [], {}
    value, channels = "x0", 6
    nodes.append(helper.make_node("Conv", ["x", "w"], ["x0"], name="first"))
    constants["w"] = weights(0, channels, 3, 1, 1)
    for i in range(1, 4):
        for j, name in enumerate(("scale", "bias", "mean", "var")):
            constants[f"{name}{i}"] = np.abs(weights(10 * i + j, channels)) + (0.5 if name == "var" else 0)
        norm = [f"{name}{i}" for name in ("scale", "bias", "mean", "var")]
        nodes += [
            helper.make_node("BatchNormalization", [value, *norm], [f"n{i}"], name=f"norm{i}"),
            helper.make_node("Relu", [f"n{i}"], [f"r{i}"], name=f"relu{i}"),
            helper.make_node("Conv", [f"r{i}", f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1], name=f"conv{i}"),
            helper.make_node("Concat", [value, f"c{i}"], [f"x{i}"], axis=1, name=f"join{i}"),
        ]
        constants[f"w{i}"] = weights(i, 4, channels, 3, 3) / (3 * channels)
        value, channels = f"x{i}", channels + 4
    nodes.append(helper.make_node("Conv", [value, "last"], ["y"], name="last"))
    constants["last"] = weights(9, 5, channels, 1, 1)
    return model_of(nodes, {"x": (2, 3, 6, 7)}, {"y": None}, constants)


def test_what_others_read_as_well_is_written_in_place(tmp_path: Path) -> None:
    """A dense block: every skip is read where the last concatenation has it."""
    path = tmp_path / "m.onnx"
    onnx.save(_dense_block(), path)
    plain, better = convert(path, without=["write-in-place"]), convert(path)
    copies = [[layer.op for layer in c.graph.layers].count("copy") for c in (plain, better)]
    assert copies[0] >= 6 and copies[1] == 0
    np.testing.assert_array_equal(_run(plain.graph), _run(better.graph))
    assert compare(better, np.random.default_rng(0)).lsb_to_quantized <= 2


def test_the_border_of_a_padded_tensor_is_filled_before_its_inside_is_written(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="a"),
        helper.make_node("Pad", ["a", "pads", "value"], ["p"], name="p"),
        helper.make_node("Conv", ["p", "w2"], ["y"], name="c"),
    ]
    constants = {
        "w1": weights(1, 4, 3, 1, 1),
        "w2": weights(2, 5, 4, 3, 3) / 4,
        "pads": np.array([0, 0, 1, 2, 0, 0, 2, 1]),
        "value": np.float32(0.5),
    }
    path = tmp_path / "m.onnx"
    onnx.save(model_of(nodes, {"x": (1, 3, 5, 6)}, {"y": None}, constants), path)
    conversion = convert(path)
    assert any("write into" in line for line in conversion.rewrites)
    checked = compare(conversion, np.random.default_rng(1))
    assert checked.lsb_to_quantized <= 1.01
    assert checked.sqnr_db > 20
