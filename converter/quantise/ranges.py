"""How far int8 reaches: the largest magnitude that 127 stands for, from what calibration saw.

Larger magnitudes saturate.  A narrow range makes finer steps for all others, and which counts for more
only the network can tell: `choose.py` asks it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fadiff.converter.ir.builder import INT8_MAX
from fadiff.converter.quantise.observe import BINS, Observed

Range = tuple[float, float]
_NARROWEST = 0.05
_CANDIDATES = 96


def min_max(observed: Observed) -> float:
    """The largest magnitude: nothing saturates."""
    return observed.largest


def least_squares(observed: Observed) -> float:
    """The bound with the least mean squared error, of steps and of saturation together."""
    centres = (np.arange(BINS) + 0.5) * (observed.top / BINS)
    used = np.flatnonzero(observed.counts)
    centres, counts = centres[used], observed.counts[used]
    bounds = observed.largest * np.linspace(1, _NARROWEST, _CANDIDATES)
    steps = (bounds / INT8_MAX)[:, None]
    errors = np.minimum(np.rint(centres / steps), INT8_MAX) * steps - centres
    return float(bounds[np.argmin((errors**2) @ counts)])


METHODS: Mapping[str, Callable[[Observed], float]] = {
    "min-max": min_max,
    "least squares": least_squares,
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
