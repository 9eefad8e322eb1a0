"""Columns that are dropped are not computed, and set no range; what is joined and parted again is neither."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import UnsupportedError, convert
from fadiff.converter.decompose.picks import pick_of
from fadiff.converter.ir.program import program_of
from tests.converter.oracle import compare, ints, model_of, session, weights

HALVES = {
    "split": [helper.make_node("Split", ["h"], ["m", "rest"], axis=1)],
    "slice": [helper.make_node("Slice", ["h", "zero", "six", "one"], ["m"])],
    "gather": [helper.make_node("Gather", ["h", "even"], ["m"], axis=1)],
}


def _policy(kind: str, *, matmul: bool) -> onnx.ModelProto:
    """12 columns, of which a tanh sees 6; the others are 50 times as large."""
    product = (
        [helper.make_node("MatMul", ["r", "v"], ["s"]), helper.make_node("Add", ["s", "c"], ["g"])]
        if matmul
        else [helper.make_node("Gemm", ["r", "v", "c"], ["g"])]
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        *product,
        helper.make_node("Softplus", ["g"], ["h"]),
        *HALVES[kind],
        helper.make_node("Tanh", ["m"], ["y"]),
    ]
    size = np.where(np.isin(np.arange(12), range(0, 12, 2) if kind == "gather" else range(6)), 1.0, 50.0)
    constants = {
        "w": 0.2 * weights(1, 16, 32),
        "v": (0.1 * weights(2, 32, 12) * size).astype(np.float32),
        "c": weights(3, 12),
        "zero": ints(0),
        "one": ints(1),
        "six": ints(6),
        "even": ints(0, 2, 4, 6, 8, 10),
    }
    return model_of(nodes, {"x": (1, 16)}, {"y": None}, constants)


@pytest.mark.parametrize("matmul", [False, True])
@pytest.mark.parametrize("kind", HALVES)
def test_dead_columns_are_cut_out_of_the_weights(kind: str, matmul: bool, tmp_path: Path) -> None:
    model = _policy(kind, matmul=matmul)
    onnx.save(model, tmp_path / "m.onnx")
    conversion = convert(tmp_path / "m.onnx", calibration=[{"x": weights(i, 1, 16)} for i in range(12)])
    graph = conversion.graph
    assert [layer.dims.K for layer in graph.tensor_core_layers] == [32, 6]
    assert [layer.op for layer in graph.layers] == ["gemm", "gemm", "lookup"]
    feeds = {"x": weights(50, 1, 16)}
    (expected,) = session(model).run(None, feeds)
    (found,) = session(conversion.float_model).run(None, feeds)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert compare(conversion, np.random.default_rng(0)).sqnr_db > 28


def test_what_somebody_reads_whole_stays(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Split", ["h"], ["m", "rest"], axis=1),
        helper.make_node("Tanh", ["m"], ["y"]),
        helper.make_node("Tanh", ["h"], ["z"]),
    ]
    model = model_of(nodes, {"x": (1, 16)}, {"y": None, "z": None}, {"w": weights(1, 16, 12)})
    onnx.save(model, tmp_path / "m.onnx")
    assert convert(tmp_path / "m.onnx").graph.tensor_core_layers[0].dims.K == 12


def test_parts_that_are_joined_and_parted_again_pass_by(tmp_path: Path) -> None:
    """As a detector joins logits of boxes and classes: neither sets the other's scale."""
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]),
        helper.make_node("MatMul", ["x", "w"], ["b"]),
        helper.make_node("Concat", ["a", "b"], ["j"], axis=1),
        helper.make_node("Split", ["j", "sizes"], ["c", "d"], axis=1),
        helper.make_node("Tanh", ["c"], ["y"]),
        helper.make_node("Sigmoid", ["d"], ["z"]),
    ]
    constants = {"v": 100 * weights(1, 16, 4), "w": 0.1 * weights(2, 16, 8), "sizes": ints(4, 8)}
    model = model_of(nodes, {"x": (3, 16)}, {"y": None, "z": None}, constants)
    onnx.save(model, tmp_path / "m.onnx")
    conversion = convert(tmp_path / "m.onnx")
    assert [layer.op for layer in conversion.graph.layers] == ["gemm", "lookup", "gemm", "lookup"]
    assert compare(conversion, np.random.default_rng(0)).sqnr_db > 30


def test_runs_of_a_run_are_those_of_what_it_is_taken_from(tmp_path: Path) -> None:
    """What exporters write for y[..., 2:] and slices of it; the first part is read by nobody."""
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]),
        helper.make_node("MatMul", ["x", "w"], ["b"]),
        helper.make_node("Concat", ["a", "b"], ["j"], axis=1),
        helper.make_node("Slice", ["j", "five", "twelve", "one"], ["r"]),
        helper.make_node("Slice", ["r", "zero", "two", "one"], ["c"]),
        helper.make_node("Slice", ["r", "two", "twelve", "one"], ["d"]),
        helper.make_node("Tanh", ["c"], ["y"]),
        helper.make_node("Sigmoid", ["d"], ["z"]),
    ]
    constants = {"v": 100 * weights(1, 16, 4), "w": 0.1 * weights(2, 16, 8)}
    constants |= {"zero": ints(0), "one": ints(1), "two": ints(2), "five": ints(5), "twelve": ints(12)}
    model = model_of(nodes, {"x": (3, 16)}, {"y": None, "z": None}, constants)
    onnx.save(model, tmp_path / "m.onnx")
    conversion = convert(tmp_path / "m.onnx")
    assert [(layer.op, layer.dims.K) for layer in conversion.graph.tensor_core_layers] == [("gemm", 7)]
    assert compare(conversion, np.random.default_rng(0)).sqnr_db > 30
    feeds = {"x": weights(5, 3, 16)}
    for found, expected in zip(
        session(conversion.float_model).run(None, feeds), session(model).run(None, feeds), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_rows_of_a_joint_in_another_order_are_no_part(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"]),
        helper.make_node("Concat", ["x", "t"], ["j"], axis=1),
        helper.make_node("Gather", ["j", "order"], ["y"], axis=1),
    ]
    model = model_of(nodes, {"x": (2, 4)}, {"y": None}, {"order": ints(0, 2, 1, 3)})
    onnx.save(model, tmp_path / "m.onnx")
    conversion = convert(tmp_path / "m.onnx")
    feeds = {"x": weights(1, 2, 4)}
    (expected,) = session(model).run(None, feeds)
    (found,) = session(conversion.float_model).run(None, feeds)
    np.testing.assert_array_equal(found, expected)


def test_values_of_unknown_shape_are_left_to_the_refusal(tmp_path: Path) -> None:
    """What an operator that nobody knows the result of gives may be sliced."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["n"]),
        helper.make_node("Slice", ["n", "zero", "one"], ["y"]),
    ]
    model = model_of(nodes, {"x": (2, 4)}, {}, {"zero": ints(0), "one": ints(1)})
    model.graph.output.append(helper.make_tensor_value_info("y", onnx.TensorProto.INT64, None))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError, match="NonZero"):
        convert(tmp_path / "m.onnx")


@pytest.mark.parametrize("computed", ["start", "end", "axis", "step", None])
def test_only_constant_bounds_say_what_a_slice_takes(computed: str | None) -> None:
    bounds = {"start": 1, "end": 6, "axis": 1, "step": 2}
    nodes = [helper.make_node("Slice", ["x", *bounds], ["y"])]
    constants = {name: ints(number) for name, number in bounds.items() if name != computed}
    model = model_of(nodes, {"x": (2, 8)}, {"y": (2, 3)}, constants)
    if computed is not None:
        model.graph.input.append(helper.make_tensor_value_info(computed, onnx.TensorProto.INT64, [1]))
    program = program_of(model)
    pick = pick_of(program, program.nodes[0], "x")
    assert pick is None if computed else pick is not None and pick.indices == (("y", (1, 3, 5)),)
