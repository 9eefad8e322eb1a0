"""Fit the clock model to the programs timed on RTL and write costmodel/latency/clock_coefficients.json.

    python -m benchmarks fit_clock
    python -m benchmarks fit_clock --keep    # its error on programs that were measured since
    python -m benchmarks fit_clock --held-out    # only its error on programs that it is never fitted to
    python -m benchmarks fit_clock --target gemmini-large    # how coefficients grow with the array's side

Robust least squares on the logarithm of predicted over measured cycles, warm runs, of programs without
operators of the core, whose prices the target has (their C is newer than these runs).  The validation figures
are of the same programs, in five folds that leave out whole programs, those of equal shapes together: how a
program of unseen layers is predicted.  Held-out programs (benchmarks/rtl_programs.py) are of kinds that were
chosen because the clock was off, before any of them was timed: no fit sees them.  Of each its newest form
counts, and none of a kind of which `python -m benchmarks fit_issue` has layers; whole networks stand apart.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import spearmanr

from benchmarks.command import command
from benchmarks.fit_issue import timed_layers
from benchmarks.rtl import (
    DEFAULT,
    EARLIER,
    FITTED_SOC,
    MEASURED,
    OTHER_SOC,
    TIMED,
    converted,
    read_rows,
    use_of,
)
from benchmarks.rtl_programs import kind_of
from benchmarks.rtl_schedules import SCHEDULES, read_decisions, recalled
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.latency.clock import (
    COEFFICIENTS,
    FITTED_SIDE,
    ClockCoefficients,
    LayerCounts,
    at_side,
    clock,
    clock_of,
    side_factors,
)
from fadiff.costmodel.schedule.clock import ProgramCounts, network_cycles, program_counts
from fadiff.costmodel.schedule.serialize import ScheduleFileError
from fadiff.costmodel.target.core import Core
from fadiff.costmodel.target.target import load_target

START = ClockCoefficients(
    visit=200,
    command=20,
    loop=80,
    short_strip=2 / 5 * FITTED_SIDE,
    new_weights=FITTED_SIDE,
    request=1,
    pixel_copy=1,
    byte=1 / 16,
    miss=5.5,
    store_row=1,
    added_byte=0.2,
    overlap=2,
)
"""Where the search starts: cycles of single instructions and loops, timed on their own.

`miss` stays: the programs hardly miss.  It is that of whole networks on two SoCs (docs/latency-model.md).  So
do cycles of the array: a result passes two sides of it, five at a time, new weights one."""
KNOWN = ("miss", "short_strip", "new_weights")
"""Coefficients that stay where they start."""
SCALE = 0.1
"""Relative error at which the loss turns from quadratic to linear."""
PULL = 0.03
"""Residual of a coefficient that is e times where it starts: one that no program shows stays there."""
FOLDS = 5
WITH_SIDE = ("request", "visit", "byte", "store_row")
"""Coefficients that a wider array changes by factors to find,"""
KNOWN_FACTORS = {"short_strip": 2.0, "new_weights": 2.0}
"""and those that grow with its side."""
FACTOR_PULL = 0.1
"""Residual of a factor of e."""

FORMS = (EARLIER, "core", DEFAULT)
"""Of a program, the one that counts most last."""
WHOLE = MEASURED.parent / "whole_networks" / MEASURED.name

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """One program and its warm cycles."""

    program: str
    counts: ProgramCounts
    core: Core
    cycles: float
    form: str = DEFAULT

    @property
    def on_array(self) -> bool:
        """Whether the core has no operator of its own to run."""
        return all(
            isinstance(work, LayerCounts) or work.operator == "add" or not work.elements
            for work in self.counts.values()
        )


def samples(measured: Path, target: str, use: str = "fitted", soc: str = FITTED_SOC) -> list[Sample]:
    """Every program of a use that was measured on a target, with the schedule that it had then."""
    found, decisions = [], read_decisions(measured.with_name(SCHEDULES.name))
    for row in read_rows(measured):
        place = (row.soc, row.target, use_of(row.program))
        if row.decision in decisions and place == (soc, target, use):
            with tempfile.TemporaryDirectory() as scratch:
                conversion, _ = converted(row.program, load_target(row.target), Path(scratch))
            try:
                schedule = recalled(decisions[row.decision], conversion.graph, load_target(row.target))
            except (ScheduleError, ScheduleFileError) as error:
                print(f"left out: {row.program}: {error}", file=sys.stderr)
            else:
                counts = program_counts(schedule)
                found.append(Sample(row.program, counts, schedule.target.core, float(row.warm), row.form))
    return found


def fit(data: Sequence[Sample]) -> ClockCoefficients:
    """Coefficients for these programs, which the array runs alone."""
    measured = np.array([sample.cycles for sample in data])

    def residual(logarithms: Floats) -> Floats:
        off = np.log(predict(data, _coefficients(logarithms)) / measured)
        return np.concatenate([off, PULL * (logarithms - start)])

    start = np.log([getattr(START, field.name) for field in fields(START)])
    bounds = (start - np.log(5), start + np.log(5))  # each has a physical meaning
    return _coefficients(least_squares(residual, start, bounds=bounds, loss="soft_l1", f_scale=SCALE).x)


def fit_factors(data: Sequence[Sample], side: int) -> dict[str, float]:
    """By how much the coefficients of WITH_SIDE grow for every doubling of the array's side."""
    measured, base = np.array([sample.cycles for sample in data]), clock()[0]

    def residual(logarithms: Floats) -> Floats:
        wider = at_side(base, _factors(logarithms), side)
        return np.concatenate([np.log(predict(data, wider) / measured), FACTOR_PULL * logarithms])

    start = np.zeros(len(WITH_SIDE))
    return _factors(least_squares(residual, start, loss="soft_l1", f_scale=SCALE).x)


def _factors(logarithms: Floats) -> dict[str, float]:
    found = {name: float(np.exp(value)) for name, value in zip(WITH_SIDE, logarithms, strict=True)}
    return found | KNOWN_FACTORS


def by_halves(data: Sequence[Sample], side: int) -> Floats:
    """Predictions of one half of the programs, split by shape, by factors fitted to the other."""
    predicted = np.zeros(len(data))
    halves = [zlib.crc32(_shapes(sample.program).encode()) % 2 for sample in data]
    for half in range(2):
        factors = fit_factors([sample for sample, at in zip(data, halves, strict=True) if at != half], side)
        tested = [place for place, at in enumerate(halves) if at == half]
        predicted[tested] = predict([data[place] for place in tested], at_side(clock()[0], factors, side))
    return predicted


def predict(data: Sequence[Sample], coefficients: ClockCoefficients) -> Floats:
    """Cycles of every program."""
    return np.array(
        [sum(network_cycles(sample.counts, coefficients, sample.core).values()) for sample in data]
    )


def _coefficients(logarithms: Floats) -> ClockCoefficients:
    free = ClockCoefficients(*(float(value) for value in np.exp(logarithms)))
    return replace(free, **{name: getattr(START, name) for name in KNOWN})


def _shapes(program: str) -> str:
    """A program without its activations: those of equal shapes are left out together."""
    return " ".join(word for word in program.split() if word != "r")


def cross_validate(data: Sequence[Sample]) -> Floats:
    """Predictions by fits that never saw a program of these shapes."""
    predicted = np.zeros(len(data))
    folds = [zlib.crc32(_shapes(sample.program).encode()) % FOLDS for sample in data]
    for fold in range(FOLDS):
        coefficients = fit([sample for sample, at in zip(data, folds, strict=True) if at != fold])
        left_out = [place for place, at in enumerate(folds) if at == fold]
        predicted[left_out] = predict([data[place] for place in left_out], coefficients)
    return predicted


def scores(predicted: Floats, measured: Floats) -> dict[str, float]:
    """Median error, that which nine in ten stay below, and Spearman's rank correlation."""
    error = np.abs(predicted / measured - 1)
    return {
        "median_error": round(float(np.median(error)), 4),
        "p90_error": round(float(np.quantile(error, 0.9)), 4),
        "spearman": round(float(spearmanr(predicted, measured)[0]), 4),
    }


def beside(data: Sequence[Sample], target: str) -> tuple[Floats, Floats]:
    """Cycles by the committed coefficients, and those measured; both printed."""
    predicted = predict(data, clock_of(load_target(target)))
    cycles = np.array([sample.cycles for sample in data])
    for sample, ratio in zip(data, predicted / cycles, strict=True):
        print(f"{sample.program:<42} {sample.cycles:>9,.0f} {ratio:6.2f}")
    return predicted, cycles


def held_out(measured: Path, target: str) -> dict[str, Any]:
    """What the committed coefficients say of programs that they never saw, together and by kind."""
    fitted = {kind_of(line["program"]) for line in timed_layers()}
    every = sorted(samples(measured, target, "held-out", OTHER_SOC), key=lambda one: FORMS.index(one.form))
    newest = {sample.program: sample for sample in every if kind_of(sample.program) not in fitted}
    data = list(newest.values())
    if not data:
        return {"programs": 0}
    predicted, measured_cycles = beside(data, target)
    ratios: dict[str, list[float]] = {}
    for sample, ratio in zip(data, predicted / measured_cycles, strict=True):
        ratios.setdefault(kind_of(sample.program), []).append(float(ratio))
    return {
        "programs": len(data),
        **scores(predicted, measured_cycles),
        "by_kind": {kind: [round(ratio, 3) for ratio in sorted(found)] for kind, found in ratios.items()},
    }


def networks(measured: Path, target: str) -> dict[str, Any]:
    """The same of whole networks on both SoCs, whose lines of weights the price of a miss was chosen for."""
    data = [sample for soc in TIMED for sample in samples(measured, target, "network", soc)]
    predicted, measured_cycles = beside(data, target)
    errors = np.abs(predicted / measured_cycles - 1)
    return {
        "runs": len(data),
        "median_error": round(float(np.median(errors)), 4),
        "worst": round(float(errors.max()), 4),
    }


def main(arguments: list[str]) -> int:
    """Fit (but with --keep), cross-validate, write the JSON."""
    parser = command("fit_clock", __doc__)
    parser.add_argument("--measured", type=Path, default=MEASURED, help=f"default: {MEASURED.name}")
    parser.add_argument("--output", type=Path, default=COEFFICIENTS, help="JSON to write")
    parser.add_argument("--target", default="gemmini-default", help="whose programs")
    parser.add_argument("--keep", action="store_true", help="coefficients stay, validation is new")
    parser.add_argument("--held-out", action="store_true", help="only the error on held-out programs is new")
    options = parser.parse_args(arguments)
    content = json.loads(COEFFICIENTS.read_text(encoding="utf-8"))
    side = load_target(options.target).side
    if options.held_out:
        validation = content["validation"][str(side)]
        found = held_out(options.measured, options.target)
        if found["programs"]:
            validation["held_out"] = found
            print(f"held_out: programs={found['programs']} median_error={found['median_error']}", end=" ")
            print(f"p90_error={found['p90_error']} spearman={found['spearman']}")
        validation["networks"] = networks(WHOLE, options.target)
        options.output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        return 0
    data = [sample for sample in samples(options.measured, options.target) if sample.on_array]
    measured = np.array([sample.cycles for sample in data])
    if side != FITTED_SIDE:
        factors, tested = side_factors() if options.keep else fit_factors(data, side), by_halves(data, side)
        fitted = at_side(clock()[0], factors, side)
        content["per_doubling"] = {name: float(f"{factor:.4g}") for name, factor in factors.items()}
    else:
        tested = cross_validate(data)
        fitted = clock()[0] if options.keep else fit(data)
        content["coefficients"] = {name: float(f"{value:.6g}") for name, value in asdict(fitted).items()}
    validation = content["validation"].setdefault(str(side), {})
    validation.setdefault("by_model", {})["clock"] = {"programs": len(data), **scores(tested, measured)}
    _finish(options.output, content, data, fitted, tested)
    return 0


def _finish(
    output: Path,
    content: dict[str, Any],
    data: Sequence[Sample],
    fitted: ClockCoefficients,
    left_out: Floats,
) -> None:
    """Write the JSON, print every program and both scores."""
    output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    measured = np.array([sample.cycles for sample in data])
    for sample, one in sorted(zip(data, left_out, strict=True), key=lambda pair: pair[1] / pair[0].cycles):
        print(f"{sample.program:<42} {sample.cycles:>9,.0f} {one / sample.cycles:6.2f}")
    for name, predicted in (("written", predict(data, fitted)), ("left_out", left_out)):
        found = scores(predicted, measured)
        print(f"{name}: programs={len(data)} " + " ".join(f"{key}={value}" for key, value in found.items()))
