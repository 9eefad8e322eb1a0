"""Integers and booleans between layers: exact, whatever they come from and go to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fadiff.converter import UnsupportedError, convert
from fadiff.converter.check.reference import run_reference
from fadiff.converter.check.storage import from_storage, store_inputs
from tests.converter.oracle import session

INT32, INT64, UINT8, FLOAT, BOOL = (
    getattr(TensorProto, name) for name in ("INT32", "INT64", "UINT8", "FLOAT", "BOOL")
)


def _model(nodes, inputs, output, constants=None, opset=20):  # type: ignore[no-untyped-def]
    """`inputs` and `output`: name, element type, shape."""
    graph = helper.make_graph(
        [helper.make_node(op, i, [o], name=o, **more) for op, i, o, more in nodes],
        "test",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*output)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _run(model: onnx.ModelProto, folder: Path, feeds: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """What the lowered graph computes, and ONNX Runtime for the file itself."""
    path = folder / "m.onnx"
    onnx.save(model, path)
    conversion = convert(path, calibration=[feeds])
    graph = conversion.graph
    (wanted,) = session(model).run(None, feeds)
    (output,) = graph.outputs
    found = run_reference(graph, store_inputs(graph, feeds))[output]
    return from_storage(graph.tensors[output], found, wanted.shape), wanted


SHAPE = (3, 4)
A = np.random.default_rng(0).integers(-50, 50, SHAPE)
TWO_INPUTS = [("a", INT64, SHAPE), ("b", INT64, (4,))]
B = np.random.default_rng(1).integers(-50, 50, (4,))
OPERATORS = {
    "sum": ([("Add", ["a", "b"], "y", {})], INT64, {}),
    "difference": ([("Sub", ["a", "b"], "y", {})], INT64, {}),
    "product": ([("Mul", ["a", "b"], "y", {})], INT64, {}),
    "of three": ([("Max", ["a", "b", "c"], "y", {})], INT64, {"c": np.int64(7)}),
    "quotient": ([("Div", ["a", "c"], "y", {})], INT64, {"c": np.int64(-7)}),
    "modulo": ([("Mod", ["a", "c"], "y", {})], INT64, {"c": np.int64(-7)}),
    "remainder": ([("Mod", ["a", "c"], "y", {"fmod": 1})], INT64, {"c": np.int64(7)}),
    "equality": ([("Equal", ["a", "b"], "y", {})], BOOL, {}),
    "order": ([("LessOrEqual", ["a", "b"], "y", {})], BOOL, {}),
    "choice": ([("Less", ["a", "b"], "c", {}), ("Where", ["c", "a", "b"], "y", {})], INT64, {}),
    "opposite": ([("Neg", ["a"], "y", {})], INT64, {}),
    "magnitude": ([("Abs", ["a"], "y", {})], INT64, {}),
    "limits": (
        [("Clip", ["a", "l", "h"], "y", {})],
        INT64,
        {"l": np.int64(-9), "h": np.int64(20)},
    ),
    "not": ([("Less", ["a", "b"], "c", {}), ("Not", ["c"], "y", {})], BOOL, {}),
    "to float": ([("Cast", ["a"], "y", {"to": FLOAT})], FLOAT, {}),
    "to boolean": ([("Cast", ["a"], "y", {"to": BOOL})], BOOL, {}),
    "boolean to integer": (
        [("Greater", ["a", "b"], "c", {}), ("Cast", ["c"], "y", {"to": INT32})],
        INT32,
        {},
    ),
    "boolean to float": ([("Greater", ["a", "b"], "c", {}), ("Cast", ["c"], "y", {"to": FLOAT})], FLOAT, {}),
    "two booleans": (
        [("Greater", ["a", "b"], "c", {}), ("Less", ["a", "z"], "d", {}), ("Xor", ["c", "d"], "y", {})],
        BOOL,
        {"z": np.int64(0)},
    ),
}


@pytest.mark.parametrize("case", OPERATORS)
def test_operators_of_integers(case: str, tmp_path: Path) -> None:
    nodes, kind, constants = OPERATORS[case]
    used = {name for _, inputs, _, _ in nodes for name in inputs}
    inputs = [value for value in TWO_INPUTS if value[0] in used]
    feeds = {n: v for n, v in (("a", A), ("b", B)) if n in used}
    found, wanted = _run(_model(nodes, inputs, ("y", kind, SHAPE), constants), tmp_path, feeds)
    tolerance = np.abs(wanted).max() / 250 if kind == FLOAT else 0  # half a step of int8
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), atol=tolerance, rtol=0)


def test_a_float_truncated_to_an_integer_is_not_clipped_to_int8(tmp_path: Path) -> None:
    x = np.linspace(-1000, 1000, 12, dtype=np.float32).reshape(SHAPE)
    model = _model([("Cast", ["x"], "y", {"to": INT32})], [("x", FLOAT, SHAPE)], ("y", INT32, SHAPE))
    found, wanted = _run(model, tmp_path, {"x": x})
    assert np.abs(found - wanted).max() <= 1000 / 127 / 2 + 1


def test_one_hot_of_computed_indices(tmp_path: Path) -> None:
    constants = {"depth": np.int64(5), "values": np.array([-1, 3], np.float32)}
    nodes = [("OneHot", ["a", "depth", "values"], "y", {"axis": 1})]
    model = _model(nodes, [("a", INT64, SHAPE)], ("y", FLOAT, (3, 5, 4)), constants)
    found, wanted = _run(model, tmp_path, {"a": A % 9 - 6})
    np.testing.assert_allclose(found, wanted, atol=0.02)


def test_a_sum_of_bytes_may_overflow(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(
        _model(
            [("Add", ["a", "b"], "y", {})],
            [("a", UINT8, SHAPE), ("b", UINT8, SHAPE)],
            ("y", UINT8, SHAPE),
        ),
        path,
    )
    with pytest.raises(UnsupportedError, match="8 or 16 bits and may overflow"):
        convert(path)


@pytest.mark.parametrize("size", [1, 2, 7, 300])
def test_a_sum_of_integers_is_exact(size: int, tmp_path: Path) -> None:
    """As of attention masks: no float sum of int8 numbers could count to 300."""
    feeds = {"x": np.random.default_rng(1).integers(0, 2, (2, size)).astype(np.int32)}
    nodes = [("ReduceSum", ["x", "axes"], "y", {"keepdims": 0})]
    model = _model(nodes, [("x", INT32, (2, size))], ("y", INT32, (2,)), {"axes": np.array([1])})
    found, wanted = _run(model, tmp_path, feeds)
    np.testing.assert_array_equal(found, wanted)
