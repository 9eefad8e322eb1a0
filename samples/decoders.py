"""Blocks of large language models as workloads: the sizes of their weights, and no numbers.

One block takes hidden states [1, seq, width] at positions [seq] and caches of keys and values; prompts and
steps are the same file with another `seq`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_OPSET = 18


@dataclass(frozen=True)
class Decoder:
    """A language model of equal blocks."""

    name: str
    blocks: int
    width: int
    heads: int
    key_heads: int
    """Of keys and values: each serves heads / key_heads queries."""
    hidden: int
    vocabulary: int
    form: Literal["llama", "gpt"]
    """llama: RMS norm, rotary positions, SwiGLU; gpt: layer norm, biases, GELU."""

    @property
    def head(self) -> int:
        """Width of one."""
        return self.width // self.heads

    @property
    def weights(self) -> int:
        """Of all products of all blocks and of the scores."""
        feed_forward = (3 if self.form == "llama" else 2) * self.width * self.hidden
        attention = 2 * self.width * self.width + 2 * self.width * self.key_heads * self.head
        return self.blocks * (attention + feed_forward) + self.width * self.vocabulary


DECODERS = {
    decoder.name: decoder
    for decoder in (
        Decoder("tinyllama", 22, 2048, 32, 4, 5632, 32000, "llama"),
        Decoder("gpt3-6.7b", 32, 4096, 32, 32, 16384, 50257, "gpt"),
    )
}
"""TinyLlama 1.1B (Zhang et al. 2024) and GPT-3 6.7B (Brown et al. 2020, table 2.1)."""


class _Graph:
    """Nodes as they are added, each with one output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The name of what the operator gives."""
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name, **attributes))
        return name

    def weight(self, *sizes: int) -> str:
        """A constant of which only the sizes are known."""
        name = f"weight_{len(self.constants)}"
        self.constants.append(TensorProto(name=name, data_type=TensorProto.FLOAT, dims=sizes))
        return name

    def constant(self, array: np.ndarray | np.float32) -> str:
        """A constant with numbers."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def shape(self, value: str, sizes: Sequence[int]) -> str:
        """Reshaped."""
        return self.op("Reshape", value, self.constant(np.array(sizes, np.int64)))


def block(decoder: Decoder, seq: int, cache: int) -> onnx.ModelProto:
    """One block with `cache` positions, of which `seq` are written."""
    graph, head = _Graph(), decoder.head
    normed = _norm(graph, decoder, "x")
    query = _heads(graph, decoder, normed, decoder.heads, seq)
    key = _heads(graph, decoder, normed, decoder.key_heads, seq)
    value = _heads(graph, decoder, normed, decoder.key_heads, seq)
    if decoder.form == "llama":
        query, key = _rotated(graph, query, head, cache), _rotated(graph, key, head, cache)
    keys, values = (_written(graph, past, new) for past, new in (("past_key", key), ("past_value", value)))
    shared = [_shared(graph, decoder, rows, cache) for rows in (keys, values)]
    scores = graph.op("MatMul", query, graph.op("Transpose", shared[0], perm=[0, 1, 3, 2]))
    scores = graph.op("Mul", scores, graph.constant(np.float32(head**-0.5)))
    place = graph.op("Unsqueeze", "position", graph.constant(np.array([1])))
    seen = graph.op("LessOrEqual", graph.constant(np.arange(cache)), place)
    masked = graph.op("Where", seen, scores, graph.constant(np.float32(-1e9)))
    mixed = graph.op("MatMul", graph.op("Softmax", masked), shared[1])
    joined = graph.shape(graph.op("Transpose", mixed, perm=[0, 2, 1, 3]), (1, seq, decoder.width))
    x = graph.op("Add", _linear(graph, decoder, joined, decoder.width, decoder.width), "x")
    y = graph.op("Add", _feed_forward(graph, decoder, _norm(graph, decoder, x)), x)
    kept = (1, decoder.key_heads, cache, head)
    inputs = {"x": (1, seq, decoder.width), "past_key": kept, "past_value": kept}
    ends = [("Identity", y, "y"), ("Identity", keys, "present_key"), ("Identity", values, "present_value")]
    graph.nodes += [helper.make_node(kind, [given], [name], name) for kind, given, name in ends]
    made = helper.make_graph(
        graph.nodes,
        f"{decoder.name}-block",
        [
            *(helper.make_tensor_value_info(n, TensorProto.FLOAT, sizes) for n, sizes in inputs.items()),
            helper.make_tensor_value_info("position", TensorProto.INT64, [seq]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, inputs["x"]),
            helper.make_tensor_value_info("present_key", TensorProto.FLOAT, kept),
            helper.make_tensor_value_info("present_value", TensorProto.FLOAT, kept),
        ],
        graph.constants,
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=9)


def _linear(graph: _Graph, decoder: Decoder, x: str, inputs: int, outputs: int) -> str:
    product = graph.op("MatMul", x, graph.weight(inputs, outputs))
    return product if decoder.form == "llama" else graph.op("Add", product, graph.weight(outputs))


def _norm(graph: _Graph, decoder: Decoder, x: str) -> str:
    scale = graph.constant(np.ones(decoder.width, np.float32))
    if decoder.form == "gpt":
        zeros = graph.constant(np.zeros(decoder.width, np.float32))
        return graph.op("LayerNormalization", x, scale, zeros, axis=-1)
    square = graph.op("Mul", x, x)
    mean = graph.op("ReduceMean", square, graph.constant(np.array([-1])), keepdims=1)
    root = graph.op("Sqrt", graph.op("Add", mean, graph.constant(np.float32(1e-5))))
    return graph.op("Mul", graph.op("Div", x, root), scale)


def _heads(graph: _Graph, decoder: Decoder, x: str, heads: int, seq: int) -> str:
    rows = _linear(graph, decoder, x, decoder.width, heads * decoder.head)
    return graph.op("Transpose", graph.shape(rows, (1, seq, heads, decoder.head)), perm=[0, 2, 1, 3])


def _rotated(graph: _Graph, x: str, head: int, cache: int) -> str:
    angles = np.arange(cache)[:, None] * 10000.0 ** (-np.arange(0, head, 2) / head)
    waves = [np.concatenate([wave(angles)] * 2, 1).astype(np.float32) for wave in (np.cos, np.sin)]
    cosine, sine = (graph.op("Gather", graph.constant(wave), "position") for wave in waves)
    bounds = [graph.constant(np.array([at])) for at in (0, head // 2, head)]
    last = graph.constant(np.array([3]))
    front, back = (graph.op("Slice", x, bounds[i], bounds[i + 1], last) for i in (0, 1))
    half = graph.op("Concat", graph.op("Neg", back), front, axis=3)
    return graph.op("Add", graph.op("Mul", x, cosine), graph.op("Mul", half, sine))


def _written(graph: _Graph, past: str, new: str) -> str:
    """The cache with new rows at their positions, as PyTorch exports index_copy."""
    places = graph.op("Unsqueeze", "position", graph.constant(np.array([1])))
    turned = [graph.op("Transpose", value, perm=[2, 0, 1, 3]) for value in (past, new)]
    put = graph.op("ScatterND", turned[0], places, turned[1])
    return graph.op("Transpose", put, perm=[1, 2, 0, 3])


def _shared(graph: _Graph, decoder: Decoder, rows: str, cache: int) -> str:
    """Keys or values for every head."""
    times = decoder.heads // decoder.key_heads
    if times == 1:
        return rows
    one = graph.op("Unsqueeze", rows, graph.constant(np.array([2])))
    sizes = (1, decoder.key_heads, times, cache, decoder.head)
    many = graph.op("Expand", one, graph.constant(np.array(sizes)))
    return graph.shape(many, (1, decoder.heads, cache, decoder.head))


def _feed_forward(graph: _Graph, decoder: Decoder, x: str) -> str:
    width, hidden = decoder.width, decoder.hidden
    if decoder.form == "gpt":
        y = _linear(graph, decoder, x, width, hidden)
        half = graph.op("Mul", y, graph.constant(np.float32(0.5)))
        wave = graph.op("Erf", graph.op("Mul", y, graph.constant(np.float32(0.5**0.5))))
        y = graph.op("Mul", half, graph.op("Add", wave, graph.constant(np.float32(1))))
    else:
        gate, up = (_linear(graph, decoder, x, width, hidden) for _ in range(2))
        y = graph.op("Mul", graph.op("Mul", gate, graph.op("Sigmoid", gate)), up)
    return _linear(graph, decoder, y, hidden, width)
