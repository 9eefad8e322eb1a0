"""Calibrate a target: the clock's coefficients fitted to layers that were measured on its hardware.

Robust least squares on the logarithm of predicted over measured cycles.  A weak pull keeps a coefficient that
the layers hardly touch where the target has it; one that they do not touch at all is not given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from fadiff.costmodel.latency.clock import (
    CORE_COEFFICIENTS,
    ClockCoefficients,
    LayerCounts,
    clock_of,
    layer_cycles,
)
from fadiff.costmodel.schedule.clock import HostCounts, program_counts
from fadiff.costmodel.schedule.measurement import Measurement
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.costmodel.target.core import Core
from fadiff.costmodel.target.engines import CalibrationError
from fadiff.costmodel.target.target import Target

MIN_LAYERS = 12
"""Layers of different work: fewer say little about ten coefficients."""
MIN_PER_OPERATOR = 3
"""Layers of one host operator from which it gets a price of its own."""
SCALE = 0.1
"""Relative error at which the loss turns from quadratic to linear."""
PULL = 0.02
"""Residual of a coefficient that is e times what the target has."""
REACH = 20.0
"""At most so many times what the target has, or so small a part of it."""
FOLDS = 5

Floats = NDArray[np.float64]
Counts = LayerCounts | HostCounts


class TooLittleData(ValueError):
    """Measurements that determine no fit; the message says what is missing."""


@dataclass(frozen=True)
class Sample:
    """What a layer makes the hardware do, and the cycles that it took."""

    counts: Counts
    cycles: float


@dataclass(frozen=True)
class Calibration:
    """A target with fitted coefficients; `after` is of layers that the fit did not see."""

    target: Target
    before: CalibrationError
    after: CalibrationError

    @property
    def helps(self) -> bool:
        """Whether layers left out are predicted better than by the target as it was."""
        return self.after.median_error < self.before.median_error


def samples_of(schedule: Schedule, measurement: Measurement) -> list[Sample]:
    """The layers of one measured program.

    Fences around every layer forbid overlap while layers are measured, so the cycles of the warm run are
    shared out in proportion to theirs.
    """
    counts = program_counts(schedule)
    total = sum(layer.measured for layer in measurement.layers)
    share = measurement.warm / total if total else 0.0
    return [
        Sample(counts[layer.name], layer.measured * share)
        for layer in measurement.layers
        if layer.measured and _works(counts[layer.name])
    ]


def _works(counts: Counts) -> bool:
    return counts.visits > 0


def calibrate(target: Target, samples: Sequence[Sample]) -> Calibration:
    """The target with coefficients fitted to these layers, and how much better it predicts.

    Raises:
        TooLittleData: fewer than MIN_LAYERS layers of different work.
    """
    works = sorted({sample.counts for sample in samples}, key=repr)
    if len(works) < MIN_LAYERS:
        raise TooLittleData(
            f"{len(works)} layers of different work, at least {MIN_LAYERS} are needed: measure larger "
            "networks, or more of them"
        )
    fold = {work: place % FOLDS for place, work in enumerate(works)}
    before = [_ratio(sample, target) for sample in samples]
    after = np.zeros(len(samples))
    for left_out in range(FOLDS):
        fitted = _fit(target, [sample for sample in samples if fold[sample.counts] != left_out])
        for place, sample in enumerate(samples):
            if fold[sample.counts] == left_out:
                after[place] = _ratio(sample, fitted)
    error = _error(after)
    fitted = _fit(target, samples)
    engines = fitted.engines.model_copy(update={"calibration": error})
    return Calibration(fitted.model_copy(update={"engines": engines}), _error(np.array(before)), error)


def _error(ratios: Floats) -> CalibrationError:
    errors = np.abs(ratios - 1)
    return CalibrationError(
        layers=len(errors),
        median_error=round(float(np.median(errors)), 4),
        p90_error=round(float(np.quantile(errors, 0.9)), 4),
    )


def _ratio(sample: Sample, target: Target) -> float:
    """Predicted over measured."""
    return _cycles(sample.counts, clock_of(target), target.core) / sample.cycles


def _cycles(counts: Counts, c: ClockCoefficients, core: Core) -> float:
    return counts.cycles(c, core) if isinstance(counts, HostCounts) else layer_cycles(counts, c)


@dataclass(frozen=True)
class _Parameters:
    """Where every coefficient stands in the vector of logarithms: the clock's, `instruction`, operators."""

    operators: tuple[str, ...]

    def start(self, target: Target) -> Floats:
        clock, core = clock_of(target), target.core
        prices = [core.host_cycles(operator, 1) for operator in self.operators]
        return np.log([*vars(clock).values(), core.instruction, *prices])

    def read(self, logarithms: Floats, core: Core) -> tuple[ClockCoefficients, Core]:
        values = [float(value) for value in np.exp(logarithms)]
        size = len(fields(ClockCoefficients))
        host = core.host.model_copy(update=dict(zip(self.operators, values[size + 1 :], strict=True)))
        return ClockCoefficients(*values[:size]), core.model_copy(
            update={"instruction": values[size], "host": host}
        )


def _fit(target: Target, samples: Sequence[Sample]) -> Target:
    times = Counter(work.operator for work in {s.counts for s in samples} if isinstance(work, HostCounts))
    parameters = _Parameters(
        tuple(sorted(op for op, count in times.items() if count >= MIN_PER_OPERATOR and op != "add"))
    )
    measured = np.array([sample.cycles for sample in samples])

    def logarithms(at: Floats) -> Floats:
        c, core = parameters.read(at, target.core)
        return np.asarray(np.log([_cycles(sample.counts, c, core) for sample in samples]))

    start = parameters.start(target)
    low, high = start - np.log(REACH), start + np.log(REACH)
    overlap = [field.name for field in fields(ClockCoefficients)].index("overlap")
    low[overlap] = min(0.0, start[overlap] - 1e-6)  # an exponent below 1 would add more than both times
    found = least_squares(
        lambda at: np.concatenate([logarithms(at) - np.log(measured), PULL * (at - start)]),
        start,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=SCALE,
    ).x
    touched = np.array(
        [np.any(logarithms(start + step) != logarithms(start)) for step in 0.1 * np.eye(len(start))]
    )
    return _with(target, parameters, np.where(touched, found, start), touched)


def _with(target: Target, parameters: _Parameters, found: Floats, touched: NDArray[np.bool_]) -> Target:
    c, core = parameters.read(found, target.core)
    given = {
        field.name: float(f"{getattr(c, field.name):.4g}")
        for field, known in zip(fields(ClockCoefficients), touched, strict=False)
        if known
    }
    of_core = {name: cycles for name, cycles in given.items() if name in CORE_COEFFICIENTS}
    rest = {name: cycles for name, cycles in given.items() if name not in CORE_COEFFICIENTS}
    prices = {op: float(f"{getattr(core.host, op):.4g}") for op in parameters.operators}
    of_core["instruction"] = float(f"{core.instruction:.4g}")
    return target.model_copy(
        update={
            "core": target.core.model_copy(update={**of_core, "host": core.host.model_copy(update=prices)}),
            "engines": target.engines.model_copy(update=rest),
        }
    )
