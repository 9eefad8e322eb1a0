"""Whole networks to time on RTL: samples, mostly at test size, and blocks of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.exports import exported

DECODER_STEP = "decoder-step"
BLOCKS = {"pre-norm-block": True, "post-norm-block": False}
"""Small encoder blocks, and whether what is normalised are the inputs of products."""
LARGER = {"resnet18-64": ("resnet18", 64)}
"""Samples on images of more pixels than in benchmarks.exports: (sample, pixels)."""
NETWORKS = (
    "resnet18",
    *LARGER,
    "mobilenetv2",
    "mobilenetv3",
    "unet",
    "bert-block",
    *BLOCKS,
    DECODER_STEP,
)
SECONDS = 10.0
"""Search time of each: schedules depend on it, and on the machine."""

WIDTH, HEADS, CACHED = 512, 8, 63
TOKENS, SMALL_WIDTH, SMALL_HEADS = 16, 128, 4


def network_file(name: str, folder: Path) -> Path:
    """FOLDER's ONNX file of one of NETWORKS, made if it is not there."""
    if name != DECODER_STEP and name not in BLOCKS:
        sample, pixels = LARGER.get(name, (name, None))
        return exported(sample, "torchscript", folder, pixels)
    path = folder / f"{name}.onnx"
    onnx.save(encoder_block(name) if name in BLOCKS else decoder_step(), path)
    return path


class _Block:
    """Grows a block of a transformer node by node; weights follow from the order."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.numbers = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, values: np.ndarray[Any, Any]) -> str:
        self.constants.append(numpy_helper.from_array(values, f"w{len(self.constants)}"))
        return self.constants[-1].name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name, **attributes))
        return name

    def random(self, *shape: int, spread: float) -> str:
        return self.constant((spread * self.numbers.standard_normal(shape)).astype(np.float32))

    def norm(self, x: str) -> str:
        ones = self.constant(np.ones(self.width, np.float32))
        return self.node("LayerNormalization", x, ones, self.random(self.width, spread=0.1))

    def product(self, x: str, depth: int, columns: int) -> str:
        weights = self.random(depth, columns, spread=depth**-0.5)
        return self.node("Gemm", x, weights, self.random(columns, spread=0.1))

    def heads(self, x: str, tokens: int, heads: int) -> str:
        split = self.node("Reshape", x, self.constant(np.array([tokens, heads, self.width // heads])))
        return self.node("Transpose", split, perm=[1, 0, 2])

    def attention(self, query: str, keys: str, values: str, tokens: int, heads: int) -> str:
        """With the projection of its output."""
        scale = self.constant(np.array((self.width // heads) ** -0.5, np.float32))
        scores = self.node("MatMul", query, self.node("Transpose", keys, perm=[0, 2, 1]))
        shares = self.node("Softmax", self.node("Mul", scores, scale), axis=-1)
        mixed = self.node("Transpose", self.node("MatMul", shares, values), perm=[1, 0, 2])
        joined = self.node("Reshape", mixed, self.constant(np.array([tokens, self.width])))
        return self.product(joined, self.width, self.width)

    def feed_forward(self, x: str) -> str:
        inner = self.node("Gelu", self.product(x, self.width, 4 * self.width))
        return self.product(inner, 4 * self.width, self.width)

    def model(
        self, name: str, inputs: dict[str, tuple[int, ...]], outputs: dict[str, tuple[int, ...]]
    ) -> onnx.ModelProto:
        first, last = (
            [
                helper.make_tensor_value_info(tensor, TensorProto.FLOAT, shape)
                for tensor, shape in ends.items()
            ]
            for ends in (inputs, outputs)
        )
        graph = helper.make_graph(self.nodes, name, first, last, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def decoder_step() -> onnx.ModelProto:
    """One token through a pre-norm decoder block of 512 channels, 8 heads, FFN 2048; 63 positions cached.

    Inputs: the token, cached keys and values; outputs: the token, its own keys and values.
    """
    block = _Block(WIDTH)
    normed = block.norm("x")
    query, key, value = (block.heads(block.product(normed, WIDTH, WIDTH), 1, HEADS) for _ in range(3))
    keys = block.node("Concat", "past_k", key, axis=1)
    values = block.node("Concat", "past_v", value, axis=1)
    x = block.node("Add", "x", block.attention(query, keys, values, 1, HEADS))
    y = block.node("Add", x, block.feed_forward(block.norm(x)))
    cache, new = (HEADS, CACHED, WIDTH // HEADS), (HEADS, 1, WIDTH // HEADS)
    inputs = {"x": (1, WIDTH), "past_k": cache, "past_v": cache}
    return block.model(DECODER_STEP, inputs, {y: (1, WIDTH), key: new, value: new})


def encoder_block(name: str) -> onnx.ModelProto:
    """One of BLOCKS: 16 tokens of 128 channels, 4 heads, FFN 512."""
    block, pre = _Block(SMALL_WIDTH), BLOCKS[name]

    def attention(x: str) -> str:
        parts = [
            block.heads(block.product(x, SMALL_WIDTH, SMALL_WIDTH), TOKENS, SMALL_HEADS) for _ in range(3)
        ]
        return block.attention(parts[0], parts[1], parts[2], TOKENS, SMALL_HEADS)

    x = "x"
    for part in (attention, block.feed_forward):
        y = block.node("Add", x, part(block.norm(x) if pre else x))
        x = y if pre else block.norm(y)
    shape = (TOKENS, SMALL_WIDTH)
    return block.model(name, {"x": shape}, {x: shape})
