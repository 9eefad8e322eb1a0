"""Nets that keep something from one run to the next: recurrent, convolutional with a cache, a decoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
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


NETS = {"gru": gru, "cached_convolution": cached_convolution, "decoder": decoder}


def sequence(path: Path, seed: int, steps: int = STEPS) -> np.ndarray:
    """Inputs x of consecutive steps that belong together: slow waves and some noise."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    shape = next(tuple(node.shape) for node in session.get_inputs() if node.name == "x")
    rng = np.random.default_rng(seed)
    phase, speed = rng.uniform(0, 6, shape), rng.uniform(0.1, 0.6, shape)
    waves = np.sin(phase + speed * np.arange(steps).reshape(-1, *[1] * len(shape)))
    return (waves + 0.2 * rng.standard_normal((steps, *shape))).astype(np.float32)
