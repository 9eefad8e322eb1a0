"""What the integers of a value mean: one object from a file or calibration to the Graph."""

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
class Part:
    """So many consecutive indices of an axis, where value = scale * integer + offset."""

    count: int
    scale: float
    offset: float = 0.0


@dataclass(frozen=True)
class AxisScales:
    """Scales of an input or output, part by part along an axis of its storage.

    The layers inside know nothing of it.
    """

    axis: int
    parts: tuple[Part, ...]

    def broadcast(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Scales and offsets in float32, shaped so that they go with a stored tensor of this rank."""
        counts = [part.count for part in self.parts]
        shape = [-1 if axis == self.axis else 1 for axis in range(rank)]
        scales, offsets = (
            np.repeat(np.asarray(values, np.float32), counts).reshape(shape)
            for values in ([part.scale for part in self.parts], [part.offset for part in self.parts])
        )
        return scales, offsets


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
