"""Signal to noise over any number of elements, against NumPy's sums in one go."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from fadiff.converter.check import noise
from fadiff.converter.check.noise import noise_of, sqnr_db


@pytest.mark.parametrize("block", [1, 7, 60, 1 << 20])
def test_blocks_make_no_difference(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_BLOCK", block)
    generator = np.random.default_rng(0)
    expected = generator.standard_normal((4, 5, 3)).astype(np.float32)
    found = expected + 0.1 * generator.standard_normal(expected.shape).astype(np.float32)
    expected[0, 0] = -np.inf  # a masked score, and what is no number, are no signal
    expected[3, 4, 2] = np.nan
    seen = np.isfinite(expected)
    wanted = expected[seen].astype(np.float64)
    ratio = np.linalg.norm(wanted) / np.linalg.norm(wanted - found[seen])
    assert sqnr_db(expected, found) == pytest.approx(20 * np.log10(ratio))
    assert sqnr_db(expected, expected) is None


def test_large_outputs_take_little_more_memory() -> None:
    expected = np.ones((8, 1 << 20), np.float32)
    found = np.full_like(expected, 0.9)
    tracemalloc.start()
    assert sqnr_db(expected, found) == pytest.approx(20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * expected.nbytes  # (in double precision they are that large themselves)


@pytest.mark.parametrize("found", [-np.inf, np.nan])
def test_what_is_no_number_is_the_worst_there_is(found: float) -> None:
    """As the logarithm of an input that int8 makes 0."""
    figures = noise_of(np.ones((2, 3), np.float32), np.array([[1, 1, 1], [1, found, 1]], np.float32))
    assert figures.sqnr_db == -200 and figures.worst_db == -200
    assert figures.median_db == 0  # (between a sample without noise and that)
