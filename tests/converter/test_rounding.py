"""Weights rounded jointly, and what an error counts for: against exhaustive search and ONNX Runtime."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import Conversion, convert
from fadiff.converter.ir.program import program_of
from fadiff.converter.quantise.bias_correction import certain_mean
from fadiff.converter.quantise.rounding import InputSums, with_feedback
from fadiff.converter.quantise.weights import to_int8
from tests.converter.oracle import compare, model_of, session, sqnr_db, weights
from tests.converter.programs import program

MIX = weights(90, 2, 6)
"""Six channels that go together: two at a time are independent."""


def _correlated(seed: int, *pixels: int) -> np.ndarray:
    hidden = weights(seed, 2, *pixels)
    return np.asarray(np.tensordot(MIX, hidden, (0, 0))[None], np.float32)


@pytest.mark.parametrize("seed", range(5))
def test_between_the_nearest_and_the_best_of_all(seed: int) -> None:
    vectors = _correlated(seed, 40)[0].T.astype(np.float64)
    gram, row = vectors.T @ vectors, 9 * weights(seed, 1, 6).astype(np.float64)

    def lost(integers: np.ndarray) -> float:
        error = integers - row
        return float((error @ gram @ error.T)[0, 0])

    best = min(lost(np.rint(row) + np.array([off])) for off in itertools.product(range(-2, 3), repeat=6))
    assert best * 0.999 <= lost(with_feedback(row[None], gram[None])[0]) < 0.7 * lost(np.rint(row))


def test_the_mean_of_inputs_has_no_say_where_a_bias_takes_it_back() -> None:
    """As if it had been taken off before."""
    node = program("y = MatMul (x, w)").nodes[0]
    w, step = weights(1, 6, 3), np.float32(0.05)
    inputs = weights(2, 40, 2) @ MIX + np.float32([5, -3, 2, 0, 1, 4])
    of_all, of_rest = (InputSums(node, w, 1) for _ in range(2))
    of_all.add(inputs.astype(np.float64))
    of_rest.add(inputs - inputs.mean(0, dtype=np.float64))
    centred = of_all.rounded(step, centred=True)
    np.testing.assert_array_equal(centred, of_rest.rounded(step, centred=False))
    assert np.any(centred != of_all.rounded(step, centred=False))


def test_long_sums_share_errors_from_block_to_block() -> None:
    """300 inputs that are mixtures of 20: what the last blocks can take back of the first is nearly all."""
    vectors = weights(1, 400, 20).astype(np.float64) @ weights(2, 20, 300)
    gram, rows = vectors.T @ vectors, 9 * weights(3, 4, 300).astype(np.float64)
    rounded = with_feedback(rows[None], gram[None])[0]

    def lost(integers: np.ndarray) -> float:
        return float((((integers - rows) @ vectors.T) ** 2).sum())

    assert lost(rounded) < 0.15 * lost(np.rint(rows))
    assert np.abs(rounded - rows).max() < 4


def test_sums_that_no_inputs_have() -> None:
    """What subtracting a large mean leaves of float32 may have negative squares: it is damped."""
    vectors = _correlated(8, 40)[0].T.astype(np.float64)
    gram = vectors.T @ vectors
    gram -= 0.05 * gram.diagonal().mean() * np.eye(6)
    assert np.linalg.eigvalsh(gram)[0] < 0
    row = 9 * weights(9, 1, 6).astype(np.float64)
    assert np.abs(with_feedback(row[None], gram[None])[0] - row).max() < 3
    nothing = np.full((1, 6, 6), np.nan)
    np.testing.assert_array_equal(with_feedback(row[None], nothing)[0], np.rint(row))


def test_inputs_that_are_always_zero_have_no_say() -> None:
    row = np.array([[0.4, 1.6, -200.0]])
    np.testing.assert_array_equal(with_feedback(row[None], np.zeros((1, 3, 3)))[0], [[0, 2, -127]])


CONVOLUTIONS: list[dict[str, Any]] = [
    {"pads": [1, 1, 1, 1]},
    {"strides": [2, 1], "pads": [0, 2, 1, 0]},
    {"dilations": [1, 2]},
    {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"group": 2},
    {"group": 6, "pads": [1, 1, 1, 1]},
]


@pytest.mark.parametrize("attributes", CONVOLUTIONS)
def test_a_convolution_loses_less(attributes: dict[str, Any]) -> None:
    """Only where weights meet the very inputs that ONNX Runtime multiplies them with."""
    # smooth images: neighbouring pixels go together, in every channel alone, too
    images = [np.cumsum(np.cumsum(_correlated(seed, 14, 14), 2), 3) / 20 for seed in range(6)]
    weight = weights(3, 12, 6 // attributes.get("group", 1), 3, 3)
    scale = float(np.abs(weight).max()) / 20
    model = model_of(
        [helper.make_node("Conv", ["x", "w"], ["y"], **attributes)],
        {"x": (1, 6, 14, 14), "w": weight.shape},
        {"y": None},
        {},
    )
    runtime = session(model)
    node = program_of(model).nodes[0]
    sums = InputSums(node, weight, len(images))
    for image in images:
        sums.add(image)
    jointly = sums.rounded(np.float32(scale), centred=False)
    nearest = to_int8(weight, scale)
    lost = []
    for integers in (jointly, nearest):
        error = integers.astype(np.float32) * np.float32(scale) - weight
        lost.append(sum(float(np.sum(runtime.run(None, {"x": x, "w": error})[0] ** 2)) for x in images))
    assert np.abs(jointly - weight / scale).max() < 12
    assert lost[0] < 0.6 * lost[1]


def _network() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["h"]),
        helper.make_node("MatMul", ["h", "f"], ["y"]),
    ]
    w = weights(0, 16, 6, 3, 3)
    w[0] *= 30  # leaves the others few steps
    constants = {"w": w, "b": weights(1, 16), "f": weights(4, 16, 10)}
    return model_of(nodes, {"x": (1, 6, 12, 12)}, {"y": None}, constants)


def _converted(folder: Path, **options: object) -> Conversion:
    onnx.save(_network(), folder / "model.onnx")
    samples = [{"x": _correlated(100 + i, 12, 12)} for i in range(18)]
    return convert(
        folder / "model.onnx",
        calibration=samples,
        without=("equalise-channels", *options.get("without", ())),  # type: ignore[misc]
    )


def _unseen_db(conversion: Conversion) -> float:
    samples = [{"x": _correlated(500 + i, 12, 12)} for i in range(10)]
    runs = [
        np.stack([session(model).run(None, sample)[0] for sample in samples])
        for model in (conversion.float_model, conversion.quantized_model)
    ]
    return sqnr_db(*runs)


def test_a_network_gains_on_samples_that_it_never_saw(tmp_path: Path) -> None:
    """(Biases, which would make up for most of what rounding to the nearest loses, stay.)"""
    without = ("correct-biases",)
    chosen = _converted(tmp_path, without=without)
    plain = _converted(tmp_path, without=("round-weights", *without))
    assert any("weights rounded jointly" in note for note in chosen.notes)
    assert not any("jointly" in line for line in (*plain.notes, *plain.rewrites))
    assert _unseen_db(chosen) > _unseen_db(plain) + 2
    assert compare(chosen, np.random.default_rng(0)).lsb_to_quantized <= 1.01


def test_a_mean_that_samples_do_not_agree_on_is_none() -> None:
    shifts = np.array([[1.0, 1.0], [1.1, -1.0], [0.9, 1.0], [1.0, -1.0]])
    found = certain_mean(shifts)
    assert found[0] == pytest.approx(1.0, abs=0.01)
    assert found[1] == 0
    np.testing.assert_array_equal(certain_mean(shifts[:1]), shifts[0])


def test_squares_beyond_float32_are_no_warnings(tmp_path: Path) -> None:
    """Inputs of 1e20: what the sums say is judged as anything else, and nobody hears NumPy."""
    model = model_of(
        [helper.make_node("Gemm", ["x", "w"], ["y"])], {"x": (1, 8)}, {"y": None}, {"w": weights(1, 8, 4)}
    )
    onnx.save(model, tmp_path / "m.onnx")
    convert(tmp_path / "m.onnx", calibration=[{"x": np.float32(1e20) * weights(i, 1, 8)} for i in range(9)])
