"""Caches that grow get a fixed size: same logits, call by call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import Conversion, ModelError, convert
from fadiff.converter.read.runtime import open_session
from tests.converter.growing import HEADS, SIZE, growing_decoder, grown_logits

CONTEXT = 10
CALLS = [[3, 1, 4], [1], [5], [9], [2, 6, 5], [3]]
"""Tokens of every call: ten in all."""


def _fixed(path: Path, tokens: int, context: int = CONTEXT, **dims: int) -> Conversion:
    dims = {"batch": 1, "seq": tokens, **dims}
    return convert(path, dims=dims, context=context, calibrate=False, calibration=())


@pytest.mark.parametrize("mask", ["an input", "bound"])
def test_logits_are_those_of_the_file(mask: str, tmp_path: Path) -> None:
    path = growing_decoder(tmp_path / "decoder.onnx")
    dims = {"attention_mask": 1} if mask == "bound" else {}
    models = {n: _fixed(path, n, **dims) for n in {len(tokens) for tokens in CALLS}}
    cache = np.zeros((1, HEADS, CONTEXT, SIZE), np.float32)
    kept, at = {"past.key": cache, "past.value": cache}, 0
    for tokens, expected in zip(CALLS, grown_logits(path, CALLS), strict=True):
        conversion = models[len(tokens)]
        assert len(conversion.graph.states) == 2
        given = {"input_ids": np.array([tokens]), "cache_position": np.arange(at, at + len(tokens))}
        if mask == "an input":
            given["attention_mask"] = np.ones((1, CONTEXT), np.int64)
        outputs = ["logits", "present.key", "present.value"]
        logits, key, value = open_session(conversion.float_model).run(outputs, given | kept)
        np.testing.assert_allclose(logits, expected, atol=1e-5)
        kept, at = {"past.key": key, "past.value": value}, at + len(tokens)


def test_a_prompt_may_fill_the_cache(tmp_path: Path) -> None:
    path = growing_decoder(tmp_path / "decoder.onnx")
    tokens = list(range(CONTEXT))
    (expected,) = grown_logits(path, [tokens])
    cache = np.zeros((1, HEADS, CONTEXT, SIZE), np.float32)
    given = {"input_ids": np.array([tokens]), "cache_position": np.arange(CONTEXT)}
    session = open_session(_fixed(path, CONTEXT, attention_mask=1).float_model)
    (logits,) = session.run(["logits"], given | {"past.key": cache, "past.value": cache})
    np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_what_cannot_be_fixed_is_refused(tmp_path: Path) -> None:
    path = growing_decoder(tmp_path / "decoder.onnx")
    with pytest.raises(ModelError, match="one run adds 3 rows; give at least 3"):
        _fixed(path, 3, context=2)
    with pytest.raises(ModelError, match="did you mean seq"):
        _fixed(path, 3, seqence=2)
    model = onnx.load(path)
    place = next(i for i, node in enumerate(model.graph.node) if node.op_type == "Range")
    model.graph.node[place].input[0] = "also"  # the length, computed with
    model.graph.node.insert(place, helper.make_node("Mul", ["length", "one"], ["also"], "times"))
    onnx.save(model, path)
    with pytest.raises(ModelError, match="uses its length for something else than positions"):
        _fixed(path, 3)
    model.graph.node.extend([helper.make_node("Identity", ["x"], ["only"])])
    del model.graph.output[1:]
    onnx.save(model, path)
    with pytest.raises(ModelError, match="no output is an input with new rows behind it"):
        _fixed(path, 3)
