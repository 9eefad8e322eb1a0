"""Blocks by their sizes: what they compute, how many weights they have, and what a chain of them is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from benchmarks import language_models
from fadiff.converter import convert
from fadiff.converter.check.reference import integer_reference, reference_session
from fadiff.costmodel.target.target import load_target
from fadiff.samples.decoders import DECODERS, Decoder, block
from fadiff.samples.graphs import chained

CACHE = 6
SMALL = {
    "llama": Decoder("small", 2, 32, 4, 2, 48, 40, "llama"),
    "gpt": Decoder("small", 2, 32, 4, 4, 64, 40, "gpt"),
}


def session_of(decoder: Decoder, seq: int) -> onnxruntime.InferenceSession:
    """The block with numbers."""
    model = block(decoder, seq, CACHE)
    for i, tensor in enumerate(model.graph.initializer):
        if not tensor.raw_data:
            numbers = np.random.default_rng(i).standard_normal(tuple(tensor.dims)) / 6
            tensor.CopyFrom(numpy_helper.from_array(numbers.astype(np.float32), tensor.name))
    onnx.checker.check_model(model, full_check=True)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("form", SMALL)
def test_a_prompt_is_what_its_steps_are(form: str) -> None:
    decoder = SMALL[form]
    x = np.random.default_rng(9).standard_normal((1, CACHE, decoder.width)).astype(np.float32)
    empty = np.zeros((1, decoder.key_heads, CACHE, decoder.head), np.float32)
    kept = {"past_key": empty, "past_value": empty}
    prompt, *caches = session_of(decoder, CACHE).run(None, {"x": x, "position": np.arange(CACHE), **kept})
    session, steps = session_of(decoder, 1), []
    for at in range(CACHE):
        given = {"x": x[:, at : at + 1], "position": np.array([at]), **kept}
        y, *new = session.run(None, given)
        kept = dict(zip(kept, new, strict=True))
        steps.append(y)
    assert np.allclose(np.concatenate(steps, 1), prompt, atol=1e-5)
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(kept.values(), caches, strict=True))


def test_rotary_positions_are_those_of_complex_numbers() -> None:
    """Scores of the first head of queries with its keys, against rotations of the complex plane."""
    decoder = replace(SMALL["llama"], key_heads=4)
    model = block(decoder, CACHE, CACHE)
    rotated = [node for node in model.graph.node if node.op_type == "Add"][1]
    model.graph.output.append(onnx.helper.make_tensor_value_info(rotated.output[0], 1, None))
    plain = next(n for n in model.graph.node if n.op_type == "Mul" and n.output[0] == rotated.input[0]).input[
        0
    ]
    model.graph.output.append(onnx.helper.make_tensor_value_info(plain, 1, None))
    for i, tensor in enumerate(model.graph.initializer):
        if not tensor.raw_data:
            numbers = np.random.default_rng(i).standard_normal(tuple(tensor.dims))
            tensor.CopyFrom(numpy_helper.from_array(numbers.astype(np.float32), tensor.name))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    empty = np.zeros((1, 4, CACHE, decoder.head), np.float32)
    x = np.random.default_rng(1).standard_normal((1, CACHE, decoder.width)).astype(np.float32)
    given = {"x": x, "position": np.arange(CACHE), "past_key": empty, "past_value": empty}
    *_, found, rows = session.run(None, given)
    half = decoder.head // 2
    numbers = rows[..., :half] + 1j * rows[..., half:]
    turned = numbers * np.exp(1j * np.arange(CACHE)[:, None] * 10000.0 ** (-np.arange(half) / half))
    assert np.allclose(found, np.concatenate([turned.real, turned.imag], -1), atol=1e-4)


def test_sizes_are_those_that_were_published() -> None:
    """With the embedding: 1.1 and 6.7 billion."""
    for name, published in (("tinyllama", 1.1e9), ("gpt3-6.7b", 6.7e9)):
        decoder = DECODERS[name]
        whole = decoder.weights + decoder.width * decoder.vocabulary * (decoder.form == "llama")
        assert whole == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("form", SMALL)
def test_a_chain_computes_what_its_blocks_do(form: str, tmp_path: Path) -> None:
    onnx.save(block(SMALL[form], 3, CACHE), tmp_path / "block.onnx")
    graph = convert(tmp_path / "block.onnx", calibrate=False, calibration=()).graph
    (source,) = (n for n in graph.arguments if graph.tensors[n].dtype == "int8")
    (result,) = graph.results
    whole = chained(graph, 2, source, result)
    assert len(whole.layers) == 2 * len(graph.layers) and len(whole.states) == 4
    rng = np.random.default_rng(0)

    def numbers(name: str) -> np.ndarray:
        if name.endswith("position"):
            return np.arange(3, dtype=np.int32).reshape(whole.tensors[name].shape)
        return rng.integers(-9, 9, whole.tensors[name].shape).astype(np.int8)

    given = {name: numbers(name) for name in whole.inputs}
    expected = reference_session(integer_reference(whole)).run([whole.results[0]], given)[0]
    session = reference_session(integer_reference(graph))
    found = given[f"block0.{source}"]
    for at in range(2):
        own = {name: given.get(f"block{at}.{name}", given.get(name)) for name in graph.inputs}
        (found,) = session.run([result], own | {source: found.reshape(graph.tensors[source].shape)})
    assert np.array_equal(found.reshape(expected.shape), expected)


def test_a_line_has_all_blocks_and_no_fewer_bytes_than_the_least() -> None:
    target = load_target("gemmini-default")
    one, two = (
        language_models.measure(replace(SMALL["llama"], blocks=blocks), "step", 1, CACHE, target)
        for blocks in (1, 2)
    )
    assert two.layers - 1 == 2 * (one.layers - 1)
    assert two.dram_bytes >= two.least_bytes > one.least_bytes
    assert one.edp < two.edp
    assert one.kind == "sequential" or one.bound <= one.edp  # (a bound of others, where layers run beside)
    assert one.cycles < two.cycles < 2 * one.cycles + 1
