"""`accuracy`: float, our integers and ONNX Runtime's int8 on labelled data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fadiff.console import Console
from fadiff.errors import InputError
from fadiff.keywords import ModelKeywords
from fadiff.model_file import model_file
from fadiff.pipeline import ModelOptions, as_target, read_model, realiser, with_keywords

if TYPE_CHECKING:
    import numpy as np

    from fadiff.converter.check.noise import Noise
    from fadiff.costmodel.target.target import Target
    from fadiff.model_file import Model

_LABELS = ("labels", "label", "y", "targets", "target")


@dataclass(frozen=True)
class Accuracy:
    """One record per contender: `contender`, the metric by its name and noise, or its `problem`."""

    model: str
    metric: str
    samples: int
    rows: list[dict[str, Any]]


def accuracy(
    model: Model,
    data: str | Path,
    *,
    metric: str | None = None,
    target: str | Path | Target = "gemmini-default",
    example_inputs: Any = None,
    console: Console | None = None,
    **plain: Unpack[ModelKeywords],
) -> Accuracy:
    """Measure a model on labelled data; calibrate on other data than you measure with.

    Args:
        model: The model.
        data: .npz file with one array per model input, samples along the first axis, and one of labels.
        metric: `fadiff.metrics.METRICS`, or FILE.py:FUNCTION(outputs, labels); by default top1 for integer
            labels, else mse.
        target: Decides what the array computes with.
        example_inputs: What a torch.nn.Module is called with to export it.
        console: Where progress goes.
        plain: Fields of `ModelOptions`.

    Raises:
        InputError: no labels, or not one for each sample.
        ModelError: the model or the data cannot be used.
    """
    from fadiff.contenders import float_outputs, our_outputs, runtime_outputs
    from fadiff.converter.check.noise import Noise
    from fadiff.metrics import metric_of
    from fadiff.search import SearchOptions
    from fadiff.vectors import make_vectors

    data = Path(data)
    console = console or Console(verbosity=-1)
    labels = _labels(data)
    name = metric or ("top1" if labels.dtype.kind in "iu" else "mse")
    measure = metric_of(name)
    with model_file(model, example_inputs) as file:
        hardware = as_target(target)
        reading = with_keywords(ModelOptions(), plain)
        conversion = read_model(file, hardware, reading, console)
        conversion = realiser(conversion, file, reading, console)(hardware, SearchOptions()).conversion
    vectors = make_vectors(conversion, data, seed=0)
    for warning in vectors.warnings:
        console.warn(warning)
    samples = vectors.onnx_inputs
    count = len(next(iter(samples.values())))
    if len(labels) != count:
        raise InputError(f"{data}: {len(labels)} labels for {count} samples")
    with console.stage(f"running {count} samples"):
        floats = float_outputs(conversion, samples, console.update)
        found: dict[str, Any] = {
            "float": floats,
            "fadiff int8": our_outputs(conversion, samples, floats, console.update),
        }
        for per_channel in (False, True):
            label = f"ONNX Runtime int8, per {'channel' if per_channel else 'tensor'}"
            try:
                found[label] = runtime_outputs(conversion, samples, per_channel, console.update)
            except Exception as error:
                found[label] = error
    rows: list[dict[str, Any]] = []
    for label, results in found.items():
        if isinstance(results, Exception):
            problem = f"{type(results).__name__}: {results}".splitlines()[0][:120]
            rows.append({"contender": label, "problem": problem})
            continue
        noise = Noise() if label == "float" else _worst(floats, results)
        rows.append({"contender": label, name: measure(results, labels), **asdict(noise)})
    return Accuracy(file.stem, name, count, rows)


def _worst(floats: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> Noise:
    """Signal to noise of the worst output."""
    import numpy as np

    from fadiff.converter.check.noise import Noise, noise_of

    each = [noise_of(a, found[name]) for name, a in floats.items() if np.issubdtype(a.dtype, np.floating)]
    return min(
        (one for one in each if one.sqnr_db is not None), key=lambda n: n.sqnr_db or 0.0, default=Noise()
    )


def _labels(data: Path) -> np.ndarray:
    from fadiff.converter.read.inputs import read_arrays

    arrays, there = read_arrays(data, "labelled data", _LABELS)
    for name in _LABELS:
        if name in arrays:
            return arrays[name]
    raise InputError(f"{data}: no array 'labels'; it has {', '.join(there)}")
