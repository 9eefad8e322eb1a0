"""Positions and time steps: what depends on an integer input alone is a table of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fadiff.converter import Conversion, convert
from fadiff.converter.check.reference import run_reference
from fadiff.converter.check.storage import from_storage, store_inputs
from tests.converter.oracle import session, sqnr_db, weights

FREQUENCIES = (1 / 10000 ** (np.arange(0, 8, 2) / 8)).astype(np.float32)


def _model(positions: tuple[int, ...], nodes: list[onnx.NodeProto], rows: int = 1) -> onnx.ModelProto:
    """Queries [rows, 4] that are turned by what `nodes` make of positions: `s` and `c`."""
    turned = [
        helper.make_node("MatMul", ["x", "w"], ["q"]),
        helper.make_node("Mul", ["q", "c"], ["qc"]),
        helper.make_node("Mul", ["q", "s"], ["qs"]),
        helper.make_node("Add", ["qc", "qs"], ["y"]),
    ]
    graph = helper.make_graph(
        [*nodes, *turned],
        "turned",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, (rows, 16)),
            helper.make_tensor_value_info("p", TensorProto.INT64, positions),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(weights(1, 16, 4), "w"),
            numpy_helper.from_array(FREQUENCIES[None], "f"),
            numpy_helper.from_array(np.array([-1], np.int64), "last"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _rotary() -> list[onnx.NodeProto]:
    return [
        helper.make_node("Cast", ["p"], ["pf"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["pf", "last"], ["column"]),
        helper.make_node("Mul", ["column", "f"], ["angle"]),
        helper.make_node("Sin", ["angle"], ["s"]),
        helper.make_node("Cos", ["angle"], ["c"]),
    ]


def _samples(count: int, positions: tuple[int, ...], rows: int, most: int) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(count)
    return [
        {"x": weights(i, rows, 16), "p": generator.integers(0, most + 1, positions)} for i in range(count)
    ]


def _quality(model: onnx.ModelProto, conversion: Conversion, tests: list[dict[str, np.ndarray]]) -> float:
    graph, file = conversion.graph, session(model)
    (name,) = graph.outputs
    real, found = [], []
    for feeds in tests:
        real.append(file.run(None, feeds)[0])
        stored = run_reference(graph, store_inputs(graph, feeds))[name]
        found.append(from_storage(graph.tensors[name], stored, real[-1].shape))
    return sqnr_db(np.array(real), np.array(found))


@pytest.mark.parametrize("count", [1, 6])
def test_sines_of_positions_are_rows_of_a_table(count: int, tmp_path: Path) -> None:
    """The largest position seen is 500: rows for 0 to 511, the same for every place."""
    model = _model((count,), _rotary(), count)
    path = tmp_path / "turned.onnx"
    onnx.save(model, path)
    samples = _samples(24, (count,), count, 400)
    samples[0]["p"][0] = 500
    conversion = convert(path, calibration=samples)
    assert any("p (0 to 511)" in note for note in conversion.notes)
    assert {layer.op for layer in conversion.graph.layers} >= {"gemm", "gather"}
    tests = _samples(16, (count,), count, 511)
    assert _quality(model, conversion, tests) > 25
    floats, file = session(conversion.float_model), session(model)
    for feeds in tests:
        np.testing.assert_allclose(floats.run(None, feeds)[0], file.run(None, feeds)[0], atol=1e-5)


def test_there_may_be_as_many_rows_as_places(tmp_path: Path) -> None:
    """Positions 0 to 7 of a prompt of eight tokens."""
    model, path = _model((8,), _rotary(), 8), tmp_path / "turned.onnx"
    onnx.save(model, path)
    conversion = convert(path, calibration=_samples(24, (8,), 8, 7))
    assert any("p (0 to 7)" in note for note in conversion.notes)
    floats, file = session(conversion.float_model), session(model)
    for feeds in _samples(4, (8,), 8, 7):
        np.testing.assert_allclose(floats.run(None, feeds)[0], file.run(None, feeds)[0], atol=1e-5)


@pytest.mark.parametrize("what", ["each place another", "neighbours", "a mask"])
def test_what_is_no_row_of_a_table_stays(what: str, tmp_path: Path) -> None:
    nodes = {
        "each place another": [
            helper.make_node("Cast", ["p"], ["whole"], to=TensorProto.FLOAT),
            helper.make_node("CumSum", ["whole", "axis"], ["pf"]),
        ],
        "neighbours": [
            helper.make_node("Cast", ["p"], ["whole"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["whole"], ["sum"], keepdims=1),
            helper.make_node("Add", ["whole", "sum"], ["pf"]),
        ],
        "a mask": [helper.make_node("Cast", ["p"], ["pf"], to=TensorProto.FLOAT)],
    }[what]
    model = _model((6,), [*nodes, *_rotary()[1:]], 6)
    model.graph.initializer.append(numpy_helper.from_array(np.array(0), "axis"))
    path = tmp_path / "turned.onnx"
    onnx.save(model, path)
    conversion = convert(path, calibration=_samples(9, (6,), 6, 1 if what == "a mask" else 40))
    assert not any("tables of" in note for note in conversion.notes)


def test_positions_without_calibration_data_are_named(tmp_path: Path) -> None:
    """Random ones are 0 or 1, of which nobody makes a table."""
    path = tmp_path / "turned.onnx"
    onnx.save(_model((1,), _rotary()), path)
    says = "sines or cosines of p"
    assert any(says in warning for warning in convert(path).warnings)
    known = convert(path, calibration=_samples(24, (1,), 1, 400))
    assert not any(says in warning for warning in known.warnings)


@pytest.mark.parametrize("shape", [(), (1, 4)], ids=["scalar", "row"])
@pytest.mark.parametrize("element", [np.uint8, np.uint16, np.int32], ids=lambda element: element.__name__)
def test_integers_of_any_type(element: type[np.generic], shape: tuple[int, ...], tmp_path: Path) -> None:
    """A Gather takes no indices of 8 or 16 bits (ONNX Runtime refused the model); bytes have 256 rows."""
    nodes = [
        helper.make_node("Cast", ["p"], ["pf"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["pf", "hundredth"], ["angle"]),
        helper.make_node("Sin", ["angle"], ["s"]),
        helper.make_node("Add", ["x", "s"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "typed",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4)),
            helper.make_tensor_value_info("p", helper.np_dtype_to_tensor_dtype(np.dtype(element)), shape),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.float32(0.01), "hundredth")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    generator = np.random.default_rng(0)
    samples = [
        {"x": weights(i, 1, 4), "p": generator.integers(0, 101, shape).astype(element)} for i in range(9)
    ]
    conversion = convert(tmp_path / "m.onnx", calibration=samples)
    most = 255 if element is np.uint8 else 127
    assert any(f"p (0 to {most})" in note for note in conversion.notes)
    assert _quality(model, conversion, samples) > 30
