"""Signal to quantisation noise: of all samples together, and of each by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

_BLOCK = 1 << 20
"""Elements that are compared at a time in double precision."""
SENTINEL = 1e8
"""Numbers of this size in an output (masked scores) stand for "not here" and are no signal."""
_QUIET = 0.1
"""A sample with less of the median sample's energy is measured as if it had so much: near silence, noise of
the usual size says nothing about the model."""
_MOST_DB = 200.0
"""Signal to noise of a sample without noise; its negative, where noise is infinite."""


@dataclass(frozen=True)
class Noise:
    """Signal to noise in dB; None where there is no noise, or no signal.

    `sqnr_db` pools energies over all samples, so that a loud one counts for more than the others together;
    the others are of single samples: the median, that which nine in ten reach, the worst.
    """

    sqnr_db: float | None = None
    median_db: float | None = None
    tenth_db: float | None = None
    worst_db: float | None = None


def noise_of(expected: np.ndarray, found: np.ndarray, seen: np.ndarray | None = None) -> Noise:
    """Compare [samples, ...] element by element where `seen` [...] is true; what is no number is left out."""
    energies = np.array([_energies(a, b, seen) for a, b in zip(expected, found, strict=True)]).reshape(-1, 2)
    signal, noise = energies.T
    pooled = _decibels(signal.sum(), noise.sum())
    if pooled is None:
        return Noise()
    floor = _QUIET * float(np.median(signal[signal > 0]))
    each = [_decibels(max(s, floor), n) for s, n in energies]
    ratios = np.array([_MOST_DB if ratio is None else ratio for ratio in each])
    median, tenth, worst = (round(float(np.quantile(ratios, q)), 2) for q in (0.5, 0.1, 0.0))
    return Noise(round(pooled, 2), median, tenth, worst)


def sqnr_db(expected: np.ndarray, found: np.ndarray) -> float | None:
    """Signal to noise in decibels over elements that are numbers; None without noise or signal."""
    return _decibels(*_energies(expected, found))


def _energies(expected: np.ndarray, found: np.ndarray, seen: np.ndarray | None = None) -> tuple[float, float]:
    """Energies of the signal and of the noise."""
    signal = noise = 0.0
    for wanted, got in _blocks(expected, found, seen):
        is_number = np.abs(wanted) < SENTINEL  # (false for NaN)
        with np.errstate(invalid="ignore", over="ignore"):
            noise += float(np.sum((wanted[is_number] - got[is_number]) ** 2))
        signal += float(np.sum(wanted[is_number] ** 2))
    return signal, noise


def _blocks(
    expected: np.ndarray, found: np.ndarray, seen: np.ndarray | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    wanted, got = expected.reshape(-1), found.reshape(-1)
    if seen is not None:
        wanted, got = wanted[seen.reshape(-1)], got[seen.reshape(-1)]
    for start in range(0, wanted.size, _BLOCK):
        yield wanted[start : start + _BLOCK].astype(np.float64), got[start : start + _BLOCK]


def _decibels(signal: float, noise: float) -> float | None:
    if not np.isfinite(noise):  # (the logarithm of what was rounded to 0)
        return -_MOST_DB
    return 10 * float(np.log10(signal / noise)) if noise and signal else None
