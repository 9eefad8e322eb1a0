"""Model inputs from .npz files: one array per input, samples along a new first axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fadiff.converter.errors import ModelError
from fadiff.converter.printable import printable
from fadiff.converter.read.npz import read_arrays

Wanted = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Shape and element type of each model input."""


Samples = Sequence[Mapping[str, np.ndarray]]
"""Calibration inputs, by name."""

Spans = Mapping[str, tuple[float, float]]
"""Smallest and largest number that a model input takes, as far as the file tells."""


def random_input(
    generator: np.random.Generator,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    span: tuple[float, float] | None = None,
) -> np.ndarray:
    """Floats are standard normal, where a span is known stretched to it (3 deviations either way, then cut);
    integers are 0 or 1 (valid for masks and for any table of indices), or all of a known span."""
    if not np.issubdtype(dtype, np.floating):
        low, high = span or (0, 1)
        return generator.integers(int(low), int(high) + 1, shape).astype(dtype)
    numbers = generator.standard_normal(shape)
    if span is not None:
        low, high = span
        numbers = np.clip((low + high) / 2 + (high - low) / 6 * numbers, low, high)
    return numbers.astype(dtype)


def read_inputs(path: Path, what: str, wanted: Wanted) -> dict[str, np.ndarray]:
    """Arrays [samples, *shape], as many samples of each input.

    An array of the input's own shape is one sample; where the input's batch is 1 an array
    [samples, ...] without the batch axis is taken too.

    Args:
        path: the file.
        what: what it holds, for messages ("calibration data").
        wanted: the inputs.

    Raises:
        ModelError: unreadable file, missing input, a shape that does not fit, or no finite numbers.
    """
    arrays, there = read_arrays(path, what, wanted)
    stacked = {}
    for name, (shape, dtype) in wanted.items():
        if name not in arrays:
            found = ", ".join(map(printable, sorted(there))) or "none"
            raise ModelError(f"{path}: no array named {name!r}, which the model reads; it has {found}")
        array = arrays[name]
        if array.shape == shape:
            array = array[None]
        elif array.ndim == len(shape) and shape[:1] == (1,) and array.shape[1:] == shape[1:]:
            array = array[:, None]
        if array.shape[1:] != shape:
            expected = ", ".join(map(str, ("samples", *shape)))
            raise ModelError(f"{path}: {name} has shape {arrays[name].shape}, expected ({expected})")
        if array.dtype.kind not in "biuf":
            raise ModelError(f"{path}: {name} holds {array.dtype}, expected numbers such as {dtype}")
        if not np.all(np.isfinite(array)):
            raise ModelError(f"{path}: {name} holds values that are not finite (NaN or infinity)")
        stacked[name] = array.astype(dtype)
    counts = {len(array) for array in stacked.values()}
    if len(counts) != 1:
        raise ModelError(f"{path}: the inputs have different numbers of samples: {sorted(counts)}")
    if counts == {0}:
        raise ModelError(f"{path}: holds no samples; save at least one array per input")
    return stacked
