"""Outputs that join unlike parts: boxes in pixels and probabilities in one tensor, as detectors have them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import fadiff
from fadiff.converter import convert
from fadiff.converter.check.reference import run_reference
from fadiff.converter.check.storage import from_storage, store_inputs
from fadiff.converter.ir.graph import Tensor
from fadiff.converter.ir.scale import AxisScales, Part
from fadiff.converter.quantise.scales import parts_along
from tests.converter.oracle import ints, model_of, session, sqnr_db, weights

TAILS = {
    "as it is": ([], (1, 7, 64)),
    "transposed": ([helper.make_node("Transpose", ["j0"], ["j1"], perm=[0, 2, 1])], (1, 64, 7)),
    "reshaped": ([helper.make_node("Reshape", ["j0", "flat"], ["j1"])], (448,)),
    "both": (
        [
            helper.make_node("Transpose", ["j0"], ["t"], perm=[0, 2, 1]),
            helper.make_node("Reshape", ["t", "flat"], ["j1"]),
        ],
        (448,),
    ),
}


def _detector(tail: str) -> onnx.ModelProto:
    """Four coordinates up to 640 and three probabilities at 64 places."""
    moves, _ = TAILS[tail]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["f"]),
        helper.make_node("Conv", ["f", "wb"], ["b0"]),
        helper.make_node("Reshape", ["b0", "boxes"], ["b1"]),
        helper.make_node("Sigmoid", ["b1"], ["b2"]),
        helper.make_node("Mul", ["b2", "pixels"], ["b"]),
        helper.make_node("Conv", ["f", "wc"], ["c0"]),
        helper.make_node("Reshape", ["c0", "classes"], ["c1"]),
        helper.make_node("Sigmoid", ["c1"], ["c"]),
        helper.make_node("Concat", ["b", "c"], ["j0"], axis=1),
        *moves,
        helper.make_node("Identity", [f"j{len(moves[-1:])}"], ["y"]),
    ]
    constants = {
        "w": 0.3 * weights(1, 8, 3, 3, 3),
        "wb": 0.3 * weights(2, 4, 8, 1, 1),
        "wc": weights(3, 3, 8, 1, 1),
        "boxes": ints(1, 4, 64),
        "classes": ints(1, 3, 64),
        "flat": ints(448),
        "pixels": np.float32(640),
    }
    return model_of(nodes, {"x": (1, 3, 16, 16)}, {"y": None}, constants)


@pytest.mark.parametrize("samples", [0, 9], ids=["random", "judged"])
@pytest.mark.parametrize("tail", TAILS)
def test_every_part_of_an_output_keeps_its_scale(tail: str, samples: int, tmp_path: Path) -> None:
    """Scores above 25 dB; with one scale for both every score is 0 (and the whole is above 40 dB)."""
    path = tmp_path / "detector.onnx"
    model = _detector(tail)
    onnx.save(model, path)
    conversion = convert(path, calibration=[{"x": weights(i, 1, 3, 16, 16)} for i in range(samples)])
    feeds = {"x": weights(99, 1, 3, 16, 16)}
    (expected,) = session(model).run(None, feeds)
    (quantised,) = session(conversion.quantized_model).run(None, feeds)
    graph = conversion.graph
    (name,) = graph.outputs
    found = run_reference(graph, store_inputs(graph, feeds))[name]
    real = from_storage(graph.tensors[name], found, expected.shape)
    is_score = np.zeros((1, 7, 64), bool)
    is_score[:, 4:] = True
    is_score = is_score.transpose(0, 2, 1) if tail in ("transposed", "both") else is_score
    is_score = is_score.reshape(expected.shape)
    assert sqnr_db(expected[is_score], real[is_score]) > 25
    assert sqnr_db(expected[~is_score], real[~is_score]) > 25
    assert sqnr_db(quantised[is_score], real[is_score]) > 35
    assert [layer.op for layer in graph.layers].count("copy") == 0


def _levels(order: str) -> onnx.ModelProto:
    """Two sizes of image: boxes and scores joined for each, moved, and both levels joined along another axis.

    "last": transposed, then joined and flattened, as anchors of YOLO v5 are; "first": joined before; "bare":
    as "first", but nothing is moved; "twice": one of them two times.
    """
    nodes, rows = [], []
    for level, stride in enumerate((1, 2)):
        (a, b, c, j, m), side = (f"{name}{level}" for name in "abcjm"), 8 // stride
        parts = [
            helper.make_node("Conv", ["x", "w"], [a], pads=[1, 1, 1, 1], strides=[stride, stride]),
            helper.make_node("Slice", [a, "zero", "four", "one"], [f"{b}.logits"]),
            helper.make_node("Slice", [a, "four", "seven", "one"], [f"{c}.logits"]),
            helper.make_node("Sigmoid", [f"{b}.logits"], [f"{b}.part"]),
            helper.make_node("Mul", [f"{b}.part", "pixels"], [b]),
            helper.make_node("Sigmoid", [f"{c}.logits"], [c]),
        ]
        if order == "last":
            for part in (b, c):
                parts.append(helper.make_node("Transpose", [part], [f"{part}.t"], perm=[0, 2, 3, 1]))
            parts.append(helper.make_node("Concat", [f"{b}.t", f"{c}.t"], [j], axis=-1))
            parts.append(helper.make_node("Reshape", [j, "rows"], [m]))
        elif order == "bare":
            for part in (b, c):
                parts.append(helper.make_node("Reshape", [part, f"rows{side}"], [f"{part}.t"]))
            parts.append(helper.make_node("Concat", [f"{b}.t", f"{c}.t"], [m], axis=-1))
        else:
            parts.append(helper.make_node("Concat", [b, c], [j], axis=1))
            parts.append(helper.make_node("Reshape", [j, f"flat{side}"], [f"{j}.r"]))
            parts.append(helper.make_node("Transpose", [f"{j}.r"], [m], perm=[0, 2, 1]))
        nodes += parts
        rows.append(m)
    rows = [rows[0]] * 2 if order == "twice" else rows
    nodes.append(helper.make_node("Concat", rows, ["y"], axis=1))
    constants = {
        "w": weights(1, 7, 3, 3, 3),
        "pixels": np.float32(640),
        "zero": ints(0),
        "one": ints(1),
        "four": ints(4),
        "seven": ints(7),
        "rows": ints(1, -1, 7),
        "rows8": ints(1, 64, -1),
        "rows4": ints(1, 16, -1),
        "flat8": ints(1, 7, 64),
        "flat4": ints(1, 7, 16),
    }
    return model_of(nodes, {"x": (1, 3, 8, 8)}, {"y": None}, constants)


@pytest.mark.parametrize("order", ["first", "last", "bare", "twice"])
def test_levels_that_are_joined_along_another_axis(order: str, tmp_path: Path) -> None:
    """Scores and boxes above 25 dB (scores were all 0), and the float model stays equal."""
    path, model = tmp_path / "levels.onnx", _levels(order)
    onnx.save(model, path)
    conversion = convert(path, calibration=[{"x": weights(i, 1, 3, 8, 8)} for i in range(9)])
    feeds = {"x": weights(99, 1, 3, 8, 8)}
    (expected,) = session(model).run(None, feeds)
    np.testing.assert_allclose(session(conversion.float_model).run(None, feeds)[0], expected, rtol=1e-5)
    graph = conversion.graph
    found = run_reference(graph, store_inputs(graph, feeds))[graph.outputs[0]]
    real = from_storage(graph.tensors[graph.outputs[0]], found, expected.shape)
    assert sqnr_db(expected[..., 4:], real[..., 4:]) > 25
    assert sqnr_db(expected[..., :4], real[..., :4]) > 25


def _key_points(axis: int) -> onnx.ModelProto:
    """Boxes beside five points, of which each has a place in pixels and a probability (`axis` 2: x, y, seen
    of one point after the other, as pose networks write them; 1: all places, then all probabilities)."""
    place, seen = ((1, 5, 2, 36), (1, 5, 1, 36)) if axis == 2 else ((1, 10, 1, 36), (1, 5, 1, 36))
    nodes = [
        helper.make_node("Conv", ["x", "wb"], ["b0"]),
        helper.make_node("Reshape", ["b0", "boxes"], ["b"]),
        helper.make_node("Conv", ["x", "wp"], ["p0"]),
        helper.make_node("Reshape", ["p0", "place"], ["p"]),
        helper.make_node("Conv", ["x", "ws"], ["s0"]),
        helper.make_node("Sigmoid", ["s0"], ["s1"]),
        helper.make_node("Reshape", ["s1", "seen"], ["s"]),
        helper.make_node("Concat", ["p", "s"], ["points"], axis=axis),
        helper.make_node("Reshape", ["points", "flat"], ["k"]),
        helper.make_node("Concat", ["b", "k"], ["y"], axis=1),
    ]
    constants = {
        "wb": 999 * weights(1, 4, 3, 1, 1),
        "wp": 60 * weights(2, 10, 3, 1, 1),
        "ws": weights(3, 5, 3, 1, 1),
        "boxes": ints(1, 4, 36),
        "place": ints(*place),
        "seen": ints(*seen),
        "flat": ints(1, 15, 36),
    }
    return model_of(nodes, {"x": (1, 3, 6, 6)}, {"y": None}, constants)


@pytest.mark.parametrize("axis", [1, 2])
def test_a_join_of_joins_keeps_all_scales(axis: int, tmp_path: Path) -> None:
    """With the scale of the places, what is seen is 0, half or one."""
    path = tmp_path / "pose.onnx"
    model = _key_points(axis)
    onnx.save(model, path)
    result = fadiff.compile(path, tmp_path / "out", method="layerwise", verify=True)
    assert result.verification is not None and result.verification.bit_exact
    conversion = convert(path)
    graph = conversion.graph
    feeds = {"x": weights(99, 1, 3, 6, 6)}
    (expected,) = session(model).run(None, feeds)
    (quantised,) = session(conversion.quantized_model).run(None, feeds)
    (name,) = graph.outputs
    real = from_storage(
        graph.tensors[name], run_reference(graph, store_inputs(graph, feeds))[name], expected.shape
    )
    rows = np.arange(19)
    is_seen = (rows >= 4) & ((rows - 4) % 3 == 2 if axis == 2 else rows >= 14)
    for which in (is_seen, ~is_seen):
        assert sqnr_db(expected[:, which], real[:, which]) > 30
        assert sqnr_db(quantised[:, which], real[:, which]) > 35
    along = graph.tensors[name].along
    assert along is not None and len(along.parts) == (11 if axis == 2 else 3)


@pytest.mark.parametrize("outer", [(4, 3, 2), (2, 12), (12, 2), (24,), (2, 2, 3, 2), (8, 3), (2, 3, 2, 2)])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_parts_under_another_shape(axis: int, outer: tuple[int, ...]) -> None:
    """Against the places of every element."""
    inner = (2, 6, 2)
    places = np.indices(inner)[axis].reshape(outer)
    for along in range(len(outer)):
        rows = np.moveaxis(places, along, 0).reshape(outer[along], -1)
        found = parts_along(inner, axis, outer, along)
        assert (found is not None) == bool((rows == rows[:, :1]).all())
        if found is not None:
            times, repeats = found
            expected = np.tile(np.repeat(np.arange(inner[axis]), times), repeats)
            np.testing.assert_array_equal(rows[:, 0], expected)


def test_parts_of_about_one_range_share_a_scale(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]),
        helper.make_node("MatMul", ["x", "w"], ["b"]),
        helper.make_node("Concat", ["a", "b"], ["y"], axis=1),
    ]
    path = tmp_path / "m.onnx"
    constants = {"v": weights(1, 16, 8), "w": 1.2 * weights(2, 16, 8)}
    onnx.save(model_of(nodes, {"x": (4, 16)}, {"y": None}, constants), path)
    graph = convert(path).graph
    assert graph.tensors[graph.outputs[0]].along is None


def test_meaning_by_hand() -> None:
    """value = scale * integer + offset, of the part in which an index along the stored axis lies."""
    along = AxisScales(1, (Part(1, 0.5, 1.0), Part(2, 2.0)))
    tensor = Tensor("t", (2, 3), "int8", 9.0, onnx_axes=(1, 0), along=along)
    stored = np.array([[1, 2, 3], [-4, 5, -6]], np.int8)
    np.testing.assert_array_equal(from_storage(tensor, stored, (3, 2)), [[1.5, -1], [4, 10], [6, -12]])


def test_places_alone_that_are_multiplied(tmp_path: Path) -> None:
    """One product of a constant shape in a program: GCC knows its loops, and finds nothing to refuse."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"]),
        helper.make_node("Add", ["t", "s"], ["a"]),
        helper.make_node("Mul", ["a", "strides"], ["p"]),
        helper.make_node("Sigmoid", ["s"], ["seen"]),
        helper.make_node("Concat", ["p", "seen"], ["points"], axis=2),
        helper.make_node("Reshape", ["points", "flat"], ["y"]),
    ]
    constants = {"strides": np.repeat(np.float32([8, 16, 32]), [64, 16, 4]), "flat": ints(1, 51, 84)}
    inputs = {"x": (1, 17, 2, 84), "s": (1, 17, 1, 84)}
    onnx.save(model_of(nodes, inputs, {"y": None}, constants), tmp_path / "m.onnx")
    result = fadiff.compile(tmp_path / "m.onnx", tmp_path / "out", method="layerwise", verify=True)
    assert result.verification is not None and result.verification.bit_exact


def _written_in_place() -> onnx.ModelProto:
    """y[..., :2] = (y[..., :2] + grid) * 8, then y[..., 2:4] = exp(y[..., 2:4]) * 8, as YOLOX decodes."""
    places = np.stack(np.indices((1, 36, 7)), -1)
    nodes = [
        helper.make_node("Conv", ["x", "wb"], ["b"]),
        helper.make_node("Conv", ["x", "ws"], ["s0"]),
        helper.make_node("Sigmoid", ["s0"], ["s"]),
        helper.make_node("Concat", ["b", "s"], ["j"], axis=1),
        helper.make_node("Reshape", ["j", "flat"], ["f"]),
        helper.make_node("Transpose", ["f"], ["y0"], perm=[0, 2, 1]),
        helper.make_node("Slice", ["y0", "zero", "two", "last"], ["c0"]),
        helper.make_node("Add", ["c0", "grid"], ["c1"]),
        helper.make_node("Mul", ["c1", "eight"], ["c"]),
        helper.make_node("ScatterND", ["y0", "centres", "c"], ["y1"]),
        helper.make_node("Slice", ["y1", "two", "four", "last"], ["e0"]),
        helper.make_node("Exp", ["e0"], ["e1"]),
        helper.make_node("Mul", ["e1", "eight"], ["e"]),
        helper.make_node("ScatterND", ["y1", "sizes", "e"], ["y"]),
    ]
    constants = {"wb": weights(1, 4, 3, 1, 1), "ws": weights(2, 3, 3, 1, 1), "flat": ints(1, 7, 36)}
    constants |= {"zero": ints(0), "two": ints(2), "four": ints(4), "last": ints(-1), "eight": np.float32(8)}
    constants["grid"] = np.indices((6, 6)).reshape(1, 2, 36).transpose(0, 2, 1).astype(np.float32)
    constants |= {"centres": places[:, :, :2], "sizes": places[:, :, 2:4]}
    return model_of(nodes, {"x": (1, 3, 6, 6)}, {"y": None}, constants, 17)


def test_columns_that_are_written_in_place_are_parts(tmp_path: Path) -> None:
    """With one scale for all, scores had 5 dB."""
    onnx.save(model := _written_in_place(), path := tmp_path / "m.onnx")
    result = fadiff.compile(path, tmp_path / "out", method="layerwise", verify=True)
    assert result.verification is not None and result.verification.bit_exact
    graph, feeds = convert(path).graph, {"x": weights(99, 1, 3, 6, 6)}
    (expected,) = session(model).run(None, feeds)
    (name,) = graph.outputs
    stored = run_reference(graph, store_inputs(graph, feeds))[name]
    real = from_storage(graph.tensors[name], stored, expected.shape)
    for part in (np.s_[:2], np.s_[2:4], np.s_[4:]):
        assert sqnr_db(expected[..., part], real[..., part]) > 30
