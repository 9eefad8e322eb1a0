"""`fadiff accuracy`: float, our integers and ONNX Runtime's int8 on labelled data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fadiff.commands.options import FILE, console_options, model_argument, target_option
from fadiff.commands.reading import (
    cut_options,
    dim_option,
    keep_float_option,
    one_reading,
    quantize_options,
    state_options,
    without_option,
)
from fadiff.console import Console
from fadiff.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from fadiff.converter.check.noise import Noise
    from fadiff.costmodel.target.target import Target
    from fadiff.pipeline import ModelOptions

_LABELS = ("labels", "label", "y", "targets", "target")


@click.command()
@model_argument
@click.option(
    "--data",
    required=True,
    type=FILE,
    metavar="LABELLED.npz",
    help="One array per model input, samples along the first axis, and one of labels.",
)
@click.option(
    "--metric",
    metavar="top1|top5|mse|iou|FILE.py:FUNCTION",
    help="Of the first output, or FUNCTION(outputs, labels).  [default: top1 for integer labels, else mse]",
)
@target_option()
@quantize_options
@dim_option
@cut_options
@state_options
@keep_float_option
@without_option
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@console_options
@one_reading
def accuracy(
    console: Console,
    model: Path,
    data: Path,
    metric: str | None,
    target: Target,
    reading: ModelOptions,
    as_json: bool,
) -> None:
    """Measure MODEL.onnx on labelled data: in float, as our integers, and as ONNX Runtime's static int8.

    Calibrate on other data than you measure with.

    \b
    Example:
      fadiff accuracy net.onnx --data labelled.npz --calibration images.npz
    """
    from fadiff.contenders import float_outputs, our_outputs, runtime_outputs
    from fadiff.converter.check.noise import Noise
    from fadiff.metrics import METRICS, metric_of
    from fadiff.pipeline import read_model
    from fadiff.vectors import make_vectors

    labels = _labels(data)
    name = metric or ("top1" if labels.dtype.kind in "iu" else "mse")
    measure = metric_of(name)
    conversion = read_model(model, target, reading, console)
    vectors = make_vectors(conversion, data, seed=0)
    for warning in vectors.warnings:
        console.warn(warning)
    samples = vectors.onnx_inputs
    count = len(next(iter(samples.values())))
    if len(labels) != count:
        raise InputError(f"{data}: {len(labels)} labels for {count} samples")
    rows: list[dict[str, Any]] = []
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
    for label, results in found.items():
        if isinstance(results, Exception):
            rows.append(
                {"contender": label, "problem": f"{type(results).__name__}: {results}".splitlines()[0][:120]}
            )
            continue
        noise = Noise() if label == "float" else _worst(floats, results)
        rows.append({"contender": label, name: measure(results, labels), **asdict(noise)})
    if as_json:
        console.result(json.dumps({"metric": name, "samples": count, "rows": rows}, indent=2))
        return
    percent = name in METRICS and name != "mse"
    console.result(f"{model.stem}: {name} on {count} samples")
    for row in rows:
        if "problem" in row:
            console.result(f"  {row['contender']:<32} {row['problem']}")
            continue
        value = f"{100 * row[name]:.2f} %" if percent else f"{row[name]:.6g}"
        against = (
            ""
            if row["sqnr_db"] is None
            else f"   SQNR {row['sqnr_db']:.1f} dB against float (median sample {row['median_db']:.1f}, "
            f"nine in ten {row['tenth_db']:.1f}, worst {row['worst_db']:.1f})"
        )
        console.result(f"  {row['contender']:<32} {value}{against}")


def _worst(floats: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> Noise:
    """Signal to noise of the worst output."""
    import numpy as np

    from fadiff.converter.check.noise import Noise, noise_of

    each = [noise_of(a, found[name]) for name, a in floats.items() if np.issubdtype(a.dtype, np.floating)]
    return min(
        (one for one in each if one.sqnr_db is not None), key=lambda n: n.sqnr_db or 0.0, default=Noise()
    )


def _labels(data: Path) -> np.ndarray:
    """The labels in the file.

    Raises:
        InputError: no such file, or no array that is called labels.
    """
    from fadiff.converter.read.npz import read_arrays

    arrays, there = read_arrays(data, "labelled data", _LABELS)
    for name in _LABELS:
        if name in arrays:
            return arrays[name]
    raise InputError(f"{data}: no array 'labels'; it has {', '.join(there)}")
