"""Fit the rtl latency model to FireSim rows and write costmodel/rtl_coefficients.json.

    python -m benchmarks fit_rtl --train firesim_train.csv

Robust least squares on the logarithm of predicted over measured cycles: coefficients stay positive
because their logarithms are fitted, and a soft-L1 loss keeps a handful of rows that took up to 300
times as long as their neighbours (no model of the array explains them) from mattering.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import kendalltau, spearmanr

from benchmarks.command import command
from benchmarks.firesim_rows import Floats, Measurements, read_measurements
from costmodel.latency.rtl import COEFFICIENTS, Coefficients, cycles

START = Coefficients(
    start=1000,
    issue_conv=250,
    issue_matmul=125,
    request_conv=1,
    byte_conv=1 / 16,
    request_matmul=1,
    byte_matmul=1 / 16,
    load_side=0.1,
    store_row=1,
    l2_miss=8,
    memory_miss=8,
    store_miss=8,
    l2_bytes=512e3,
    memory_bytes=4e6,
    sharpness=4,
    overlap=4,
)
"""Where the search starts: cycles and bytes as read off the RTL facts, before any fitting."""
SCALE = 0.1
"""Relative error at which the loss turns from quadratic to linear."""
FOLDS = 5


def fit(data: Measurements) -> Coefficients:
    """Coefficients for these rows."""

    def residual(logarithms: Floats) -> Floats:
        return np.asarray(np.log(predict(data, _coefficients(logarithms)) / data.cycles))

    start = np.log([getattr(START, field.name) for field in fields(START)])
    # The training rows need about twenty steps; a handful of rows leaves coefficients open for ever.
    found = least_squares(residual, start, loss="soft_l1", f_scale=SCALE, max_nfev=100)
    return _coefficients(found.x)


def predict(data: Measurements, coefficients: Coefficients) -> Floats:
    """Cycles of every row."""
    with np.errstate(over="ignore", under="ignore"):  # a ratio beyond range is a rate of 0
        return np.asarray(cycles(data.work, coefficients))


def _coefficients(logarithms: Floats) -> Coefficients:
    return Coefficients(*(float(value) for value in np.exp(logarithms)))


def folds(data: Measurements, seed: int = 0) -> Iterator[NDArray[np.bool_]]:
    """Rows to leave out, fold by fold: all rows of a layer shape together."""
    shapes = sorted(set(data.shapes), key=repr)
    fold_of = dict(zip(shapes, np.random.default_rng(seed).permutation(len(shapes)) % FOLDS, strict=True))
    fold = np.array([fold_of[shape] for shape in data.shapes])
    for index in range(FOLDS):
        yield fold == index


def cross_validate(data: Measurements, seed: int = 0) -> Floats:
    """Predictions for every row by a model that never saw its layer shape."""
    predicted = np.zeros(len(data.cycles))
    for left_out in folds(data, seed):
        predicted[left_out] = predict(data.take(left_out), fit(data.take(~left_out)))
    return predicted


def scores(predicted: Floats, measured: Floats) -> dict[str, float]:
    """Spearman, Kendall tau, mean and median absolute percentage error."""
    error = 100 * np.abs(predicted / measured - 1)
    return {
        "spearman": float(spearmanr(predicted, measured)[0]),
        "tau": float(kendalltau(predicted, measured)[0]),
        "mape": float(error.mean()),
        "median_ape": float(np.median(error)),
    }


def main(arguments: list[str]) -> int:
    """Fit, cross-validate, write the JSON."""
    parser = command("fit_rtl", __doc__)
    parser.add_argument("--train", type=Path, required=True, help="FireSim CSV to fit")
    parser.add_argument("--output", type=Path, default=COEFFICIENTS, help="JSON to write")
    options = parser.parse_args(arguments)
    data, unread = read_measurements([options.train])
    for row in unread:
        print(f"left out: {row}", file=sys.stderr)
    coefficients = fit(data)
    left_out = scores(cross_validate(data), data.cycles)
    analytical = scores(data.timeloop_cycles, data.cycles)
    content = {
        "fitted_by": "python -m benchmarks fit_rtl",
        "coefficients": {name: float(f"{value:.6g}") for name, value in asdict(coefficients).items()},
        "validation": {
            "rows": len(data.cycles),
            "shapes": len(set(data.shapes)),
            **{f"cv_{name}": round(value, 4) for name, value in left_out.items()},
            **{f"analytical_{name}": round(value, 4) for name, value in analytical.items()},
        },
    }
    options.output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(" ".join(f"cv_{name}={value:.4f}" for name, value in left_out.items()))
    return 0
