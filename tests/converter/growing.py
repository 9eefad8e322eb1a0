"""A decoder whose caches grow, as exporters of transformers' code write one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from tests.converter.oracle import weights

HEADS, SIZE, WORDS, PLACES = 2, 16, 24, 16
WIDTH = HEADS * SIZE


def growing_decoder(path: Path, *, masked: bool = True) -> Path:
    """input_ids [batch, seq], attention_mask [batch, past + seq] and caches [batch, 2, past, 16] to logits.

    Positions begin at the length of the past, and say what a query sees; `masked` False: all that is there.
    """

    def node(op: str, inputs: list[str], output: str, **attributes: object) -> onnx.NodeProto:
        return helper.make_node(op, inputs, [output], output, **attributes)

    nodes = [
        node("Shape", ["past.key"], "sizes"),
        node("Gather", ["sizes", "two"], "length", axis=0),
        node("Shape", ["input_ids"], "given"),
        node("Gather", ["given", "one"], "seq", axis=0),
        node("Add", ["length", "seq"], "total"),
        node("Range", ["length", "total", "one"], "positions"),
        node("Gather", ["embedding", "input_ids"], "embedded"),
        node("Gather", ["places", "positions"], "placed"),
        node("Add", ["embedded", "placed"], "x"),
        node("Range", ["zero", "total", "one"], "columns"),
        node("Unsqueeze", ["positions", "last"], "rows"),
        node("LessOrEqual", ["columns", "rows"], "causal"),
        node("Cast", ["attention_mask"], "real", to=TensorProto.BOOL),
        node("Unsqueeze", ["real", "middle"], "reals"),
        node("And", ["causal", "reals"], "seen"),
    ]
    for name in ("query", "key", "value"):
        nodes += [
            node("MatMul", ["x", f"w_{name}"], f"{name}_rows"),
            node("Reshape", [f"{name}_rows", "split"], f"{name}_parts"),
            node("Transpose", [f"{name}_parts"], name, perm=[0, 2, 1, 3]),
        ]
    for name in ("key", "value"):
        nodes.append(node("Concat", [f"past.{name}", name], f"present.{name}", axis=-2))
    nodes += [
        node("Transpose", ["present.key"], "turned", perm=[0, 1, 3, 2]),
        node("MatMul", ["query", "turned"], "scores"),
        node("Where", ["seen", "scores", "lowest"], "masked"),
        node("Softmax", ["masked" if masked else "scores"], "shares", axis=-1),
        node("MatMul", ["shares", "present.value"], "mixed"),
        node("Transpose", ["mixed"], "together", perm=[0, 2, 1, 3]),
        node("Reshape", ["together", "joined"], "a"),
        node("Add", ["a", "x"], "y"),
        node("MatMul", ["y", "w_words"], "logits"),
    ]
    constants = {
        "embedding": weights(0, WORDS, WIDTH),
        "places": weights(1, PLACES, WIDTH),
        **{f"w_{n}": weights(2 + i, WIDTH, WIDTH) / 4 for i, n in enumerate(("query", "key", "value"))},
        "w_words": weights(5, WIDTH, WORDS) / 4,
        "zero": np.array(0),
        "one": np.array(1),
        "two": np.array(2),
        "last": np.array([-1]),
        "middle": np.array([1, 2]),
        "split": np.array([0, 0, HEADS, SIZE]),
        "joined": np.array([0, 0, WIDTH]),
        "lowest": np.float32(-1e9),
    }
    cache = ["batch", HEADS, "past", SIZE]
    integers = {"input_ids": ["batch", "seq"], "attention_mask": ["batch", "past + seq"]}
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, shape) for n, shape in integers.items()]
    caches = [helper.make_tensor_value_info(f"past.{n}", TensorProto.FLOAT, cache) for n in ("key", "value")]
    names = ("logits", "present.key", "present.value")
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    stored = [
        numpy_helper.from_array(array.astype(np.float32) if array.dtype == float else array, name)
        for name, array in constants.items()
    ]
    graph = helper.make_graph(nodes, "decoder", [*inputs, *caches], outputs, stored)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def grown_logits(path: Path, calls: list[list[int]], heads: int = HEADS) -> list[np.ndarray]:
    """What the file says, call by call, each with the caches that the one before has returned."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    empty = np.zeros((1, heads, 0, SIZE), np.float32)
    kept, found = {"past.key": empty, "past.value": empty}, []
    for tokens in calls:
        mask = np.ones((1, kept["past.key"].shape[2] + len(tokens)), np.int64)
        logits, key, value = session.run(
            None, {"input_ids": np.array([tokens]), "attention_mask": mask} | kept
        )
        kept = {"past.key": key, "past.value": value}
        found.append(logits)
    return found
