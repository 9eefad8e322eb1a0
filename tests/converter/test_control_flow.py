"""If, Loop and Scan whose course is known become plain nodes that compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fadiff.converter import UnsupportedError, convert
from fadiff.converter.read.flatten import flatten_control_flow
from tests.converter.oracle import session, weights

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def _value(name: str, kind: int, shape: tuple[int, ...] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(nodes, inputs, outputs, constants):  # type: ignore[no-untyped-def]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "test", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _branch(op: str, name: str) -> onnx.GraphProto:
    return helper.make_graph(
        [helper.make_node(op, ["x"], [name], name=op)], name, [], [_value(name, FLOAT, (2, 3))]
    )


def _if(condition: str) -> onnx.NodeProto:
    return helper.make_node(
        "If",
        [condition],
        ["y"],
        name="choice",
        then_branch=_branch("Relu", "a"),
        else_branch=_branch("Neg", "b"),
    )


def _choice_by_rate() -> onnx.ModelProto:
    """Relu where the integer input `rate` is 16000, else Neg."""
    nodes = [helper.make_node("Equal", ["rate", "wanted"], ["c"]), _if("c")]
    inputs = [_value("x", FLOAT, (2, 3)), _value("rate", INT, ())]
    return _model(nodes, inputs, [_value("y", FLOAT, (2, 3))], {"wanted": np.int64(16000)})


def _loop(go_on: str = "go") -> onnx.ModelProto:
    """Three times s = tanh(s + x), all states collected."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", [go_on], ["going"]),
            helper.make_node("Add", ["s", "x"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["t"]),
            helper.make_node("Identity", ["t"], ["kept"]),
            helper.make_node("Not", ["go"], ["stop"]),
        ],
        "body",
        [_value("i", INT, ()), _value("go", BOOL, ()), _value("s", FLOAT, (2, 3))],
        [_value("going", BOOL, ()), _value("t", FLOAT, (2, 3)), _value("kept", FLOAT, (2, 3))],
    )
    node = helper.make_node("Loop", ["trips", "", "start"], ["last", "all"], name="loop", body=body)
    outputs = [_value("last", FLOAT, (2, 3)), _value("all", FLOAT, (3, 2, 3))]
    return _model(
        [node],
        [_value("x", FLOAT, (2, 3))],
        outputs,
        {"trips": np.int64(3), "start": weights(1, 2, 3), "always": np.asarray(True)},
    )


def _scan() -> onnx.ModelProto:
    """Running sums of the columns of x, from the last to the first."""
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "column"], ["t"]), helper.make_node("Relu", ["t"], ["kept"])],
        "body",
        [_value("s", FLOAT, (2,)), _value("column", FLOAT, (2,))],
        [_value("t", FLOAT, (2,)), _value("kept", FLOAT, (2,))],
    )
    node = helper.make_node(
        "Scan",
        ["start", "x"],
        ["last", "all"],
        name="scan",
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_input_directions=[1],
        scan_output_axes=[1],
        scan_output_directions=[1],
    )
    outputs = [_value("last", FLOAT, (2,)), _value("all", FLOAT, (2, 3))]
    return _model([node], [_value("x", FLOAT, (2, 3))], outputs, {"start": weights(2, 2)})


@pytest.mark.parametrize("model", [_loop(), _loop("always"), _scan()], ids=["loop", "true outside", "scan"])
def test_unrolled(model: onnx.ModelProto) -> None:
    x = {"x": weights(3, 2, 3)}
    wanted = session(model).run(None, x)
    flat = flatten_control_flow(model)
    assert not {node.op_type for node in flat.graph.node} & {"Loop", "Scan"}
    for found, value in zip(session(flat).run(None, x), wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-6)


@pytest.mark.parametrize(("rate", "op"), [(16000, "Relu"), (8000, "Neg")])
def test_a_bound_input_decides_a_branch(rate: int, op: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_choice_by_rate(), path)
    conversion = convert(path, dims={"rate": rate})
    assert [node.op_type for node in conversion.float_model.graph.node] == [op]
    assert [value.name for value in conversion.float_model.graph.input] == ["x"]


@pytest.mark.parametrize(("bound", "op"), [(1, "Relu"), (0, "Neg")])
def test_a_bound_bool_decides_a_branch(bound: int, op: str, tmp_path: Path) -> None:
    inputs = [_value("x", FLOAT, (2, 3)), _value("fast", BOOL, ())]
    onnx.save(_model([_if("fast")], inputs, [_value("y", FLOAT, (2, 3))], {}), tmp_path / "m.onnx")
    conversion = convert(tmp_path / "m.onnx", dims={"fast": bound})
    assert [node.op_type for node in conversion.float_model.graph.node] == [op]


def test_an_open_branch_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_choice_by_rate(), path)
    with pytest.raises(
        UnsupportedError, match=r"choice \(ai.onnx.If\): its condition is computed.*--dim NAME=VALUE"
    ):
        convert(path)


def test_a_loop_that_may_end_early_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_loop("stop"), path)
    with pytest.raises(UnsupportedError, match="loop whose trip count is not constant"):
        convert(path)


def test_nested_branches_follow_shapes(tmp_path: Path) -> None:
    """The rank of a value decides the inner branch, which exporters write out."""
    inner = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Equal", ["rows", "two"], ["is_two"]),
        _if("is_two"),
    ]
    outer = helper.make_graph(inner, "outer", [], [_value("y", FLOAT, (2, 3))])
    node = helper.make_node(
        "If", ["yes"], ["z"], name="outer", then_branch=outer, else_branch=_branch("Abs", "other")
    )
    constants = {"yes": np.asarray(True), "zero": np.int64(0), "two": np.int64(2)}
    model = _model([node], [_value("x", FLOAT, (2, 3))], [_value("z", FLOAT, (2, 3))], constants)
    flat = flatten_control_flow(model)
    assert [n.op_type for n in flat.graph.node if n.op_type not in ("Identity", "Constant")] == ["Relu"]
