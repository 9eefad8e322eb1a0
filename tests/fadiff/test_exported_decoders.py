"""Decoders as exporters write them: caches that grow, GroupQueryAttention in a cache that a mask measures.

The oracle is ONNX Runtime running the very file, which gets a longer past with every call.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fadiff
from fadiff.emulator.build import build_firmware
from fadiff.emulator.machine import Machine
from fadiff.folder import OutputFolder
from tests.converter.growing import HEADS, SIZE, WIDTH, WORDS, growing_decoder, grown_logits
from tests.converter.oracle import weights

CONTEXT, PROMPT = 12, 4
STEPS = CONTEXT - PROMPT


def group_query_decoder(path: Path) -> Path:
    """One layer as onnxruntime-genai's model builder writes it, weights in four bits.

    Two query heads share one head of keys; the mask says how many tokens there are.
    """
    constants: dict[str, np.ndarray] = {
        "one": np.array(1),
        "axis": np.array([1]),
        "words": weights(0, WORDS, WIDTH),
        "gain": 1 + weights(1, WIDTH) / 8,
        "gain_2": 1 + weights(2, WIDTH) / 8,
        "cos": np.cos(np.arange(CONTEXT)[:, None] / 2 ** np.arange(SIZE // 2)),
        "sin": np.sin(np.arange(CONTEXT)[:, None] / 2 ** np.arange(SIZE // 2)),
    }

    def own(op: str, inputs: list[str], outputs: list[str], **attributes: object) -> onnx.NodeProto:
        return helper.make_node(op, inputs, outputs, outputs[0], domain="com.microsoft", **attributes)

    def product(x: str, output: str, columns: int) -> onnx.NodeProto:
        """Blocks of 16 numbers, two in a byte; 8 stands for zero."""
        seed = 10 + len(constants)
        generator = np.random.default_rng(seed)
        constants[f"{output}.weight"] = generator.integers(0, 256, (columns, WIDTH // 16, 8)).astype(np.uint8)
        constants[f"{output}.scales"] = 0.05 * (1 + np.abs(weights(seed, columns, WIDTH // 16)))
        inputs = [x, f"{output}.weight", f"{output}.scales"]
        return own("MatMulNBits", inputs, [output], K=WIDTH, N=columns, bits=4, block_size=16)

    caches = [f"past.{part}" for part in ("key", "value")]
    presents = [f"present.{part}" for part in ("key", "value")]
    attention = ["query", "key", "value", *caches, "last", "total", "cos", "sin"]
    nodes = [
        helper.make_node("ReduceSum", ["attention_mask", "axis"], ["seen"], "seen", keepdims=0),
        helper.make_node("Sub", ["seen", "one"], ["end"], "end"),
        helper.make_node("Cast", ["end"], ["last"], "last", to=TensorProto.INT32),
        helper.make_node("Shape", ["attention_mask"], ["sizes"], "sizes"),
        helper.make_node("Gather", ["sizes", "one"], ["size"], "size", axis=0),
        helper.make_node("Cast", ["size"], ["total"], "total", to=TensorProto.INT32),
        helper.make_node("Gather", ["words", "input_ids"], ["x"], "embed"),
        helper.make_node("SimplifiedLayerNormalization", ["x", "gain"], ["y"], "norm", axis=-1),
        product("y", "query", WIDTH),
        product("y", "key", SIZE),
        product("y", "value", SIZE),
        own("GroupQueryAttention", attention, ["a", *presents], num_heads=HEADS, kv_num_heads=1, do_rotary=1),
        product("a", "o", WIDTH),
        own("SkipSimplifiedLayerNormalization", ["x", "o", "gain_2"], ["z"], epsilon=1e-6),
        product("z", "logits", WORDS),
    ]
    integers = {"input_ids": [1, "seq"], "attention_mask": [1, "total"]}
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, shape) for n, shape in integers.items()]
    inputs += [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1, "past", SIZE]) for n in caches]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("logits", *presents)]
    kept = {n: a if a.dtype in (np.int64, np.uint8) else a.astype(np.float32) for n, a in constants.items()}
    stored = [numpy_helper.from_array(array, name) for name, array in kept.items()]
    graph = helper.make_graph(nodes, "genai", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def runs(seed: int, count: int) -> dict[str, np.ndarray]:
    """Random prompts, and steps until the cache is full."""
    tokens = np.random.default_rng(seed).integers(0, WORDS, (count, CONTEXT))
    places = np.arange(CONTEXT)
    seen = (places <= places[:, None]).astype(np.int64)
    return {
        "prefill:input_ids": tokens[:, None, :PROMPT],
        "prefill:cache_position": np.tile(places[:PROMPT], (count, 1)),
        "prefill:attention_mask": np.tile(seen[PROMPT - 1], (count, 1, 1)),
        "decode:input_ids": tokens[:, PROMPT:].reshape(-1, 1, 1),
        "decode:cache_position": np.tile(places[PROMPT:], count)[:, None],
        "decode:attention_mask": np.tile(seen[PROMPT:], (count, 1))[:, None],
    }


@pytest.mark.parametrize("kind", ["caches that grow", "GroupQueryAttention"])
def test_scores_are_those_of_the_file(kind: str, tmp_path: Path) -> None:
    """Step by step until the cache is full: C as Python, both near the float model, late as early."""
    path, options = tmp_path / "lm.onnx", {"target": "gemmini-small", "method": "layerwise"}
    if kind == "GroupQueryAttention":
        heads, dims = 1, {"past": CONTEXT, "total": CONTEXT}
        group_query_decoder(path)
    else:
        heads, dims, options["context"] = HEADS, {"batch": 1, "attention_mask": 1}, CONTEXT
        growing_decoder(path)
    entries = [fadiff.Entry(n, path, {**dims, "seq": seq}) for n, seq in (("prefill", PROMPT), ("decode", 1))]
    data = runs(0, 30)
    np.savez(tmp_path / "lm.calibration.npz", **data)
    out = fadiff.compile_entries(entries, tmp_path / "out", **options).out
    target = OutputFolder(out / "decode").document.target
    library = ctypes.CDLL(str(build_firmware(out / "firmware", target, tmp_path)))
    machine = Machine(target, check_regions=False)
    library.lm_scores.restype = ctypes.POINTER(ctypes.c_int8)
    run = fadiff.load(out).generation()
    noise, signal = np.zeros((2, CONTEXT)), np.zeros((2, CONTEXT))
    for seed, first in enumerate((PROMPT, PROMPT - 1)):  # (the shorter prompt fills up)
        tokens = np.random.default_rng(9 + seed).integers(0, WORDS, CONTEXT).tolist()
        floats = grown_logits(path, [tokens[:first], *([t] for t in tokens[first:])], heads)
        run.prompt(tokens[:first])
        machine.reset()
        assert library.lm_prompt((ctypes.c_int32 * first)(*tokens[:first]), first) == 0
        for at, expected in enumerate(floats, first - 1):
            if at >= first:
                run.step(tokens[at])
                assert library.lm_step(tokens[at]) == 0
            found, wanted = run.scores, expected[0, -1]
            scale = np.abs(found).max() / max(abs(library.lm_scores()[i]) for i in range(WORDS))
            np.testing.assert_allclose(np.array(library.lm_scores()[:WORDS]) * scale, found, rtol=1e-5)
            noise[seed, at], signal[seed, at] = np.sum((found - wanted) ** 2), np.sum(wanted**2)
        assert library.lm_step(0) == -2  # LM_NO_ROOM
        with pytest.raises(fadiff.InputError, match="as many as the model has positions"):
            run.step(0)
    machine.check()
    early, late = (
        10 * np.log10(signal[:, p].sum() / noise[:, p].sum()) for p in (slice(PROMPT), slice(8, 12))
    )
    assert min(early, late) > 20
