"""Outputs that join unlike parts: boxes in pixels and probabilities in one tensor, as detectors have them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import convert
from fadiff.converter.check.reference import run_reference
from fadiff.converter.check.storage import from_storage, store_inputs
from fadiff.converter.ir.graph import AxisScales, Part, Tensor
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
    if tail == "both":  # (its parts are none along an axis)
        assert graph.tensors[name].along is None
        return
    assert sqnr_db(expected[is_score], real[is_score]) > 25
    assert sqnr_db(expected[~is_score], real[~is_score]) > 25
    assert sqnr_db(quantised[is_score], real[is_score]) > 35
    assert [layer.op for layer in graph.layers].count("copy") == 0


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
