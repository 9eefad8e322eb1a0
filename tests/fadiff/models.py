"""Small ONNX files for the command-line tests, built node by node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def small_network(path: Path, batch: int | str = 1) -> Path:
    """conv-relu, conv, residual add, relu, global average pool, flatten, gemm on an 8 x 12 x 12 image."""
    rng = np.random.default_rng(5)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        scale = np.sqrt(2.0 / np.prod(shape[1:]))
        return numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(np.float32), name)

    nodes = [
        helper.make_node(
            "Conv", ["image", "w1", "b1"], ["c1"], "first", kernel_shape=[3, 3], pads=[1, 1, 1, 1]
        ),
        helper.make_node("Relu", ["c1"], ["r1"], "first_relu"),
        helper.make_node(
            "Conv", ["r1", "w2", "b2"], ["c2"], "second", kernel_shape=[3, 3], pads=[1, 1, 1, 1]
        ),
        helper.make_node("Add", ["c2", "r1"], ["sum"], "residual"),
        helper.make_node("Relu", ["sum"], ["r2"], "residual_relu"),
        helper.make_node("GlobalAveragePool", ["r2"], ["pooled"], "pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "w3", "b3"], ["scores"], "classifier", transB=1),
    ]
    initializers = [
        weight("w1", 24, 8, 3, 3),
        weight("b1", 24),
        weight("w2", 24, 24, 3, 3),
        weight("b2", 24),
        weight("w3", 10, 24),
        weight("b3", 10),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 8, 12, 12])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, 10])],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def design_space(folder: Path, text: str) -> Path:
    """A file that describes what `sweep` and `codesign` vary."""
    path = folder / "space.yaml"
    path.write_text(text)
    return path


def unlike_channels(path: Path) -> Path:
    """Channels that differ 1000-fold in size, a function that keeps them from being scaled alike, and a
    convolution that needs them all: one scale cannot hold them.  Calibration data lies beside it."""
    rng = np.random.default_rng(0)
    sizes = np.logspace(-3, 0, 16)

    def weight(name: str, data: np.ndarray) -> onnx.TensorProto:
        return numpy_helper.from_array(data.astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w2"], ["b"], "wide", pads=[1, 1, 1, 1]),
        helper.make_node("HardSwish", ["b"], ["h"], "swish"),
        helper.make_node("Conv", ["h", "w3"], ["y"], "reader"),
    ]
    graph = helper.make_graph(
        nodes,
        "unlike",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 8, 8])],
        [
            weight("w1", rng.standard_normal((8, 4, 3, 3)) / 6),
            weight("w2", rng.standard_normal((16, 8, 3, 3)) / 8 * sizes[:, None, None, None]),
            weight("w3", rng.standard_normal((8, 16, 1, 1)) / 4 / sizes[None, :, None, None]),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    np.savez(path.with_suffix(".calibration.npz"), x=rng.standard_normal((12, 1, 4, 8, 8)).astype(np.float32))
    return path


def pooled_and_joined(path: Path) -> Path:
    """Two convolutions, one of them pooled and enlarged again, side by side before a third."""
    rng = np.random.default_rng(1)
    shapes = {"w1": (6, 4, 3, 3), "w2": (5, 4, 1, 1), "w3": (3, 11, 1, 1)}
    weights = {
        name: numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), name)
        for name, s in shapes.items()
    }
    moments = ("gain", "offset", "mean", "variance")
    statistics = [
        numpy_helper.from_array(rng.uniform(0.5, 2, 11).astype(np.float32), name) for name in moments
    ]
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "one", pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", ["a"], ["p"], "pool", **window),
        helper.make_node("Resize", ["p", "", "factors"], ["r"], "enlarge", mode="nearest"),
        helper.make_node("Conv", ["x", "w2"], ["b"], "two"),
        helper.make_node("Concat", ["r", "b"], ["j"], "join", axis=1),
        helper.make_node("BatchNormalization", ["j", *moments], ["n"], "norm"),
        helper.make_node("Conv", ["n", "w3"], ["y"], "three"),
    ]
    graph = helper.make_graph(
        nodes,
        "joined",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 8, 8])],
        [
            *weights.values(),
            *statistics,
            numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "factors"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def with_unsupported_nodes(path: Path) -> Path:
    """Two nodes that no layer can stand for, behind a convolution."""
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], "conv", kernel_shape=[1, 1]),
        helper.make_node("Det", ["c"], ["d"], "determinant"),
        helper.make_node("MakeCoffee", ["d"], ["e"], "coffee", domain="org.example"),
    ]
    graph = helper.make_graph(
        nodes,
        "odd",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 4, 6, 6])],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.ones((4, 4, 1, 1), np.float32), "w")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("org.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def with_external_data(path: Path) -> Path:
    """The small network with its weights in `<name>.data`; returns the .onnx file."""
    model = onnx.load(small_network(path))
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)
    return path


def scalars_and_nine_axes(path: Path) -> Path:
    """An input of nine axes, an input and an output without any."""
    wide = [1, 2, 1, 2, 1, 2, 4, 2, 2]
    weights = np.random.default_rng(7).standard_normal((8, 8, 1, 1)).astype(np.float32)
    shape = np.array([1, 8, 4, 4])
    nodes = [
        helper.make_node("Reshape", ["wide", "image_shape"], ["image"], "reshape"),
        helper.make_node("Conv", ["image", "w"], ["c"], "conv"),
        helper.make_node("Mul", ["c", "factor"], ["scaled"], "scale"),
        helper.make_node("ReduceMean", ["scaled"], ["mean"], "mean", keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "scalars",
        [
            helper.make_tensor_value_info("wide", TensorProto.FLOAT, wide),
            helper.make_tensor_value_info("factor", TensorProto.FLOAT, []),
        ],
        [helper.make_tensor_value_info("mean", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(shape, "image_shape")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path
