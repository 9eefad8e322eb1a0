"""The rtl latency model against RTL cycles measured on FireSim (the data published with DOSA).

    python -m benchmarks firesim --train firesim_train.csv [--test firesim_test.csv ...] [--out FOLDER]

Trains on the training rows with whole layer shapes left out (cross-validation), and applies the
model fitted on all of them to the test rows.  Beside it: DOSA's analytical latency of the same rows.

Harder than leaving shapes out, and closer to rows measured by somebody else: all of one array size,
the largest layers, or the best mappings of every layer are left out of the fit and predicted.

A test file needs the layer (prob.*), mapping.mapping and target.gemmini_cycle.  Rows that cannot be
scored are named; the others are scored, and the exit code is 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import add_out, command
from benchmarks.figure import figure
from benchmarks.firesim_rows import Floats, Measurements, Unread, read_measurements
from benchmarks.fit_rtl import cross_validate, fit, predict, scores
from costmodel.latency.rtl import calibration

FEWEST = 200
"""Training rows from which on a part can be left out."""


def main(arguments: list[str]) -> int:
    """Print the tables and the line of figures; 1 if a row has no finite score."""
    parser = command("firesim", __doc__)
    parser.add_argument("--train", type=Path, required=True, help="FireSim CSV to fit")
    parser.add_argument("--test", type=Path, nargs="+", help="FireSim CSVs to predict, pooled")
    parser.add_argument("--side", type=int, help="array of the test rows, if their file does not name it")
    add_out(parser)
    options = parser.parse_args(arguments)
    test: Measurements | None = None
    unread: tuple[Unread, ...] = ()
    train, in_train = read_measurements([options.train])
    if options.test is not None:
        test, unread = read_measurements(options.test, options.side)
    unread = (*in_train, *unread)
    for row in unread:
        print(f"not scored: {row}", file=sys.stderr)
    left_out = cross_validate(train)
    panels = [("train, layer shapes left out", train, left_out)]
    figures = {f"cv_{name}": scores(left_out, train.cycles)[name] for name in ("spearman", "mape")}
    fitted = fit(train)
    _compare_with_committed(train, predict(train, fitted))
    if test is not None:
        predicted = predict(test, fitted)
        panels.append(("test, fitted on train", test, predicted))
        found = scores(predicted, test.cycles)
        figures |= {f"test_{name}": found[name] for name in ("spearman", "tau", "mape")}
    for title, data, predicted in panels:
        _table(title, data, predicted)
    _harder_splits(train)
    _plot(panels, options.out / "firesim.png")
    if test is None:
        print("no --test given: cross-validation on the training rows only")
    print(" ".join(f"{name}={value:.4f}" for name, value in figures.items()))
    scored = all(np.isfinite(predicted).all() for _, _, predicted in panels)
    return 0 if scored and not unread else 1


def _compare_with_committed(train: Measurements, predicted: Floats) -> None:
    """Say how far the coefficients in the repository are from a fresh fit."""
    committed = predict(train, calibration()[0])
    apart = np.abs(np.log(committed / predicted)).max()
    print(f"committed coefficients: predictions within {100 * np.expm1(apart):.2g} % of a fresh fit\n")


def _table(title: str, data: Measurements, predicted: Floats) -> None:
    print(f"{title} ({len(data.cycles)} rows, {len(set(data.shapes))} shapes)")
    print(f"  {'':<22}{'rows':>6}{'Spearman':>10}{'tau':>8}{'MAPE %':>9}{'median %':>10}")
    everything = np.ones(len(data.cycles), dtype=bool)
    _row("rtl model", data, predicted, everything)
    _row("convolution", data, predicted, ~data.is_matmul)
    _row("matrix product", data, predicted, data.is_matmul)
    for side in sorted(set(data.side.tolist())):
        _row(f"{side} x {side} array", data, predicted, data.side == side)
    _row("DOSA's analytical", data, data.timeloop_cycles, np.isfinite(data.timeloop_cycles))
    print()


def _harder_splits(train: Measurements) -> None:
    """Rows unlike those of the fit: how far the model extrapolates."""
    if len(train.cycles) < FEWEST:
        print(f"fewer than {FEWEST} training rows: nothing else is left out\n")
        return
    work = np.array([float(np.prod(list(shape.dims))) for shape in train.shapes])
    splits = [
        (f"{side} x {side} array left out", train.side == side) for side in sorted(set(train.side.tolist()))
    ]
    splits.append(("largest fifth of layers", work >= np.quantile(np.unique(work), 0.8)))
    splits.append(("smallest fifth of layers", work <= np.quantile(np.unique(work), 0.2)))
    splits.append(("best quarter of mappings", _best_mappings(train)))
    print("train, left out of the fit and predicted")
    print(f"  {'':<26}{'rows':>6}{'Spearman':>10}{'tau':>8}{'MAPE %':>9}{'median %':>10}")
    for title, rows in splits:
        if 3 <= rows.sum() < len(rows):
            predicted = np.full(len(rows), np.nan)
            predicted[rows] = predict(train.take(rows), fit(train.take(~rows)))
            _row(title, train, predicted, rows, width=26)
    print()


def _best_mappings(data: Measurements) -> NDArray[np.bool_]:
    """The fastest quarter of the rows of every layer on every array: what an optimiser would propose."""
    best = np.zeros(len(data.cycles), dtype=bool)
    layers = np.array([hash((shape, side)) for shape, side in zip(data.shapes, data.side, strict=True)])
    for layer in np.unique(layers):
        rows = np.flatnonzero(layers == layer)
        best[rows[np.argsort(data.cycles[rows])[: max(1, len(rows) // 4)]]] = True
    return best


def _row(name: str, data: Measurements, predicted: Floats, rows: NDArray[np.bool_], width: int = 22) -> None:
    if rows.sum() < 3:
        return
    found = scores(predicted[rows], data.cycles[rows])
    print(
        f"  {name:<{width}}{rows.sum():>6}{found['spearman']:>10.4f}{found['tau']:>8.4f}"
        f"{found['mape']:>9.1f}{found['median_ape']:>10.1f}"
    )


def _plot(panels: list[tuple[str, Measurements, Floats]], path: Path) -> None:
    with figure(path, (5.5 * len(panels), 5), columns=len(panels)) as (_, (axes,)):
        for ax, (title, data, predicted) in zip(axes, panels, strict=True):
            for name, rows in (("convolution", ~data.is_matmul), ("matrix product", data.is_matmul)):
                ax.scatter(data.cycles[rows], predicted[rows], s=5, alpha=0.5, label=name)
            limits = [float(data.cycles.min()), float(data.cycles.max())]
            ax.plot(limits, limits, color="black", linewidth=0.8)
            ax.set(xscale="log", yscale="log", xlabel="RTL cycles (FireSim)", ylabel="predicted", title=title)
            ax.legend()
    print(f"figure: {path}")
