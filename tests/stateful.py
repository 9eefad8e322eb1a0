"""Nets that keep something from one run to the next: recurrent, convolutional with a cache, a decoder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tests.converter.oracle import model_of
from tests.converter.oracle import weights as plain_weights

STEPS = 50


def _weights(seed: int, *shape: int, sums: int) -> np.ndarray:
    """Random weights of which `sums` meet in one result."""
    return (plain_weights(seed, *shape) / np.sqrt(sums)).astype(np.float32)


def gru(path: Path) -> Path:
    """Two frames a step through a dense layer and a GRU whose last state is `hn`."""
    nodes = [
        helper.make_node("MatMul", ["x", "wi"], ["m"], "dense"),
        helper.make_node("GRU", ["m", "w", "r", "b", "", "h"], ["all", "hn"], "gru", hidden_size=24),
        helper.make_node("Squeeze", ["all", "axis"], ["frames"], "squeeze"),
        helper.make_node("MatMul", ["frames", "wo"], ["logits"], "read"),
        helper.make_node("Sigmoid", ["logits"], ["y"], "gate"),
    ]
    constants = {
        "wi": _weights(0, 12, 16, sums=12),
        "w": _weights(1, 1, 72, 16, sums=16),
        "r": _weights(2, 1, 72, 24, sums=24),
        "b": _weights(3, 1, 144, sums=100),
        "axis": np.array([1], np.int64),
        "wo": _weights(4, 24, 12, sums=24),
    }
    model = model_of(nodes, {"x": (2, 1, 12), "h": (1, 1, 24)}, {"y": None, "hn": (1, 1, 24)}, constants)
    onnx.save(model, path)
    return path


def growing_lstm(path: Path) -> Path:
    """An LSTM whose `h` and `c` are one tensor; `c`, which the output reads, grows by a little every step."""
    gates = np.repeat(np.float32([2, 2, 6, 0.05]), 24)  # biases of input, output, forget and cell gates
    nodes = [
        helper.make_node("Split", ["state"], ["h", "c"], "apart", axis=0),
        helper.make_node(
            "LSTM", ["x", "w", "r", "b", "", "h", "c"], ["", "hn", "cn"], "lstm", hidden_size=24
        ),
        helper.make_node("Concat", ["hn", "cn"], ["state_out"], "together", axis=0),
        helper.make_node("MatMul", ["cn", "read"], ["y"], "read"),
    ]
    constants = {
        "w": 0.1 * _weights(0, 1, 96, 12, sums=12),
        "r": 0.1 * _weights(1, 1, 96, 24, sums=24),
        "b": np.concatenate([gates, np.zeros(96, np.float32)])[None],
        "read": _weights(2, 24, 12, sums=24),
    }
    state = (2, 1, 24)
    inputs = {"x": (1, 1, 12), "state": state}
    onnx.save(model_of(nodes, inputs, {"y": None, "state_out": state}, constants), path)
    return path


def cached_convolution(path: Path) -> Path:
    """Convolutions over time that begin with the last columns of the step before."""
    nodes = [
        helper.make_node("Concat", ["cache", "x"], ["joined"], "join", axis=2),
        helper.make_node("Conv", ["joined", "w1"], ["c"], "first"),
        helper.make_node("Relu", ["c"], ["r"], "rectify"),
        helper.make_node("Conv", ["r", "w2"], ["m"], "second"),
        helper.make_node("Add", ["m", "x"], ["y"], "skip"),
        helper.make_node("Slice", ["joined", "from", "to", "axis"], ["cache_out"], "keep"),
    ]
    constants = {
        "w1": _weights(0, 16, 8, 3, sums=24),
        "w2": _weights(1, 8, 16, 1, sums=16),
        "from": np.array([-2], np.int64),
        "to": np.array([99], np.int64),
        "axis": np.array([2], np.int64),
    }
    inputs = {"x": (1, 8, 4), "cache": (1, 8, 2)}
    onnx.save(model_of(nodes, inputs, {"y": None, "cache_out": (1, 8, 2)}, constants), path)
    return path


def decoder(path: Path) -> Path:
    """One token a step; keys and values of the last eight in a window that slides."""
    nodes = [
        helper.make_node("MatMul", ["x", "wq"], ["q"], "query"),
        helper.make_node("Softmax", ["scores"], ["p"], "softmax"),
        helper.make_node("MatMul", ["p", "present_value"], ["a"], "mix"),
        helper.make_node("Add", ["a", "x"], ["y"], "skip"),
    ]
    for name in ("key", "value"):
        nodes[1:1] = [
            helper.make_node("MatMul", ["x", f"w_{name}"], [f"new_{name}"], f"project_{name}"),
            helper.make_node(
                "Slice", [f"past_{name}", "one", "eight", "one"], [f"late_{name}"], f"drop_{name}"
            ),
            helper.make_node(
                "Concat", [f"late_{name}", f"new_{name}"], [f"present_{name}"], f"join_{name}", axis=1
            ),
        ]
    at = next(i for i, node in enumerate(nodes) if node.name == "softmax")
    nodes[at:at] = [
        helper.make_node("Transpose", ["present_key"], ["turned"], "turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "turned"], ["scores"], "compare"),
    ]
    constants = {
        "wq": _weights(0, 16, 16, sums=16),
        "w_key": _weights(1, 16, 16, sums=16),
        "w_value": _weights(2, 16, 16, sums=16),
        "one": np.array([1], np.int64),
        "eight": np.array([8], np.int64),
    }
    window = (1, 8, 16)
    inputs = {"x": (1, 1, 16), "past_key": window, "past_value": window}
    onnx.save(
        model_of(nodes, inputs, {"y": None, "present_key": window, "present_value": window}, constants), path
    )
    return path


TOKENS, HEADS, SIZE = 10, 2, 8


def _written(spelling: str, past: str, new: str, present: str) -> list[onnx.NodeProto]:
    """present = past with the new row at `position`, as exporters write it."""
    match spelling:
        case "scatter_nd":  # torch.onnx.export(dynamo=True) of index_copy and of cache[:, :, position] = new
            return [
                helper.make_node("Transpose", [past], [f"{past}_t"], f"{past}_turn", perm=[2, 0, 1, 3]),
                helper.make_node("Transpose", [new], [f"{new}_t"], f"{new}_turn", perm=[2, 0, 1, 3]),
                helper.make_node("Unsqueeze", ["position", "last"], [f"{past}_at"], f"{past}_places"),
                helper.make_node(
                    "ScatterND", [f"{past}_t", f"{past}_at", f"{new}_t"], [f"{past}_put"], f"{past}_put"
                ),
                helper.make_node(
                    "Transpose", [f"{past}_put"], [present], f"{present}_turn", perm=[1, 2, 0, 3]
                ),
            ]
        case "scatter_elements":  # of cache.scatter(2, position.view(1, 1, 1, 1).expand_as(new), new)
            return [
                helper.make_node("Reshape", ["position", "ones"], [f"{past}_one"], f"{past}_shape"),
                helper.make_node("Expand", [f"{past}_one", "row"], [f"{past}_at"], f"{past}_places"),
                helper.make_node(
                    "ScatterElements", [past, f"{past}_at", new], [present], f"{past}_put", axis=2
                ),
            ]
    mode = spelling.removeprefix("tensor_scatter_")
    return [helper.make_node("TensorScatter", [past, new, "position"], [present], f"{past}_put", mode=mode)]


def static_cache(path: Path, spelling: str) -> Path:
    """One token a step; keys and values of the last ten, written at the input `position`, which goes round.

    The input `newest` is the highest position that was written yet.
    """
    heads, cache = [HEADS, 1, SIZE], (1, HEADS, TOKENS, SIZE)
    nodes = []
    for name in ("query", "key", "value"):
        nodes += [
            helper.make_node("MatMul", ["x", f"w_{name}"], [f"{name}_rows"], f"project_{name}"),
            helper.make_node("Reshape", [f"{name}_rows", "split"], [f"{name}_parts"], f"split_{name}"),
            helper.make_node("Transpose", [f"{name}_parts"], [name], f"heads_{name}", perm=[0, 2, 1, 3]),
        ]
    for name in ("key", "value"):
        nodes += _written(spelling, f"past_{name}", name, f"present_{name}")
    nodes += [
        helper.make_node("Transpose", ["present_key"], ["turned"], "turn", perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["query", "turned"], ["scores"], "compare"),
        helper.make_node("LessOrEqual", ["numbers", "newest"], ["seen"], "until_now"),
        helper.make_node("Where", ["seen", "scores", "lowest"], ["masked"], "mask"),
        helper.make_node("Softmax", ["masked"], ["p"], "softmax"),
        helper.make_node("MatMul", ["p", "present_value"], ["mixed"], "mix"),
        helper.make_node("Transpose", ["mixed"], ["together"], "join", perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["together", "joined"], ["a"], "rows"),
        helper.make_node("Add", ["a", "x"], ["y"], "skip"),
    ]
    width = HEADS * SIZE
    constants = {
        **{f"w_{name}": _weights(i, width, width, sums=width) for i, name in enumerate(("query", "key"))},
        "w_value": _weights(2, width, width, sums=width),
        "split": np.array([1, 1, HEADS, SIZE], np.int64),
        "joined": np.array([1, 1, width], np.int64),
        "ones": np.ones(4, np.int64),
        "row": np.array([1, *heads], np.int64),
        "last": np.array([1], np.int64),
        "numbers": np.arange(TOKENS),
        "lowest": np.float32(-1e9),
    }
    inputs = {"x": (1, 1, width), "past_key": cache, "past_value": cache}
    model = model_of(nodes, inputs, {"y": None, "present_key": cache, "present_value": cache}, constants)
    for name in ("position", "newest"):
        model.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [1]))
    if spelling.startswith("tensor_scatter"):
        if not onnx.defs.has("TensorScatter"):
            pytest.skip("TensorScatter came with onnx 1.19")
        model.opset_import[0].version = 24
        model.ir_version = max(model.ir_version, 11)
    used = {value for node in nodes for value in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    onnx.save(model, path)
    return path


VOCABULARY = 24


def language_model(path: Path) -> Path:
    """Tokens [1, seq] at `position` [seq] to logits, with a cache of TOKENS rows that they are written to.

    One file for prompts of any length and for steps.
    """
    width = HEADS * SIZE
    nodes = [
        helper.make_node("Gather", ["embedding", "tokens"], ["embedded"], "embed"),
        helper.make_node("Gather", ["places", "position"], ["placed"], "place"),
        helper.make_node("Add", ["embedded", "placed"], ["x"], "begin"),
    ]
    for name in ("query", "key", "value"):
        nodes += [
            helper.make_node("MatMul", ["x", f"w_{name}"], [f"{name}_rows"], f"project_{name}"),
            helper.make_node("Reshape", [f"{name}_rows", "split"], [f"{name}_parts"], f"split_{name}"),
            helper.make_node("Transpose", [f"{name}_parts"], [name], f"heads_{name}", perm=[0, 2, 1, 3]),
        ]
    for name in ("key", "value"):
        nodes += _written("scatter_nd", f"past_{name}", name, f"present_{name}")
    nodes += [
        helper.make_node("Transpose", ["present_key"], ["turned"], "turn", perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["query", "turned"], ["scores"], "compare"),
        helper.make_node("Unsqueeze", ["position", "last"], ["newest"], "column"),
        helper.make_node("LessOrEqual", ["numbers", "newest"], ["seen"], "until_now"),
        helper.make_node("Where", ["seen", "scores", "lowest"], ["masked"], "mask"),
        helper.make_node("Softmax", ["masked"], ["p"], "softmax"),
        helper.make_node("MatMul", ["p", "present_value"], ["mixed"], "mix"),
        helper.make_node("Transpose", ["mixed"], ["together"], "join", perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["together", "joined"], ["a"], "rows"),
        helper.make_node("Add", ["a", "x"], ["y"], "skip"),
        helper.make_node("MatMul", ["y", "read"], ["logits"], "read_out"),
    ]
    constants = {
        "embedding": plain_weights(0, VOCABULARY, width),
        "places": plain_weights(1, TOKENS, width),
        **{f"w_{n}": _weights(i, width, width, sums=width) for i, n in enumerate(("query", "key", "value"))},
        "read": _weights(3, width, VOCABULARY, sums=width),
        "split": np.array([1, -1, HEADS, SIZE], np.int64),
        "joined": np.array([1, -1, width], np.int64),
        "last": np.array([1], np.int64),
        "numbers": np.arange(TOKENS),
        "lowest": np.float32(-1e9),
    }
    cache = (1, HEADS, TOKENS, SIZE)
    model = model_of(
        nodes,
        {"past_key": cache, "past_value": cache},
        {"logits": None, "present_key": cache, "present_value": cache},
        constants,
    )
    for name, shape in (("tokens", [1, "seq"]), ("position", ["seq"])):
        model.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.INT64, shape))
    onnx.save(model, path)
    return path


STATIC_CACHES = ("scatter_nd", "scatter_elements", "tensor_scatter_linear", "tensor_scatter_circular")
"""How a cache of fixed size is written at a position."""
NETS: dict[str, Callable[[Path], Path]] = {
    "gru": gru,
    "cached_convolution": cached_convolution,
    "decoder": decoder,
    **{f"cache_{spelling}": partial(static_cache, spelling=spelling) for spelling in STATIC_CACHES},
}


def steps_of(path: Path, seed: int, steps: int = STEPS) -> list[dict[str, np.ndarray]]:
    """All inputs but states: those of `sequence`, and positions that go round where the model has them."""
    found = [{"x": x} for x in sequence(path, seed, steps)]
    if any(node.name == "position" for node in session_of(path).get_inputs()):
        for step, inputs in enumerate(found):
            inputs |= {"position": np.array([step % TOKENS]), "newest": np.array([min(step, TOKENS - 1)])}
    return found


def session_of(path: Path) -> onnxruntime.InferenceSession:
    """The float model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # others would spin
    options.log_severity_level = 3  # (TensorScatter tells of every step that it copied the cache)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def sequence(path: Path, seed: int, steps: int = STEPS) -> np.ndarray:
    """Inputs x of consecutive steps that belong together: slow waves and some noise."""
    shape = next(tuple(node.shape) for node in session_of(path).get_inputs() if node.name == "x")
    rng = np.random.default_rng(seed)
    phase, speed = rng.uniform(0, 6, shape), rng.uniform(0.1, 0.6, shape)
    waves = np.sin(phase + speed * np.arange(steps).reshape(-1, *[1] * len(shape)))
    return (waves + 0.2 * rng.standard_normal((steps, *shape))).astype(np.float32)
