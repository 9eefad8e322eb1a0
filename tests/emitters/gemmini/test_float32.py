"""A float32 Gemmini: tensor-core layers, bias, ReLU, spills, adds within tolerance of ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from fadiff.converter.ir.builder import GraphBuilder, image_view, weight_view
from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.converter.ir.host import Add
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.schedule.schedule import Schedule, singleton_groups
from fadiff.costmodel.target.target import Target
from tests.emitters.gemmini.executed import measured, predicted, run_firmware

TARGET = Target(
    name="float",
    side=4,
    scratchpad_bytes=65536,
    accumulator_bytes=8192,
    element_type="float32",
    element_bytes=4,
)
SHAPE = (1, 6, 6, 10)


def network(numbers: np.random.Generator) -> tuple[Graph, onnx.ModelProto]:
    """relu(conv 3x3) + x, as a Graph (N H W C) and as ONNX (N C H W)."""
    dims = Dims(K=10, C=10, P=6, Q=6, R=3, S=3)
    weights = numbers.normal(size=(1, 3, 3, 10, 10)).astype(np.float32)
    bias = numbers.normal(size=(1, 10)).astype(np.float32)
    b = GraphBuilder("float")
    x = b.input("x", SHAPE, dtype="float32")
    w = b.tensor("w", weights.shape, "float32", None, weights)
    c = b.tensor("c", bias.shape, "float32", None, bias)
    y = b.tensor("y", SHAPE, "float32")
    z = b.tensor("z", SHAPE, "float32")
    b.tensor_core(
        TensorCoreLayer(
            "conv",
            "conv",
            dims,
            image_view(x, SHAPE),
            weight_view(w, dims),
            image_view(y, SHAPE),
            (6, 6),
            bias=c,
            pads=(1, 1, 1, 1),
            activation="relu",
        )
    )
    b.host("add", Add(), (y, x), (z,))
    nodes = [
        helper.make_node("Conv", ["x", "w", "c"], ["u"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["u"], ["y"]),
        helper.make_node("Add", ["y", "x"], ["z"]),
    ]
    shape = [1, 10, 6, 6]
    graph = helper.make_graph(
        nodes,
        "float",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("y", "z")],
        [
            numpy_helper.from_array(np.ascontiguousarray(weights[0].transpose(3, 2, 0, 1)), "w"),
            numpy_helper.from_array(bias[0], "c"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return b.build((z,)), model


def test_within_tolerance_and_bytes_exact() -> None:
    numbers = np.random.default_rng(3)
    graph, model = network(numbers)
    tile = Dims(K=10, C=4, P=3, Q=6, R=3, S=3)
    mapping = Mapping(
        tile,
        tile.replace({"K": 8}),
        Dims(K=4, C=4, Q=6),
        rows=Dims(C=4),
        cols=Dims(K=4),
        order_l3=("C", "G", "N", "K", "P", "Q", "R", "S"),
    )
    schedule = Schedule(graph, TARGET, {"conv": mapping}, singleton_groups(graph))
    x = numbers.normal(size=SHAPE).astype(np.float32)
    result = run_firmware(schedule, {"x": x})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for name, expected in zip(
        ("y", "z"), session.run(["y", "z"], {"x": x.transpose(0, 3, 1, 2)}), strict=True
    ):
        expected = expected.transpose(0, 2, 3, 1)
        assert np.abs(result.tensors[name] - expected).max() <= 1e-5 * np.abs(expected).max()
    assert measured(result) == predicted(schedule)
