"""Calibration data from Python: a loader of batches becomes one mapping of input name to array per sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fadiff.converter.read.inputs import MOST_BYTES
from fadiff.errors import InputError

Batch = Mapping[str, Any] | Sequence[Any] | Any
"""Arrays (or tensors) by input name, in the order of the inputs, or the only one; what comes behind the
inputs, such as labels, is passed over."""
Batches = Iterable[Batch]
Samples = list[Mapping[str, np.ndarray]]
Shape = tuple[int, int | None]
"""Number of axes of an input, and the length of the first of them as far as it is known."""
MOST_SAMPLES = 2**14
"""More are a generator without end, or a whole data set."""


def samples_of(batches: Batches, model: Path, names: Sequence[str], dims: Mapping[str, int]) -> Samples:
    """One mapping per sample; a batch of several samples of a model for one is taken apart.

    Args:
        batches: A list, a generator, a DataLoader: anything that gives batches; a mapping or an array is one
            batch.
        model: The ONNX file.
        names: Its inputs after a cut, if there is one.
        dims: Sizes of symbolic dimensions.

    Raises:
        InputError: there is no batch (a generator that was used before has none), it has too few arrays, or
            there are more than MOST_SAMPLES samples or 4 GB.
    """
    shapes = _shapes(model, dims)
    inputs = list(names) or list(shapes)
    if isinstance(batches, Mapping) or hasattr(batches, "shape"):
        batches = [batches]
    samples, nbytes = Samples(), 0
    for sample in (one for batch in batches for one in _taken_apart(_named(batch, inputs), shapes)):
        samples.append(sample)
        nbytes += sum(array.nbytes for array in sample.values())
        if len(samples) > MOST_SAMPLES or nbytes > MOST_BYTES:
            raise InputError(
                f"calibration: more than {MOST_SAMPLES:,} samples, or {MOST_BYTES:,} bytes; a hundred will do"
            )
    if not samples:
        raise InputError("calibration: no batch in it (a generator gives its batches only once)")
    return samples


def _named(batch: Batch, inputs: Sequence[str]) -> dict[str, np.ndarray]:
    if isinstance(batch, Mapping):
        return {name: _array(value) for name, value in batch.items()}
    arrays = batch if isinstance(batch, list | tuple) else [batch]
    if len(arrays) < len(inputs):
        raise InputError(
            f"calibration: a batch has {len(arrays)} arrays, the model reads {', '.join(inputs)}"
        )
    return {name: _array(value) for name, value in zip(inputs, arrays, strict=False)}


def _array(value: Any) -> np.ndarray:
    """A tensor of PyTorch, too, wherever it is and whatever gradient it has."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _taken_apart(
    batch: Mapping[str, np.ndarray], shapes: Mapping[str, Shape]
) -> Iterator[Mapping[str, np.ndarray]]:
    """Samples of the model's own shapes, where the batch has a further axis or is so many times longer."""
    parts = {name: _parts(array, shapes[name]) for name, array in batch.items() if name in shapes}
    counts = {len(part) for part in parts.values()}
    if counts == {1}:  # (inputs that the file does not have may be among the rest: positions of a cache)
        yield {name: parts[name][0] if name in parts else array for name, array in batch.items()}
        return
    if len(counts) != 1:  # (the converter says what is wrong with it)
        yield batch
        return
    for i in range(counts.pop()):
        yield {name: part[i] for name, part in parts.items()}


def _parts(array: np.ndarray, shape: Shape) -> Sequence[np.ndarray]:
    rank, first = shape
    if array.ndim == rank + 1:
        return list(array)
    if array.ndim == rank and first and len(array) % first == 0:
        return np.split(array, len(array) // first)
    return [array]


def _shapes(model: Path, dims: Mapping[str, int]) -> dict[str, Shape]:
    """The inputs of a file."""
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    found: dict[str, Shape] = {}
    for value in graph.input:
        if value.name not in constants:
            axes = value.type.tensor_type.shape.dim
            found[value.name] = (
                len(axes),
                (axes[0].dim_value or dims.get(axes[0].dim_param)) if axes else None,
            )
    return found
