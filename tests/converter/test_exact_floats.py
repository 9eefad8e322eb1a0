"""Operators on a float32 array: nothing is rounded to int8, so it is what ONNX Runtime computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fadiff.converter import convert
from fadiff.converter.check.reference import run_reference
from fadiff.converter.check.storage import from_storage, store_inputs
from tests.converter.oracle import ints, model_of, session, weights
from tests.converter.test_operators import CASES, ROWS, _one
from tests.converter.test_two_operands import TURNED, TWO_OPERANDS

FUNCTIONS = {
    "Celu": {"alpha": 0.5},
    "Elu": {"alpha": 0.5},
    "Gelu": {},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
    "HardSwish": {},
    "LeakyRelu": {"alpha": 0.1},
    "Mish": {},
    "Selu": {},
    "Sigmoid": {},
    "Softplus": {},
    "Softsign": {},
    "ThresholdedRelu": {"alpha": 0.4},
}


def _function(op: str, **attributes: object) -> onnx.ModelProto:
    return model_of(
        [helper.make_node(op, ["x"], ["y"], name="node", **attributes)], {"x": ROWS}, {"y": None}, opset=20
    )


def _two(a: tuple[int, ...], b: tuple[int, ...], perm: tuple[int, ...] | None) -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["a", "b" if perm is None else "t"], ["y"], name="product")]
    if perm is not None:
        nodes.insert(0, helper.make_node("Transpose", ["b"], ["t"], perm=perm))
    return model_of(nodes, {"a": a, "b": b}, {"y": None})


def _numbers(op: str) -> onnx.ModelProto:
    """Of one value and two numbers."""
    constants = {"low": np.array(-0.5, np.float32), "high": np.array(0.75, np.float32)}
    return model_of([helper.make_node(op, ["x", "low", "high"], ["y"])], {"x": ROWS}, {"y": None}, constants)


def _chain(*functions: tuple[str, dict[str, object]]) -> onnx.ModelProto:
    names = ["x", *(f"v{i}" for i in range(len(functions) - 1)), "y"]
    nodes = [
        helper.make_node(op, [before], [after], **attributes)
        for (op, attributes), before, after in zip(functions, names[:-1], names[1:], strict=True)
    ]
    model = model_of(nodes, {"x": ROWS}, {"y": None}, opset=20)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def _turned(node: onnx.NodeProto) -> onnx.ModelProto:
    """An axis of which neighbours do not lie at one distance."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["a"], perm=[1, 0, 2]),
        helper.make_node("Reshape", ["a", "shape"], ["t"]),
        node,
    ]
    return model_of(nodes, {"x": (2, 3, 4)}, {"y": None}, {"shape": ints(6, 4)}, opset=11)


MODELS = {
    **CASES,
    **{f"matmul {name}": _two(*case) for name, case in TWO_OPERANDS.items()},
    **{op: _function(op, **attributes) for op, attributes in FUNCTIONS.items()},
    **{f"turned {name}": model for name, model in TURNED.items()},
    **{op: _numbers(op) for op in ("Max", "Min", "Sum", "Clip")},
    "towards zero": _chain(("Cast", {"to": TensorProto.INT32}), ("Cast", {"to": TensorProto.FLOAT})),
    "is not zero": _chain(
        ("Relu", {}), ("Cast", {"to": TensorProto.BOOL}), ("Cast", {"to": TensorProto.FLOAT})
    ),
    "quick gelu": _chain(("QuickGelu", {"alpha": 1.5, "domain": "com.microsoft"})),
    **{
        f"layer norm from axis {axis}": _one(
            "LayerNormalization", (2, 3, 4), constants=given, axis=axis, epsilon=0.5
        )
        for axis, given in (
            (-1, {"s": weights(1, 4)}),
            (1, {"s": weights(1, 3, 4), "b": weights(2, 3, 4)}),
            (-2, {"s": weights(1, 3, 4), "b": weights(2, 3, 4)}),
        )
    },
    "instance norm 1-d": _one(
        "InstanceNormalization", (2, 3, 5), constants={"s": weights(1, 3), "b": weights(2, 3)}, epsilon=0.5
    ),
    **{
        f"{op} {attributes}": _chain(("Relu", {}), (op, attributes), ("Cast", {"to": TensorProto.FLOAT}))
        for op in ("ArgMax", "ArgMin")
        for attributes in (
            {"axis": 0},
            {"axis": -1, "keepdims": 0},
            {"axis": 1, "select_last_index": 1},
        )
    },
    **{
        f"{op} of turned axes {axes}": _turned(helper.make_node(op, ["t"], ["y"], axes=axes, keepdims=keeps))
        for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")
        for axes, keeps in (([0], 0), ([1], 1), ([0, 1], 1))
    },
    "global average pool 1-d": _one("GlobalAveragePool", (2, 3, 5)),
    **{
        f"mean of a convolution's pixels, kept {keeps}": model_of(
            [
                helper.make_node("Conv", ["x", "w"], ["c"]),
                helper.make_node("ReduceMean", ["c"], ["y"], axes=[2, 3], keepdims=keeps),
            ],
            {"x": (2, 3, 4, 5)},
            {"y": None},
            {"w": weights(1, 6, 3, 2, 1)},
        )
        for keeps in (0, 1)
    },
    "mean of a convolution's rows": model_of(
        [
            helper.make_node("Conv", ["x", "w"], ["c"]),
            helper.make_node("ReduceMean", ["c"], ["y"], axes=[2], keepdims=0),
        ],
        {"x": (2, 3, 4, 5)},
        {"y": None},
        {"w": weights(1, 6, 3, 2, 1)},
    ),
    "gelu by tanh": _function("Gelu", approximate="tanh"),
}


@pytest.mark.parametrize("case", MODELS)
def test_one_operator(case: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(MODELS[case], path)
    runtime = session(MODELS[case])
    feeds = {given.name: 2 * weights(i, *given.shape) for i, given in enumerate(runtime.get_inputs())}
    graph = convert(path, element="float32").graph
    found = run_reference(graph, store_inputs(graph, feeds))
    for name, wanted in zip(graph.outputs, runtime.run(None, feeds), strict=True):
        ours = from_storage(graph.tensors[name], found[name], wanted.shape)
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5)
