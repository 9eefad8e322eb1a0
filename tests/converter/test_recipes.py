"""What recipes of quantisation are tried, and on which samples."""

from __future__ import annotations

import numpy as np
import pytest

from fadiff.converter.ir.program import program_of
from fadiff.converter.ir.scale import NOTHING, Prescribed
from fadiff.converter.plan.plan import plan
from fadiff.converter.quantise.choose import Calibration, Recipe, gains
from fadiff.converter.quantise.scales import stored_values
from fadiff.converter.rewrites import CHOOSE_RANGES, CORRECT_BIASES, ROUND_WEIGHTS, SHIFT_ZEROS
from tests.converter.programs import model


def _calibration(
    count: int,
    body: str = "a = MatMul (x, w) b = Add (a, c) r = Relu (b) y = MatMul (r, v)",
    given: Prescribed = NOTHING,
    without: tuple[str, ...] = (),
    **constants: object,
) -> Calibration:
    net = model(body, **({"c": [1.0, 2, 3, 4]} | constants))
    program = program_of(net)
    steps = plan(program)
    samples = [{"x": np.full((2, 4), i + 1, np.float32)} for i in range(count)]
    values = stored_values(program, steps)
    return Calibration("m", program, steps, values, given, samples, without)


def _numbers(samples: object) -> list[int]:
    return [int(sample["x"][0, 0]) - 1 for sample in samples]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("count", "stride"), [(7, 1), (256, 1), (257, 2), (512, 2), (1000, 4)])
def test_samples_to_try_on_are_from_all_over_them(count: int, stride: int) -> None:
    few = _numbers(_calibration(count)._few)
    assert few == list(range(0, count, stride)) and len(few) <= 256


def test_large_networks_are_tried_on_six_samples() -> None:
    """A product of 2 * 4 * 2**27 multiplications: 6e9 are done in six samples."""
    calibration = _calibration(42)
    program = calibration.program
    wide = {name: (2, 2**28) if name in ("a", "b", "r") else shape for name, shape in program.shapes.items()}
    wide |= {"w": (4, 2**28), "v": (2**28, 4)}
    object.__setattr__(program, "shapes", wide)
    assert _numbers(calibration._few) == list(range(0, 42, 7))


def test_each_fold_is_judged_on_every_third_sample() -> None:
    calibration = _calibration(8)
    held = [_numbers(samples) for _, samples in calibration.folds]
    assert held == [[0, 3, 6], [1, 4, 7], [2, 5]]
    for fold, ((fitting, _), own) in enumerate(zip(calibration.folds, held, strict=True)):
        assert _numbers(fitting.samples) == [i for i in range(8) if i not in own]
        assert fitting.whole is not None and fitting.whole[1] == fold
    assert _numbers(calibration.held_out) == held[-1]
    assert _numbers(calibration.fitting.samples) == [0, 1, 3, 4, 6, 7]


@pytest.mark.parametrize("count", [2, 3])
def test_three_samples_can_be_judged(count: int) -> None:
    assert _calibration(count).is_judged == (count == 3)
    assert not _calibration(count, given=Prescribed({"x": 1.0})).is_judged


_RANGES, _BIASES, _ROUNDS, _ZEROS = (
    {"ranges": "least squares"},
    {"biases": True},
    {"rounds": True},
    {"zeros": True},
)


@pytest.mark.parametrize(
    ("without", "wanted"),
    [
        ((), [_ZEROS, _RANGES, _BIASES, _RANGES, _ROUNDS]),
        ((SHIFT_ZEROS,), [_RANGES, _BIASES, _RANGES, _ROUNDS]),
        ((CHOOSE_RANGES,), [_ZEROS, _BIASES, _ROUNDS]),
        ((CORRECT_BIASES,), [_ZEROS, _RANGES, _ROUNDS]),
        ((ROUND_WEIGHTS,), [_ZEROS, _RANGES, _BIASES, _RANGES]),
    ],
)
def test_every_way_is_tried_that_is_not_left_out(without: tuple[str, ...], wanted: list[object]) -> None:
    calibration = _calibration(3, without=without)
    assert calibration._changes() == wanted
    assert bool(calibration._seen.means) == (_BIASES in wanted)  # (looked at for these alone)


def test_only_what_can_change_something_is_tried() -> None:
    assert _calibration(3, "a = MatMul (x, w) y = Add (a, x)")._changes() == [_RANGES, _ROUNDS]


@pytest.mark.parametrize(
    ("scores", "is_gain"),
    [
        ((0.2, 0.2, 0.2), True),
        ((0.19, 0.19, 0.19), False),
        ((0.5, 0.5, -0.1), True),  # 0.3 on average, folds differ by 0.28
        ((0.8, 0.0, -0.1), False),  # 0.23, by 0.4
        ((0.59, 0.01, 0.01), True),
        ((0.6, 0.6, 0.0), True),
        ((0.6, 0.0, 0.0), False),
    ],
)
def test_a_change_wins_on_every_fold_or_by_more_than_they_differ(
    scores: tuple[float, ...], is_gain: bool
) -> None:
    assert gains(scores, (0.0, 0.0, 0.0)) == is_gain


def test_recipes_in_words() -> None:
    assert str(Recipe()) == "ranges by min-max"
    every = Recipe("least squares", biases=True, rounds=True, zeros=True)
    assert (
        str(every) == "ranges by least squares, biases layer by layer, weights rounded jointly, zero points"
    )
