"""Energy per access as a function of capacity: a small MLP fitted to a user's table.

The table is a CSV with the columns `memory` (scratchpad, accumulator or tile-buffer), `capacity_kb`
and `pj`: picojoules per byte of a scratchpad or tile buffer of that size, or per word of *one
column's* slice of the accumulator.  A memory without rows keeps DOSA's closed form.
"""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import numpy as np

from fadiff.costmodel.target.record import Record
from fadiff.costmodel.target.text_file import FormatError, read_text

HIDDEN = 4
_MOST_BYTES = 2**20
MEMORIES = ("scratchpad", "accumulator", "tile-buffer")


class EpaError(ValueError):
    """A table that cannot be used; the message names file, line and remedy."""


class CapacityCurve(Record):
    """ln pJ = bias + slope x + sum_i output_i tanh(weight_i x + offset_i), x = (ln KB - center) / scale."""

    center: float
    scale: float
    bias: float
    slope: float
    weight: tuple[float, ...]
    offset: tuple[float, ...]
    output: tuple[float, ...]

    def __call__(self, capacity_kb: float) -> float:
        """Picojoules per access at a capacity in KB."""
        x = (math.log(capacity_kb) - self.center) / self.scale
        hidden = zip(self.weight, self.offset, self.output, strict=True)
        terms = sum(o * math.tanh(w * x + b) for w, b, o in hidden)
        return math.exp(self.bias + self.slope * x + terms)


class Epa(Record):
    """Fitted curves; None means the closed form."""

    scratchpad: CapacityCurve | None = None
    accumulator: CapacityCurve | None = None
    tile_buffer: CapacityCurve | None = None


def fit_table(path: Path) -> Epa:
    """Fit one curve per memory of the table.

    Raises:
        EpaError: unreadable file, missing column, bad number, unknown memory, or fewer than three
            capacities of a memory.
    """
    points: dict[str, list[tuple[float, float]]] = {}
    try:
        with io.StringIO(read_text(path, _MOST_BYTES), newline="") as file:
            for line, row in enumerate(csv.DictReader(file), start=2):
                try:
                    memory, kb, pj = row["memory"].strip(), float(row["capacity_kb"]), float(row["pj"])
                except KeyError as error:
                    raise EpaError(
                        f"{path}: no column {error.args[0]}: the columns are memory, capacity_kb and pj"
                    ) from None
                except (TypeError, ValueError, AttributeError):
                    raise EpaError(f"{path}:{line}: capacity_kb and pj must be numbers") from None
                if memory not in MEMORIES:
                    raise EpaError(f"{path}:{line}: memory {memory!r} is none of {', '.join(MEMORIES)}")
                if not (kb > 0 and pj > 0 and math.isfinite(kb) and math.isfinite(pj)):
                    raise EpaError(f"{path}:{line}: capacity_kb and pj must be positive")
                points.setdefault(memory, []).append((kb, pj))
    except OSError as error:
        raise EpaError(f"{path}: cannot read the table: {error.strerror}") from None
    except (FormatError, csv.Error) as error:
        raise EpaError(f"{path}: cannot read the table: {error}") from None
    if not points:
        raise EpaError(f"{path}: the table has no rows")
    for memory, rows in points.items():
        if len({kb for kb, _ in rows}) < 3:
            raise EpaError(f"{path}: {memory} needs at least three capacities")
    return Epa(**{memory.replace("-", "_"): fit_curve(rows) for memory, rows in points.items()})


def fit_curve(points: list[tuple[float, float]]) -> CapacityCurve:
    """Least squares in log space from a fixed start, mildly regularised."""
    from scipy.optimize import least_squares

    x, y = np.log(np.array(points)).T
    center, scale = float(x.mean()), float(x.std())
    x = (x - center) / scale

    def residuals(free: np.ndarray) -> np.ndarray:
        weight, offset, output = free[2:].reshape(3, HIDDEN)
        hidden = np.tanh(x[:, None] * weight + offset) @ output
        missed = free[0] + free[1] * x + hidden - y
        return np.concatenate([missed / math.sqrt(len(x)), math.sqrt(1e-7) * free[2:]])

    start = np.random.default_rng(0).standard_normal(2 + 3 * HIDDEN) * 0.5
    bias, slope, *rest = least_squares(residuals, start).x.tolist()
    weight, offset, output = (tuple(rest[i : i + HIDDEN]) for i in range(0, 3 * HIDDEN, HIDDEN))
    return CapacityCurve(
        center=center, scale=scale, bias=bias, slope=slope, weight=weight, offset=offset, output=output
    )
