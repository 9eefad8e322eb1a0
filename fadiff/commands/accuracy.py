"""`fadiff accuracy`: float, our integers and ONNX Runtime's int8 on labelled data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

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

if TYPE_CHECKING:
    from fadiff.api.accuracy import Accuracy
    from fadiff.costmodel.target.target import Target
    from fadiff.pipeline import ModelOptions


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
    from fadiff.api.accuracy import accuracy as measured

    found = measured(model, data, metric=metric, target=target, console=console, **vars(reading))
    if as_json:
        shown = {"metric": found.metric, "samples": found.samples, "rows": found.rows}
        console.result(json.dumps(shown, indent=2))
    else:
        _print(console, found)


def _print(console: Console, found: Accuracy) -> None:
    from fadiff.metrics import METRICS

    percent = found.metric in METRICS and found.metric != "mse"
    console.result(f"{found.model}: {found.metric} on {found.samples} samples")
    for row in found.rows:
        if "problem" in row:
            console.result(f"  {row['contender']:<32} {row['problem']}")
            continue
        value = f"{100 * row[found.metric]:.2f} %" if percent else f"{row[found.metric]:.6g}"
        against = (
            ""
            if row["sqnr_db"] is None
            else f"   SQNR {row['sqnr_db']:.1f} dB against float (median sample {row['median_db']:.1f}, "
            f"nine in ten {row['tenth_db']:.1f}, worst {row['worst_db']:.1f})"
        )
        console.result(f"  {row['contender']:<32} {value}{against}")
