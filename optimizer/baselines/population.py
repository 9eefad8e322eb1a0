"""What genetic, Bayesian and random search share: stages of genes, their value, and the best so far.

Layers couple only through fusion, so every method first searches each distinct layer by itself (extents
by rank, and the order; about twelve genes, all candidates priced in one batch) for the EDP of the whole
network, then fused edges together with the image tiles of the layers they lead to.  All methods get the
same stages, the same shares of the budget and the same start: the largest tiles, shrunk until they fit,
nothing fused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fadiff.optimizer.baselines.stage import Floats, Genomes, Method, Stage, log_of
from fadiff.optimizer.cut.decode import VARIABLES, Batch, Decoder, Encoding, price_legal
from fadiff.optimizer.cut.partition import Partition, value
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.layer.canonical import STATIONARY

LAYER_SHARE = 0.6
"""Share of the time budget for the layers, when there are edges to fuse."""
KEEP = 0.8
"""Of the genes of a fused network: a few changes at a time make groups that can be executed."""
_WIDTH = len(VARIABLES) + 1


class Population:
    """Genome = per node an index of each extent and of the order, then one bit per fusable edge."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.encoding = Encoding.of(problem)
        self.decoder = Decoder(problem, self.encoding)
        sizes = [[len(c) for c in row] + [len(STATIONARY)] for row in self.encoding.candidates]
        flat = [size for row in sizes for size in row] + [2] * self.encoding.edges
        self.upper = np.array(flat, dtype=np.int64) - 1
        self.best = self.upper.copy()
        self.bits = np.arange(self.encoding.nodes * _WIDTH, len(flat))
        self.best[self.bits] = 0
        self._keep_sums_inside()
        self.best_value = float("inf")
        self._evaluate(self.best[None])
        self.energy, self.latency = (
            column[0] for column in self.decoder.alone(self._batch(self.best[None]))[:2]
        )

    def _keep_sums_inside(self) -> None:
        """Where the largest tiles leave partial sums, and may not, start from the smallest output tile: its
        sums stay in the accumulator, output stationary, however much of the reduction fits."""
        energy, _, _ = self.decoder.alone(self._batch(self.best[None]))
        for node in np.flatnonzero(np.isinf(energy[0])):
            genes = [node * _WIDTH + VARIABLES.index(name) for name in "NKPQnkpq"]
            self.best[genes] = 0
            self.best[node * _WIDTH + len(VARIABLES)] = STATIONARY.index("OS")

    def run(self, method: Method) -> Partition:
        """The best schedule after all stages."""
        nodes = self.encoding.nodes
        share = LAYER_SHARE if len(self.bits) else 1.0
        for i in range(nodes):
            genes = np.arange(i * _WIDTH, (i + 1) * _WIDTH)
            genes = genes[self.upper[genes] > 0]
            if len(genes) and not self.encoding.network.nodes[i].is_add:  # an add alone has no choice
                method(self._stage(genes, self._layer_values(i, genes), share * (i + 1) / nodes, i))
        if len(self.bits):
            sinks = sorted({consumer for _, consumer in self.encoding.network.edges})
            tiles = np.array([s * _WIDTH + VARIABLES.index(d) for s in sinks for d in ("P", "Q")])
            genes = np.concatenate([self.bits, tiles[self.upper[tiles] > 0]])
            method(replace(self._stage(genes, self._fused_values(genes), 1.0, nodes), keep=KEEP))
        return self.decoder.partition(self._batch(self.best[None]), 0)

    def _stage(self, genes: Genomes, values: Callable[[Genomes], Floats], until: float, index: int) -> Stage:
        problem = self.problem
        return Stage(
            self.upper[genes],
            self.best[genes],
            values,
            lambda: problem.out_of_time(until),
            problem.time_budget is not None,
            problem.seed * 1000 + index,
        )

    def _layer_values(self, node: int, genes: Genomes) -> Callable[[Genomes], Floats]:
        """Rows of one layer's genes: the rest of the network is as good as it is, and unfused."""
        space, repeat = self.encoding.spaces[node], self.encoding.network.repeats[node]
        repeats = np.array(self.encoding.network.repeats)

        def values(rows: Genomes) -> Floats:
            genomes = np.repeat(self.best[None], len(rows), axis=0)
            genomes[:, genes] = rows
            batch = self._batch(genomes)
            _, energy, latency = price_legal(space, batch.extents[:, node], batch.order[:, node])
            rest = [
                float(column @ repeats + host - column[node] * repeat)
                for column, host in zip((self.energy, self.latency), self.decoder.host, strict=True)
            ]
            found = self._objective(rest[0] + energy * repeat, rest[1] + latency * repeat)
            best = int(np.argmin(found))
            if self._record(genomes, found, np.isfinite(found)):
                self.energy[node], self.latency[node] = energy[best], latency[best]
            return log_of(found)

        return values

    def _fused_values(self, genes: Genomes) -> Callable[[Genomes], Floats]:
        def values(rows: Genomes) -> Floats:
            genomes = np.repeat(self.best[None], len(rows), axis=0)
            genomes[:, genes] = rows
            return self._evaluate(genomes)

        return values

    def _evaluate(self, genomes: Genomes) -> Floats:
        energy, latency = self.decoder.cost(self._batch(genomes))
        found = self._objective(energy, latency)
        self._record(genomes, found, np.isfinite(found))
        return log_of(found)

    def _record(self, genomes: Genomes, values: Floats, legal: NDArray[np.bool_]) -> bool:
        """Remember the best genome; whether it is new."""
        at = int(np.argmin(values))
        is_better = bool(values[at] < self.best_value)
        if is_better:
            self.best_value, self.best = float(values[at]), genomes[at].copy()
        self.problem.steps += len(genomes)
        if self.problem.objective == "edp":
            self.problem.record(self.best_value, float(legal.mean()))
        return is_better

    def _objective(self, energy: Floats, latency: Floats) -> Floats:
        objective = self.problem.objective
        return np.array([value(objective, e, t) for e, t in zip(energy, latency, strict=True)])

    def _batch(self, genomes: Genomes) -> Batch:
        """Extents, orders and fused edges."""
        nodes = self.encoding.nodes
        genes = genomes[:, : nodes * _WIDTH].reshape(len(genomes), nodes, _WIDTH)
        extents = np.empty((len(genomes), nodes, len(VARIABLES)), dtype=np.int64)
        for i, row in enumerate(self.encoding.candidates):
            for j, options in enumerate(row):
                extents[:, i, j] = np.asarray(options)[genes[:, i, j]]
        return Batch(extents, genes[:, :, -1], genomes[:, nodes * _WIDTH :].astype(bool))
