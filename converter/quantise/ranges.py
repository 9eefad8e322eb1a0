"""How far int8 reaches: the largest magnitude that 127 stands for, from what calibration saw.

Larger magnitudes saturate.  A narrow range makes finer steps for all others, and which counts for more
only the network can tell: `choose.py` asks it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fadiff.converter.quantise.observe import BINS, Observed
from fadiff.converter.quantise.scales import INT8_MAX

Range = tuple[float, float]
_NARROWEST = 0.05
_CANDIDATES = 96
_LEVELS = 128
_EPSILON = 1e-12


def min_max(observed: Observed) -> float:
    """The largest magnitude: nothing saturates."""
    return observed.largest


def least_squares(observed: Observed) -> float:
    """The bound with the least mean squared error, of steps and of saturation together."""
    return _least_squares(observed, observed.counts)


def least_squares_read(observed: Observed) -> float:
    """The same, errors multiplied as the readers of the value do (converter/quantise/importance.py)."""
    return _least_squares(observed, observed.weighted)


def _least_squares(observed: Observed, weights: np.ndarray) -> float:
    centres = (np.arange(BINS) + 0.5) * (observed.top / BINS)
    used = np.flatnonzero(observed.counts)
    centres, counts = centres[used], weights[used]
    bounds = observed.largest * np.linspace(1, _NARROWEST, _CANDIDATES)
    steps = (bounds / INT8_MAX)[:, None]
    errors = np.minimum(np.rint(centres / steps), INT8_MAX) * steps - centres
    return float(bounds[np.argmin((errors**2) @ counts)])


def percentile(share: float) -> Callable[[Observed], float]:
    """The bound that all but `share` of the magnitudes (zeros left out) stay below."""

    def bound(observed: Observed) -> float:
        above = observed.counts.sum() - np.cumsum(observed.counts)
        last = int(np.argmax(above <= share * observed.counts.sum()))
        return float((last + 1) * observed.top / BINS)

    return bound


def entropy(observed: Observed) -> float:
    """The bound that loses least information: the relative entropy of the steps is smallest.

    Source: Migacz, "8-bit Inference with TensorRT", 2017.
    """
    counts = observed.counts.astype(np.float64)
    last = int(np.flatnonzero(counts)[-1]) + 1
    best, bound = np.inf, last
    for width in range(_LEVELS, last + 1, max(1, (last - _LEVELS) // _CANDIDATES)):
        kept = counts[:width].copy()
        kept[-1] += counts[width:].sum()
        level = np.arange(width) * _LEVELS // width
        used = counts[:width] > 0
        sums = np.bincount(level, counts[:width], _LEVELS)
        members = np.bincount(level, used, _LEVELS)
        spread = np.where(used, (sums / np.maximum(members, 1))[level], 0.0)
        p, q = kept / kept.sum(), spread / max(spread.sum(), _EPSILON)
        there = p > 0
        divergence = float(np.sum(p[there] * np.log(p[there] / np.maximum(q[there], _EPSILON))))
        if divergence < best:
            best, bound = divergence, width
    return bound * observed.top / BINS


METHODS: Mapping[str, Callable[[Observed], float]] = {
    "min-max": min_max,
    "least squares": least_squares,
    "least squares as read": least_squares_read,
    "99.99 %": percentile(1e-4),
    "99.9 %": percentile(1e-3),
    "entropy": entropy,
}
"""The ways to find a range, by the name that users read."""


def ranges(observed: Mapping[str, Observed], method: str) -> dict[str, Range]:
    """A range for every value that was observed; one with no finite magnitude keeps its bounds."""
    alike = {id(seen): seen for seen in observed.values()}
    found = {key: _range(seen, method) for key, seen in alike.items()}
    return {name: found[id(seen)] for name, seen in observed.items()}


def _range(seen: Observed, method: str) -> Range:
    bound = METHODS[method](seen) if seen.counts.any() and np.isfinite(seen.largest) else np.inf
    return max(seen.low, -bound), min(seen.high, bound)
