"""Slices written at computed positions: what ONNX Runtime writes there, whatever the layout around it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import convert
from tests.converter.oracle import compare, model_of, session, weights

CONSTANTS = {
    "places": np.array([3, -1], np.int64),
    "column": np.array([[3], [-1]], np.int64),
    "w": weights(1, 5, 5),
    "start": weights(2, 3, 4, 5),
    "new": weights(3, 2, 4, 5) * 9,
    "zero": np.array([0], np.int64),
    "two": np.array([1, 2, 1], np.int64),
    "full": np.array([3, 2, 5], np.int64),
}


def _rows(data: str, updates: str) -> list[onnx.NodeProto]:
    """The first axis, at positions [2, 1]."""
    return [
        helper.make_node("Unsqueeze", ["p", "one"], ["at"]),
        helper.make_node("ScatterND", [data, "at", updates], ["y"], name="put"),
    ]


CASES = {
    "of a constant": (_rows("start", "u"), {"u": (2, 4, 5)}),
    "of constant rows with another range": (_rows("x", "new"), {"x": (3, 4, 5)}),
    "behind a product": (
        [helper.make_node("MatMul", ["x", "w"], ["m"]), *_rows("m", "u")],
        {"x": (3, 4, 5), "u": (2, 4, 5)},
    ),
    "of turned data": (
        [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 2, 0]), *_rows("t", "u")],
        {"x": (5, 3, 4), "u": (2, 4, 5)},
    ),
    "of turned updates": (
        [helper.make_node("Transpose", ["u"], ["t"], perm=[2, 1, 0]), *_rows("x", "t")],
        {"x": (3, 4, 5), "u": (5, 4, 2)},
    ),
    "of a slice": (
        [helper.make_node("Slice", ["x", "zero", "three", "one"], ["s"]), *_rows("s", "u")],
        {"x": (3, 6, 5), "u": (2, 3, 5)},
    ),
    "of images": (
        [
            helper.make_node("Reshape", ["p", "two"], ["r"]),
            helper.make_node("Expand", ["r", "full"], ["at"]),
            helper.make_node("ScatterElements", ["x", "at", "u"], ["y"], name="put", axis=1),
        ],
        {"x": (3, 4, 5), "u": (3, 2, 5)},
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("positions", [(2, -2), (0, 1)])
def test_slices_at_positions(case: str, positions: tuple[int, int], tmp_path: Path) -> None:
    nodes, inputs = CASES[case]
    constants = {**CONSTANTS, "one": np.array([1], np.int64), "three": np.array([3], np.int64)}
    used = {value for node in nodes for value in node.input}
    kept = {name: array for name, array in constants.items() if name in used}
    model = model_of([*nodes, helper.make_node("Relu", ["y"], ["z"])], inputs, {"z": None}, kept)
    model.graph.input.append(helper.make_tensor_value_info("p", onnx.TensorProto.INT64, [2]))
    onnx.save(model, tmp_path / "m.onnx")
    generator = np.random.default_rng(0)
    samples = [
        {**{n: generator.standard_normal(s).astype(np.float32) for n, s in inputs.items()}, "p": np.array(p)}
        for p in ([0, 1], [2, 0], [1, 2])
    ]
    conversion = convert(tmp_path / "m.onnx", calibration=samples)
    assert [layer.op for layer in conversion.graph.layers if layer.op == "scatter"] == ["scatter"]
    given = {**samples[0], "p": np.array(positions)}
    (expected,) = session(model).run(None, given)
    (found,) = session(conversion.float_model).run(None, given)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert compare(conversion, generator).sqnr_db > 25
