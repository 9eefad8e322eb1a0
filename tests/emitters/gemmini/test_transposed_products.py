"""Matrix products from ONNX with either operand stored transposed: the emitted C against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fadiff.converter.pipeline import convert
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer.search import optimize
from tests.emitters.gemmini.executed import Case, check

M, K, N, HEADS = 9, 21, 18, 3


def model(path: Path, transposes: tuple[bool, bool], kind: str) -> Path:
    """y = op(x) op(z): one product of a constant or computed z, or one per head."""
    left, right = ((K, M) if transposes[0] else (M, K)), ((N, K) if transposes[1] else (K, N))
    heads = (HEADS,) if kind == "batched" else ()
    values = [("x", (*heads, *left)), ("z", (*heads, *right))]
    constants = []
    if kind == "batched":
        names = []
        nodes = []
        for (name, _), transposed in zip(values, transposes, strict=True):
            names.append(f"{name}t" if transposed else name)
            if transposed:
                nodes.append(helper.make_node("Transpose", [name], [f"{name}t"], perm=[0, 2, 1]))
        nodes.append(helper.make_node("MatMul", names, ["y"]))
    else:
        transA, transB = map(int, transposes)
        nodes = [helper.make_node("Gemm", ["x", "z"], ["y"], transA=transA, transB=transB)]
    if kind == "constant":
        name, shape = values.pop()
        numbers = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        constants.append(onnx.numpy_helper.from_array(numbers, name))
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in values]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, (*heads, M, N))
    graph = helper.make_graph(nodes, "product", inputs, [output], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.parametrize("kind", ["constant", "computed", "batched"])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_either_operand_transposed(left: bool, right: bool, kind: str, tmp_path: Path) -> None:
    graph = convert(model(tmp_path / "product.onnx", (left, right), kind), calibrate=False).graph
    products = graph.tensor_core_layers
    assert [layer.dims.product for layer in products] == [M * K * N * (HEADS if kind == "batched" else 1)]
    # Only a streamed operand that is transposed in memory is copied by the core; the array does the other.
    assert len(graph.layers) - len(products) == int(left)
    check(Case(optimize(graph, load_target("gemmini-small"), method="layerwise").schedule))
