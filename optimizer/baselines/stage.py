"""What genetic, Bayesian and random search are given: genes, and what rows of them are worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Genomes = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Stage:
    """Some genes to search while the rest stays: `values` gives the log of the objective of rows [M, n]."""

    upper: Genomes
    """Largest value of every gene [n]; the least is 0."""
    start: Genomes
    """The best known row [n], always worth evaluating first."""
    values: Callable[[Genomes], Floats]
    is_over: Callable[[], bool]
    """Whether this stage's share of the time budget is used up (never without one)."""
    is_timed: bool
    seed: int
    keep: float = 0.0
    """Probability that a drawn gene stays as in `start`."""

    def draw(self, rng: np.random.Generator, count: int) -> Genomes:
        """Random rows [count, n]."""
        rows = rng.integers(0, self.upper + 1, size=(count, len(self.upper)))
        return np.where(rng.random(rows.shape) < self.keep, self.start, rows)


Method = Callable[[Stage], None]


def log_of(values: Floats) -> Floats:
    """Of an objective; what is not legal is worse than all else."""
    return np.asarray(np.log(np.where(np.isfinite(values), np.maximum(values, 1e-300), 1e300)))
