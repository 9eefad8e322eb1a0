"""Graph rewrites keep every number, and can be switched off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from converter import Graph, convert
from converter.check.reference import run_reference
from converter.rewrites import NAMES, REWRITES, rewrite
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


def _attention_like(shared: bool = True) -> onnx.ModelProto:
    """Three projections of one value: two meet in a product, the third goes through a ReLU of its own."""
    nodes = [
        helper.make_node("MatMul", ["x", "wq"], ["q0"], name="q"),
        helper.make_node("Add", ["q0", "bq"], ["q"], name="qb"),
        helper.make_node("MatMul", ["x", "wk"], ["k"], name="k"),
        helper.make_node("MatMul", ["x", "wv"], ["v0"], name="v"),
        helper.make_node("Reshape", ["q", "heads"], ["q1"], name="q1"),
        helper.make_node("Transpose", ["q1"], ["q2"], perm=[0, 2, 1, 3], name="q2"),
        helper.make_node("Reshape", ["k", "heads"], ["k1"], name="k1"),
        helper.make_node("Transpose", ["k1"], ["k2"], perm=[0, 2, 3, 1], name="k2"),
        helper.make_node("MatMul", ["q2", "k2"], ["s"], name="scores"),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1, name="softmax"),
        helper.make_node("Reshape", ["v0", "heads"], ["v1"], name="v1"),
        helper.make_node("Transpose", ["v1"], ["v2"], perm=[0, 2, 1, 3], name="v2"),
        helper.make_node("MatMul", ["p", "v2"], ["y"], name="context"),
    ]
    constants = {
        "wq": weights(1, 16, 16) / 4,
        "wk": weights(2, 16, 16) / 4,
        "wv": weights(3, 16, 16) / (4 if shared else 80),
        "bq": weights(4, 16),
        "heads": np.array((1, 12, 2, 8), np.int64),
    }
    return model_of(nodes, {"x": (1, 12, 16)}, {"y": (1, 2, 12, 8)}, constants)


def test_siblings_are_merged_and_their_results_read_as_slices(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_attention_like(), path)
    apart = convert(path)
    together = apart.with_siblings()
    assert together is not None
    assert [layer.op for layer in together.graph.layers] == ["gemm", "bmm", "softmax", "bmm"]
    merged, scores, context = together.graph.tensor_core_layers
    assert merged.dims.K == 48 and merged.bias is not None
    tensor = merged.output.tensor
    assert (scores.input.tensor, scores.weight.tensor, context.weight.tensor) == (tensor, tensor, tensor)
    assert (scores.input.offset, scores.weight.offset, context.weight.offset) == (0, 16, 32)
    checked = compare(together, np.random.default_rng(0))
    assert checked.lsb_to_quantized <= 1  # ONNX Runtime's run of the same integers
    assert checked.sqnr_db > compare(apart, np.random.default_rng(0)).sqnr_db - 1
    assert any("q, k, v read x" in line for line in together.rewrites)


def test_the_merged_ratio_of_scales_is_one(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_attention_like(), path)
    together = convert(path).with_siblings()
    assert together is not None
    found = {node.output[0]: node for node in together.quantized_model.graph.node if "Linear" in node.op_type}
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in together.quantized_model.graph.initializer}

    def scale(value: str) -> float:
        return float(constants[found[value].input[1]])

    pairs = [("wq.dq", "q"), ("wk.dq", "k"), ("wv.dq", "v0")]
    ratios = [scale(weight) / scale(result) for weight, result in pairs]
    assert max(ratios) / min(ratios) == pytest.approx(1, rel=1e-6)


def test_siblings_of_far_scales_stay_apart(tmp_path: Path) -> None:
    """Joining weights of a twentieth would cost four bits where the results do not shrink alike."""
    model = _attention_like(shared=False)
    # the third result keeps its range although its weights are small
    model.graph.node[3].output[0] = "v00"
    model.graph.node.insert(4, helper.make_node("Add", ["v00", "bv"], ["v0"], name="vb"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(10 * weights(5, 16), "bv"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    together = convert(path).with_siblings()
    assert together is not None
    assert [step.name for step in together.siblings[0].steps] == ["q", "k"]


def test_what_a_concatenation_takes_in_place_is_not_merged(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="a"),
        helper.make_node("Conv", ["x", "w2"], ["b"], name="b"),
        helper.make_node("Sigmoid", ["b"], ["s"], name="s"),
        helper.make_node("Concat", ["a", "s"], ["k"], axis=1, name="k"),
        helper.make_node("Conv", ["k", "w3"], ["y"], name="c"),
    ]
    constants = {
        "w1": weights(1, 4, 3, 1, 1),
        "w2": weights(2, 4, 3, 1, 1),
        "w3": weights(3, 5, 8, 1, 1),
    }
    path = tmp_path / "m.onnx"
    onnx.save(model_of(nodes, {"x": (1, 3, 6, 6)}, {"y": None}, constants), path)
    conversion = convert(path)
    assert len(conversion.mergeable) == 1
    assert conversion.with_siblings() is None


def test_inception_branches_are_merged(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a0"], name="a"),
        helper.make_node("Relu", ["a0"], ["a"], name="ra"),
        helper.make_node("Conv", ["x", "w2"], ["b0"], name="b"),
        helper.make_node("Relu", ["b0"], ["b"], name="rb"),
        helper.make_node("Conv", ["a", "w3"], ["c"], pads=[1, 1, 1, 1], name="c"),
        helper.make_node("Conv", ["b", "w4"], ["d"], pads=[2, 2, 2, 2], name="d"),
        helper.make_node("Concat", ["c", "d"], ["y"], axis=1, name="k"),
    ]
    constants = {
        "w1": weights(1, 4, 3, 1, 1),
        "w2": weights(2, 6, 3, 1, 1),
        "w3": weights(3, 5, 4, 3, 3),
        "w4": weights(4, 3, 6, 5, 5),
    }
    path = tmp_path / "m.onnx"
    onnx.save(model_of(nodes, {"x": (1, 3, 6, 6)}, {"y": None}, constants), path)
    together = convert(path).with_siblings()
    assert together is not None
    assert [layer.dims.K for layer in together.graph.tensor_core_layers] == [10, 5, 3]
    assert compare(together, np.random.default_rng(0)).lsb_to_quantized <= 1


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
