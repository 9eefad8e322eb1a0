"""Exponentials of additions and multiplications against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from fadiff.converter.lower.functions import without_library

_PRIMITIVES = {
    "mul": np.multiply,
    "add": np.add,
    "sub": np.subtract,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
    "floor": np.floor,
    "less": np.less,
    "where": np.where,
}


def _run(formula: tuple[str, ...], x: np.ndarray) -> np.ndarray:
    """Every primitive in float32."""
    values: dict[str, np.ndarray] = {"x": x.astype(np.float32)}
    with np.errstate(over="ignore"):
        for place, step in enumerate(formula):
            primitive, *operands = step.split()
            read = [values[o] if o in values else np.float32(o) for o in operands]
            values[f"v{place}"] = _PRIMITIVES[primitive](*read)
    return values[f"v{len(formula) - 1}"]


def test_relative_error_of_exp() -> None:
    x = np.linspace(-68, 87, 20_001).astype(np.float32)
    np.testing.assert_allclose(_run(without_library(("exp x",)), x), np.exp(x.astype(np.float64)), rtol=3e-7)


@pytest.mark.parametrize("x", [-1e30, -100.0, 100.0, 1e30])
def test_far_out_it_is_next_to_nothing_or_large(x: float) -> None:
    (found,) = _run(without_library(("exp x",)), np.array([x]))
    assert 0 < found < 2e-30 if x < 0 else 1e38 < found < np.inf


def test_absolute_error_of_tanh() -> None:
    x = np.linspace(-50, 50, 10_001)
    np.testing.assert_allclose(_run(without_library(("tanh x",)), x), np.tanh(x), atol=3e-7)


def test_places_of_the_others_move() -> None:
    """A sigmoid: what follows the exponential reads its last step."""
    x = np.linspace(-10, 10, 101)
    sigmoid = ("mul x -1.0", "exp v0", "add 1.0 v1", "div 1.0 v2")
    np.testing.assert_allclose(_run(without_library(sigmoid), x), 1 / (1 + np.exp(-x)), rtol=1e-6)
