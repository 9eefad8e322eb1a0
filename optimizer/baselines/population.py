"""What population-based baselines share: genomes of candidate indices, and the best point so far."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from optimizer.decode import VARIABLES, Batch, Decoder, Encoding
from optimizer.orders import STATIONARY
from optimizer.partition import Partition
from optimizer.problem import Problem, value

Genomes = NDArray[np.int64]


class Population:
    """Genome = per node an index of each extent and of the order, then one bit per fusable edge."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.encoding = Encoding.of(problem)
        self.decoder = Decoder(problem, self.encoding)
        sizes = [[len(c) for c in row] + [len(STATIONARY)] for row in self.encoding.candidates]
        flat = [size for row in sizes for size in row] + [2] * self.encoding.edges
        self.upper = np.array(flat, dtype=np.int64) - 1
        """Largest value of every gene."""
        self.best_value = float("inf")
        self.best: tuple[Batch, int] | None = None

    def batch(self, genomes: Genomes) -> Batch:
        """Extents, orders and fused edges."""
        nodes, width = self.encoding.nodes, len(VARIABLES) + 1
        genes = genomes[:, : nodes * width].reshape(len(genomes), nodes, width)
        extents = np.empty((len(genomes), nodes, len(VARIABLES)), dtype=np.int64)
        for i, row in enumerate(self.encoding.candidates):
            for j, options in enumerate(row):
                extents[:, i, j] = np.asarray(options)[genes[:, i, j]]
        return Batch(extents, genes[:, :, -1], genomes[:, nodes * width :].astype(bool))

    def evaluate(self, genomes: Genomes) -> NDArray[np.float64]:
        """Log of the objective per genome; remembers the best."""
        batch = self.batch(genomes)
        energy, latency = self.decoder.cost(batch)
        objective = self.problem.objective
        values = np.array([value(objective, e, lat) for e, lat in zip(energy, latency, strict=True)])
        b = int(np.argmin(values))
        if values[b] < self.best_value:
            self.best_value = float(values[b])
            self.best = (batch, b)
        self.problem.steps += len(genomes)
        best_edp = energy[b] * latency[b] * 1e-6
        self.problem.record(float(best_edp), float(np.isfinite(values).mean()))
        return np.log(np.where(np.isfinite(values), values, 1e300))

    def partition(self) -> Partition:
        """The best schedule seen."""
        assert self.best is not None
        return self.decoder.partition(*self.best)
