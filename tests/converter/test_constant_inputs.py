"""Inputs that are bound to a constant, values without elements, sequences of constant length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fadiff.converter import ModelError, UnsupportedError, convert
from tests.converter.oracle import compare, ints, model_of, session, weights


def _value(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _branches() -> onnx.ModelProto:
    """An If on a flag, as optimum's merged decoders have it: MatMul and Relu, or MatMul and Tanh."""
    branches = {}
    for name, op in (("then", "Relu"), ("else", "Tanh")):
        nodes = [
            helper.make_node("MatMul", ["x", "w"], [f"{name}.a"]),
            helper.make_node(op, [f"{name}.a"], [f"{name}.b"]),
        ]
        out = [_value(f"{name}.b", TensorProto.FLOAT, 1, 4, 8)]
        branches[f"{name}_branch"] = helper.make_graph(nodes, name, [], out)
    model = model_of(
        [helper.make_node("If", ["flag"], ["y"], **branches)],
        {"x": (1, 4, 8)},
        {"y": (1, 4, 8)},
        {"w": weights(1, 8, 8)},
    )
    model.graph.input.append(_value("flag", TensorProto.BOOL, 1))
    return model


@pytest.mark.parametrize(("flag", "op"), [(0, "lookup"), (1, "gemm")])
def test_false_is_a_value(flag: int, op: str, tmp_path: Path) -> None:
    """Tanh is a table behind the product, a Relu is part of it."""
    onnx.save(_branches(), tmp_path / "m.onnx")
    conversion = convert(tmp_path / "m.onnx", dims={"flag": flag})
    assert conversion.graph.layers[-1].op == op
    checked = compare(conversion, np.random.default_rng(0))
    assert checked.lsb_to_quantized <= 1


def _cached(kind: str) -> onnx.ModelProto:
    """Attention of 3 queries over past and new keys, of those that a mask leaves."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["k"]),
        helper.make_node("Concat", ["past", "k"], ["keys"], axis=1),
        helper.make_node("Transpose", ["keys"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "kt"], ["s"]),
        helper.make_node("Where", ["mask", "s", "low"], ["m"]),
        helper.make_node("Softmax", ["m"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "keys"], ["y"]),
        helper.make_node("Identity", ["past"], ["seen"]),
    ]
    constants = {"w": weights(1, 8, 8), "low": np.float32(-1e9)}
    model = model_of(nodes, {"x": (1, 3, 8)}, {"y": None, "seen": None}, constants)
    model.graph.input.append(_value("past", TensorProto.FLOAT, 1, "earlier", 8))
    model.graph.input.append(_value("mask", TensorProto.BOOL, 1, 1, "total"))
    return model


def test_a_past_of_length_0_and_a_mask_of_ones(tmp_path: Path) -> None:
    """The first step: neither input is left, nor the output that has no elements."""
    onnx.save(_cached(""), tmp_path / "m.onnx")
    dims = {"earlier": 0, "total": 3, "mask": 1}
    conversion = convert(tmp_path / "m.onnx", dims=dims, guess_states=False)
    assert [v.name for v in conversion.float_model.graph.input] == ["x"]
    assert [v.name for v in conversion.float_model.graph.output] == ["y"]
    assert "outputs without elements are left out: seen" in conversion.notes
    feeds = {"x": weights(3, 1, 3, 8)}
    empty = {"past": np.zeros((1, 0, 8), np.float32), "mask": np.ones((1, 1, 3), bool)}
    (expected,) = session(onnx.load(tmp_path / "m.onnx")).run(["y"], feeds | empty)
    (found,) = session(conversion.float_model).run(["y"], feeds)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_branch_whose_output_is_a_constant_without_elements(tmp_path: Path) -> None:
    """Merged decoders with a cache give back no keys of the encoder."""
    bodies = {}
    for branch, nodes in {
        "then_branch": [
            helper.make_node("Relu", ["x"], ["a"], "rectify"),
            helper.make_node(
                "Constant", [], ["b"], "none", value=numpy_helper.from_array(np.zeros((0, 4), "f"))
            ),
        ],
        "else_branch": [
            helper.make_node("Neg", ["x"], ["a2"], "negate"),
            helper.make_node("Identity", ["x"], ["b2"], "same"),
        ],
    }.items():
        results = [helper.make_empty_tensor_value_info(node.output[0]) for node in nodes]
        bodies[branch] = helper.make_graph(nodes, branch, [], results)
    node = helper.make_node("If", ["use_cache_branch"], ["y", "keys"], "choice", **bodies)
    model = model_of([node], {"x": (2, 4)}, {"y": None, "keys": None})
    model.graph.input.append(_value("use_cache_branch", TensorProto.BOOL, 1))
    onnx.save(model, tmp_path / "m.onnx")
    conversion = convert(tmp_path / "m.onnx", dims={"use_cache_branch": 1})
    assert [v.name for v in conversion.float_model.graph.output] == ["y"]
    assert "outputs without elements are left out: keys" in conversion.notes


def test_nothing_but_empty_outputs_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Slice", ["x", "z", "z"], ["y"])
    onnx.save(model_of([node], {"x": (1, 4)}, {"y": None}, {"z": ints(0)}), tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError, match="no elements"):
        convert(tmp_path / "m.onnx")


def test_a_size_of_0_that_nobody_chose_is_refused(tmp_path: Path) -> None:
    onnx.save(_cached(""), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="--dim earlier=1"):
        convert(tmp_path / "m.onnx", dims={"total": 3})


SEQUENCES = {
    "halves": (
        [
            helper.make_node("SplitToSequence", ["a", "sizes"], ["q"], axis=2),
            helper.make_node("SequenceAt", ["q", "first"], ["u"]),
            helper.make_node("SequenceAt", ["q", "last"], ["v"]),
            helper.make_node("Mul", ["u", "v"], ["y"]),
        ]
    ),
    "one by one, without the axis": (
        [
            helper.make_node("SplitToSequence", ["a"], ["q"], axis=1, keepdims=0),
            helper.make_node("SequenceErase", ["q", "first"], ["r"]),
            helper.make_node("ConcatFromSequence", ["r"], ["y"], axis=-1, new_axis=1),
        ]
    ),
    "by threes": (
        [
            helper.make_node("SplitToSequence", ["a", "three"], ["q"], axis=1),
            helper.make_node("SequenceAt", ["q", "last"], ["v"]),
            helper.make_node("SequenceInsert", ["q", "v", "first"], ["r"]),
            helper.make_node("ConcatFromSequence", ["r"], ["y"], axis=1),
        ]
    ),
    "filled one by one, the last first": (
        [
            helper.make_node("SplitToSequence", ["a"], ["q"], axis=1, keepdims=0),
            helper.make_node("SequenceLength", ["q"], ["n"]),
            helper.make_node("Sub", ["n", "one"], ["end"]),
            helper.make_node("SequenceAt", ["q", "end"], ["v"]),
            helper.make_node("SequenceAt", ["q", "first"], ["u"]),
            helper.make_node("SequenceEmpty", [], ["none"]),
            helper.make_node("SequenceInsert", ["none", "v"], ["r"]),
            helper.make_node("SequenceInsert", ["r", "u"], ["s"]),
            helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=1, new_axis=1),
        ]
    ),
    "made": (
        [
            helper.make_node("Tanh", ["a"], ["t"]),
            helper.make_node("SequenceConstruct", ["a", "t"], ["q"]),
            helper.make_node("SequenceLength", ["q"], ["n"]),
            helper.make_node("Cast", ["n"], ["nf"], to=TensorProto.FLOAT),
            helper.make_node("ConcatFromSequence", ["q"], ["c"], axis=0, new_axis=1),
            helper.make_node("Mul", ["c", "nf"], ["y"]),
        ]
    ),
}


@pytest.mark.parametrize("kind", SEQUENCES)
def test_sequences_of_constant_length(kind: str, tmp_path: Path) -> None:
    """Against ONNX Runtime, which runs them as sequences."""
    constants = {
        "w": weights(1, 8, 16),
        "sizes": ints(8, 8),
        "three": np.array(3),
        "one": np.array(1),
        "first": np.array(0),
        "last": np.array(-1),
    }
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), *SEQUENCES[kind]]
    model = model_of(nodes, {"x": (1, 5, 8)}, {"y": None}, constants)
    onnx.save(model, tmp_path / "m.onnx")
    conversion = convert(tmp_path / "m.onnx")
    feeds = {"x": weights(2, 1, 5, 8)}
    (expected,) = session(model).run(None, feeds)
    (found,) = session(conversion.float_model).run(None, feeds)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert compare(conversion, np.random.default_rng(0)).lsb_to_quantized <= 1
