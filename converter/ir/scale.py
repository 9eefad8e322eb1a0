"""Scale: what the integers of a value mean, one object from a file or calibration to the Graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Scale:
    """value = step * (integer - zero)."""

    step: float
    zero: int = 0


@dataclass(frozen=True)
class Prescribed:
    """Scales that a quantised file brings, or that calibration fixes for blocks of channels."""

    steps: Mapping[str, float] = field(default_factory=dict)
    """Of values and constants by name, symmetric: of those in `zeros`, too, over the same range."""
    zeros: Mapping[str, Scale] = field(default_factory=dict)
    """Of values with a zero point: better, where the array can have it."""
    channels: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Of constants with a scale for each index of an axis: they broadcast to the constant."""
    block: int = 1
    """Indices, from a multiple of it on, that share such a scale."""


NOTHING = Prescribed()
