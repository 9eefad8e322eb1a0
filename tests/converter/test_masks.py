"""Padding masks computed from inputs blank positions inside the softmax, however exporters wrote them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fadiff.converter import convert
from fadiff.converter.check.reference import run_reference
from fadiff.converter.check.storage import from_storage, store_inputs
from tests.converter.oracle import check, ints, model_of, session, sqnr_db, weights

HEADS, LENGTH, WIDTH = 2, 6, 8
LOWEST = np.float32(np.finfo(np.float32).min)


def _attention(how: str, batch: int, lowest: float = LOWEST) -> onnx.ModelProto:
    """softmax(x x^T, mask) of [batch, heads, length, width]; `mask` [batch, length] is 1 where to look."""
    nodes = {
        "added": [
            ("Unsqueeze", ["mask", "axes"], "m4", {}),
            ("Cast", ["m4"], "float", {"to": TensorProto.FLOAT}),
            ("Sub", ["one", "float"], "hidden", {}),
            ("Mul", ["hidden", "lowest"], "bias", {}),
            ("Add", ["scores", "bias"], "masked", {}),
        ],
        "chosen": [
            ("Unsqueeze", ["mask", "axes"], "m4", {}),
            ("Cast", ["m4"], "look", {"to": TensorProto.BOOL}),
            ("Where", ["look", "zero", "lowest"], "bias", {}),
            ("Add", ["bias", "scores"], "masked", {}),
        ],
        "filled": [
            ("Unsqueeze", ["mask", "axes"], "m4", {}),
            ("Equal", ["m4", "none"], "hide", {}),
            ("Where", ["hide", "lowest", "scores"], "masked", {}),
        ],
        "kept": [
            ("Unsqueeze", ["mask", "axes"], "m4", {}),
            ("Cast", ["m4"], "look", {"to": TensorProto.BOOL}),
            ("Where", ["look", "scores", "lowest"], "masked", {}),
        ],
        "spread": [
            ("Cast", ["mask"], "look", {"to": TensorProto.BOOL}),
            ("Where", ["look", "zeros", "lowest"], "flat", {}),
            ("Unsqueeze", ["flat", "axes"], "m4", {}),
            ("Expand", ["m4", "heads"], "bias", {}),
            ("Add", ["scores", "bias"], "masked", {}),
        ],
        "windowed": [
            ("Unsqueeze", ["mask", "axes"], "m4", {}),
            ("Cast", ["m4"], "look", {"to": TensorProto.BOOL}),
            ("Where", ["look", "zero", "lowest"], "bias", {}),
            ("Add", ["bias", "causal"], "earlier", {}),
            ("Add", ["earlier", "window"], "near", {}),
            ("Add", ["scores", "near"], "masked", {}),
        ],
    }[how]
    steps = [
        ("Transpose", ["x"], "t", {"perm": [0, 1, 3, 2]}),
        ("MatMul", ["x", "t"], "scores", {}),
        *nodes,
        ("Softmax", ["masked"], "p", {"axis": -1}),
        ("MatMul", ["p", "x"], "y", {}),
    ]
    constants = {
        "axes": np.array([1, 2]),
        "one": np.float32(1),
        "zero": np.float32(0),
        "lowest": np.float32(lowest),
        "none": np.int64(0),
        "zeros": np.zeros((batch, LENGTH), np.float32),
        "heads": np.array([batch, HEADS, 1, LENGTH]),
        "causal": np.triu(np.full((LENGTH, LENGTH), lowest, np.float32), 1),
        "window": np.tril(np.full((batch, 1, LENGTH, LENGTH), lowest, np.float32), -4),
    }
    shape = (batch, HEADS, LENGTH, WIDTH)
    graph = helper.make_graph(
        [helper.make_node(op, i, [o], name=o, **more) for op, i, o, more in steps],
        "test",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("mask", TensorProto.INT64, (batch, LENGTH)),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


_BLANKED = [(how, LOWEST) for how in ("added", "chosen", "filled", "kept", "spread")]
_BLANKED += [(how, -np.inf) for how in ("chosen", "filled", "kept", "spread", "windowed")]


@pytest.mark.parametrize(("how", "lowest"), _BLANKED)
@pytest.mark.parametrize("batch", [1, 2])
def test_a_computed_mask_blanks_positions(how: str, lowest: float, batch: int, tmp_path: Path) -> None:
    """PyTorch's nn.MultiheadAttention writes minus infinity, which is no more than -127 in int8."""
    path = tmp_path / "m.onnx"
    model = _attention(how, batch, lowest)
    onnx.save(model, path)
    x = weights(0, batch, HEADS, LENGTH, WIDTH)
    mask = np.ones((batch, LENGTH), np.int64)
    mask[0, 4:] = 0
    mask[-1, 2] = 0
    feeds = {"x": x, "mask": mask}
    conversion = convert(path, calibration=[feeds])
    graph = conversion.graph
    softmax = next(layer for layer in graph.layers if getattr(layer, "op", "") == "softmax")
    assert len(softmax.inputs) == 3  # scores, exponentials, mask
    (output,) = graph.outputs
    found = run_reference(graph, store_inputs(graph, feeds))[output]
    (wanted,) = session(model).run(None, feeds)
    assert sqnr_db(wanted, from_storage(graph.tensors[output], found, wanted.shape)) > 30


def test_a_bias_from_integers_is_no_mask(tmp_path: Path) -> None:
    """Numbers other than 0 and very negative ones are added, not turned into a mask."""
    model = _attention("added", 1)
    tensors = [t for t in model.graph.initializer if t.name != "lowest"]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*tensors, numpy_helper.from_array(np.float32(-3), "lowest")])
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    graph = convert(path).graph
    softmax = next(layer for layer in graph.layers if getattr(layer, "op", "") == "softmax")
    assert len(softmax.inputs) == 2


def test_a_mask_may_come_from_numbers(tmp_path: Path) -> None:
    """Graph attention looks where the adjacency matrix, of floats, is above zero."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Transpose", ["h"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "t"], ["scores"]),
        helper.make_node("Greater", ["edges", "zero"], ["look"]),
        helper.make_node("Where", ["look", "scores", "lowest"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "h"], ["y"]),
    ]
    constants = {"w": 0.3 * weights(1, WIDTH, WIDTH), "zero": np.float32(0), "lowest": np.float32(-1e9)}
    inputs = {"x": (LENGTH, WIDTH), "edges": (LENGTH, LENGTH)}
    assert check(model_of(nodes, inputs, {"y": None}, constants), tmp_path).sqnr_db > 25


def test_attention_is_zero_where_everything_is_masked(tmp_path: Path) -> None:
    """As ONNX defines Attention, which has minus infinity in the mask: no int8 number."""
    shapes = {"q": (1, 6, 16), "k": (1, 9, 8), "v": (1, 9, 8)}
    node = helper.make_node("Attention", [*shapes, "mask"], ["y"], q_num_heads=2, kv_num_heads=1)
    model = model_of([node], shapes, {"y": None}, opset=23)
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, (6, 9)))
    model.ir_version = 11
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    mask = np.random.default_rng(0).random((6, 9)) > 0.5
    mask[2] = False
    feeds = {**{name: weights(i, *shape) for i, (name, shape) in enumerate(shapes.items())}, "mask": mask}
    conversion = convert(path, calibration=[feeds])
    graph = conversion.graph
    assert not any(layer.op == "add" for layer in graph.layers)  # nobody reads scores + mask
    (output,) = graph.outputs
    found = run_reference(graph, store_inputs(graph, feeds))[output]
    result = from_storage(graph.tensors[output], found, (1, 6, 16))
    assert not result[0, 2].any() and result[0, 1].any()
    for runnable in (conversion.float_model, conversion.quantized_model):
        (wanted,) = session(runnable).run(None, feeds)
        assert not wanted[0, 2].any()
        assert sqnr_db(wanted, result) > 30


@pytest.mark.parametrize("lowest", [-np.inf, -1e9, -1e4])
def test_an_input_of_floats_is_a_mask_if_the_calibration_data_say_so(lowest: float, tmp_path: Path) -> None:
    """Next to such a number in one int8 tensor all scores would be equal."""
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Add", ["scores", "mask"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    shapes = {"q": (2, 6, 8), "k": (2, 8, 6), "v": (2, 6, 8), "mask": (1, 6, 6)}
    model = model_of(nodes, shapes, {"y": None})
    onnx.save(model, tmp_path / "m.onnx")
    feeds = {name: weights(i, *shape) for i, (name, shape) in enumerate(shapes.items())}
    feeds["mask"] = np.triu(np.full((1, 6, 6), lowest, np.float32), 1)
    conversion = convert(tmp_path / "m.onnx", calibration=[feeds])
    graph = conversion.graph
    (output,) = graph.outputs
    found = run_reference(graph, store_inputs(graph, feeds))[output]
    (wanted,) = session(model).run(None, feeds)
    result = from_storage(graph.tensors[output], found, wanted.shape)
    assert sqnr_db(wanted, result) > 30
    assert sqnr_db(session(conversion.quantized_model).run(None, feeds)[0], result) > 30


def test_an_input_of_other_floats_is_added(tmp_path: Path) -> None:
    """Relative positions: numbers of every size."""
    nodes = [
        helper.make_node("Add", ["x", "bias"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["y"], axis=-1),
    ]
    model = model_of(nodes, {"x": (4, 6), "bias": (4, 6)}, {"y": None})
    onnx.save(model, tmp_path / "m.onnx")
    feeds = {"x": weights(0, 4, 6), "bias": weights(1, 4, 6)}
    graph = convert(tmp_path / "m.onnx", calibration=[feeds]).graph
    assert [layer.op for layer in graph.layers] == ["add", "softmax"]


@pytest.mark.parametrize("fill", [-1e5, -np.inf])
def test_a_pad_that_only_maxima_see_costs_no_precision(fill: float, tmp_path: Path) -> None:
    """The largest of a row that a pad blanks at both ends: the range is that of the numbers."""
    constants = {"pads": ints(0, 1, 0, 1), "fill": np.array(fill, np.float32)}
    nodes = [
        helper.make_node("Neg", ["x"], ["n"], name="before"),
        helper.make_node("Pad", ["n", "pads", "fill"], ["p"], name="pad"),
        helper.make_node("ReduceMax", ["p"], ["y"], name="largest", axes=[1]),
    ]
    checked = check(model_of(nodes, {"x": (6, 16)}, {"y": (6, 1)}, constants), tmp_path)
    assert checked.lsb_to_quantized <= 1.01 and checked.sqnr_db > 30
