"""Whole networks to time on RTL: samples, mostly at test size, and one step of a decoder with a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.exports import exported

DECODER_STEP = "decoder-step"
LARGER = {"resnet18-64": ("resnet18", 64)}
"""Samples on images of more pixels than in benchmarks.exports: (sample, pixels)."""
NETWORKS = ("resnet18", *LARGER, "mobilenetv2", "bert-block", DECODER_STEP)
SECONDS = 10.0
"""Search time of each: schedules depend on it, and on the machine."""

WIDTH, HEADS, CACHED = 512, 8, 63


def network_file(name: str, folder: Path) -> Path:
    """FOLDER's ONNX file of one of NETWORKS, made if it is not there."""
    if name != DECODER_STEP:
        sample, pixels = LARGER.get(name, (name, None))
        return exported(sample, "torchscript", folder, pixels)
    path = folder / f"{name}.onnx"
    onnx.save(decoder_step(), path)
    return path


def decoder_step() -> onnx.ModelProto:
    """One token through a pre-norm decoder block of 512 channels, 8 heads, FFN 2048; 63 positions cached.

    Inputs: the token, cached keys and values; outputs: the token, its own keys and values.
    """
    numbers = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def constant(values: np.ndarray[Any, Any]) -> str:
        constants.append(numpy_helper.from_array(values, f"w{len(constants)}"))
        return constants[-1].name

    def node(op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}{len(nodes)}"
        nodes.append(helper.make_node(op, list(inputs), [name], name, **attributes))
        return name

    def random(*shape: int, spread: float) -> str:
        return constant((spread * numbers.standard_normal(shape)).astype(np.float32))

    def norm(x: str) -> str:
        return node("LayerNormalization", x, constant(np.ones(WIDTH, np.float32)), random(WIDTH, spread=0.1))

    def product(x: str, depth: int, columns: int) -> str:
        return node("Gemm", x, random(depth, columns, spread=depth**-0.5), random(columns, spread=0.1))

    def heads(x: str) -> str:
        split = node("Reshape", x, constant(np.array([1, HEADS, WIDTH // HEADS])))
        return node("Transpose", split, perm=[1, 0, 2])

    normed = norm("x")
    query, key, value = (heads(product(normed, WIDTH, WIDTH)) for _ in range(3))
    keys = node("Concat", "past_k", key, axis=1)
    values = node("Concat", "past_v", value, axis=1)
    scale = constant(np.array((WIDTH // HEADS) ** -0.5, np.float32))
    scores = node("Mul", node("MatMul", query, node("Transpose", keys, perm=[0, 2, 1])), scale)
    mixed = node("Transpose", node("MatMul", node("Softmax", scores, axis=-1), values), perm=[1, 0, 2])
    attended = product(node("Reshape", mixed, constant(np.array([1, WIDTH]))), WIDTH, WIDTH)
    x = node("Add", "x", attended)
    inner = node("Gelu", product(norm(x), WIDTH, 4 * WIDTH))
    y = node("Add", x, product(inner, 4 * WIDTH, WIDTH))

    def info(name: str, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    cache, new = (HEADS, CACHED, WIDTH // HEADS), (HEADS, 1, WIDTH // HEADS)
    graph = helper.make_graph(
        nodes,
        DECODER_STEP,
        [info("x", 1, WIDTH), info("past_k", *cache), info("past_v", *cache)],
        [info(y, 1, WIDTH), info(key, *new), info(value, *new)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
