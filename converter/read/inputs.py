"""Model inputs from .npz files: one array per input, samples along a new first axis.

Arrays are read one by one: only those that are asked for, none of objects, none without end.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from fadiff.converter.errors import ModelError
from fadiff.converter.names import printable

MOST_BYTES = 2**32
_SUFFIX = ".npy"
_WRITE = "write it with numpy.savez(file, NAME=array)"


def read_arrays(
    path: Path, what: str, names: Collection[str]
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Those of the named arrays that the file has, and the names of all that it has.

    Args:
        path: the .npz file.
        what: what it holds, for messages ("calibration data").
        names: the arrays wanted.

    Raises:
        ModelError: the file cannot be read, is no .npz file, or a wanted array is none of numbers, damaged,
            or larger than 4 GB.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            found = tuple(n.removesuffix(_SUFFIX) for n in archive.namelist() if n.endswith(_SUFFIX))
            arrays = {}
            for name in (name for name in names if name in found):
                with archive.open(f"{name}{_SUFFIX}") as member:
                    obstacle = _obstacle(member)
                if obstacle:
                    raise ModelError(f"{path}: {printable(name)} {obstacle}; {_WRITE}")
                with archive.open(f"{name}{_SUFFIX}") as member:
                    arrays[name] = np.asarray(npy.read_array(member, allow_pickle=False))
            return arrays, found
    except ModelError:
        raise
    except OSError as error:
        reason = error.strerror or f"damaged; {_WRITE}"
        raise ModelError(f"{path}: cannot read {what}: {reason}") from error
    except Exception as error:  # zipfile, zlib and numpy have ten kinds of errors for what is damaged
        if _is_array(path):
            raise ModelError(
                f"{path}: a single array (.npy), not an .npz file; save {what} with "
                "numpy.savez(file, NAME=array)"
            ) from error
        raise ModelError(f"{path}: cannot read {what}: not an .npz file; {_WRITE}") from error


def _obstacle(member: IO[bytes]) -> str:
    """Why an array is not read, by its header; nothing if it can be."""
    version = npy.read_magic(member)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    header: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(member)
    shape, _, dtype = header
    if dtype.hasobject:
        return "is an array of Python objects, not of numbers"
    nbytes = math.prod(shape) * dtype.itemsize
    return f"has {nbytes:,} bytes, more than {MOST_BYTES:,}" if nbytes > MOST_BYTES else ""


def _is_array(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX


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
        stacked[name] = _numbers(str(path), name, array, dtype)
        if not np.all(np.isfinite(array)):
            raise ModelError(f"{path}: {name} holds values that are not finite (NaN or infinity)")
    counts = {len(array) for array in stacked.values()}
    if len(counts) != 1:
        raise ModelError(f"{path}: the inputs have different numbers of samples: {sorted(counts)}")
    if counts == {0}:
        raise ModelError(f"{path}: holds no samples; save at least one array per input")
    return stacked


def as_sample(where: str, name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """One sample of an input, whose batch of 1 may be left out; `where`: for messages.

    Raises:
        ModelError: it has another shape, or holds no numbers (infinity is one, in masks).
    """
    array = np.asarray(value)
    if shape[:1] == (1,) and array.shape == shape[1:]:
        array = array[None]
    if array.shape != shape:
        raise ModelError(f"{where}: {name} has shape {array.shape} in a calibration sample, expected {shape}")
    numbers = _numbers(where, name, array, dtype)
    if np.any(np.isnan(numbers)):
        raise ModelError(f"{where}: {name} holds NaN in a calibration sample")
    return numbers


def _numbers(where: str, name: str, array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    if array.dtype.kind not in "biuf":
        raise ModelError(f"{where}: {name} holds {array.dtype}, expected numbers such as {dtype}")
    return array.astype(dtype)
