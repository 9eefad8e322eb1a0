"""Weights that saturate: the scale with the least error of a layer's sums, against a search by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import Conversion, convert
from fadiff.converter.ir.program import Node, program_of
from fadiff.converter.quantise.rounding import InputSums
from tests.converter.oracle import compare, model_of, session, sqnr_db, weights

QUIET = 0.02
"""What the inputs of the largest weights are of the others."""


def _model(bias: float = 1.0) -> onnx.ModelProto:
    """A product with a few weights eight times the others, of inputs that are nearly always zero."""
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v"], ["y"], name="second"),
    ]
    w = weights(1, 32, 24) / 4
    w[::8] *= 8
    constants = {"w": w, "b": bias * weights(2, 24), "v": weights(3, 24, 10) / 4}
    return model_of(nodes, {"x": (1, 32)}, {"y": (1, 10)}, constants)


def _input(seed: int) -> np.ndarray:
    x = weights(1000 + seed, 1, 32)
    x[:, ::8] *= QUIET
    return np.asarray(x)


def _sums() -> tuple[InputSums, np.ndarray, np.ndarray]:
    program = program_of(_model())
    node: Node = program.nodes[0]
    weight = program.constants["w"]
    sums = InputSums(node, weight, 64)
    inputs = np.concatenate([_input(i) for i in range(64)])
    for row in inputs:
        sums.add(row[None])
    return sums, weight, inputs


def test_the_best_of_all_scales() -> None:
    sums, weight, inputs = _sums()
    largest = float(np.abs(weight).max()) / 127

    def lost(scale: float) -> float:
        error = np.clip(np.rint(weight / scale), -127, 127) * scale - weight
        return float(np.sum(np.mean(inputs**2, 0)[:, None] * error**2))

    best = min(lost(largest * share) for share in np.linspace(0.3, 1, 701))
    found = sums.narrowed(largest, 0.0)
    assert found < 0.8 * largest
    assert lost(found) < 1.1 * best
    assert lost(found) < 0.7 * lost(largest)
    assert sums.narrowed(largest, 0.9) > 0.899 * largest  # a bias that needs as much


def _converted(folder: Path, bias: float, *without: str) -> Conversion:
    path = folder / "model.onnx"
    onnx.save(_model(bias), path)
    others = ("equalise-channels", "split-channels", "shift-zeros", "fold-inputs")
    samples = [{"x": _input(i)} for i in range(90)]
    return convert(path, calibration=samples, without=(*others, *without))


def test_a_network_gains_on_samples_that_it_never_saw(tmp_path: Path) -> None:
    narrow, plain = _converted(tmp_path, 1.0), _converted(tmp_path, 1.0, "narrow-weights")
    assert any("in narrow ranges" in note for note in narrow.notes)
    assert not any("narrow" in line for line in (*plain.notes, *plain.rewrites))
    assert any("in narrow ranges" in line for line in narrow.rewrites)

    def unseen(conversion: Conversion) -> float:
        models = (conversion.float_model, conversion.quantized_model)
        runs = [
            np.stack([session(m).run(None, {"x": _input(500 + i)})[0] for i in range(50)]) for m in models
        ]
        return sqnr_db(*runs)

    assert unseen(narrow) > unseen(plain) + 1
    assert compare(narrow, np.random.default_rng(0)).lsb_to_quantized <= 1.01


@pytest.mark.parametrize("bias", [3e4, 1e6])
def test_a_large_bias_keeps_its_room(bias: float, tmp_path: Path) -> None:
    conversion = _converted(tmp_path, bias)
    exact = _model(bias).graph.initializer[1]
    layer = conversion.graph.tensor_core_layers[0]
    tensors = conversion.graph.tensors
    assert layer.bias is not None
    unit = tensors[layer.input.tensor].scale * tensors[layer.weight.tensor].scale
    found = np.asarray(tensors[layer.bias].data, np.float64).reshape(-1)[:24] * unit
    np.testing.assert_allclose(found, onnx.numpy_helper.to_array(exact), rtol=0.01, atol=bias * 1e-3)
