"""A layer's mappings as genes, for genetic, Bayesian and random search (optimizer/baselines).

Genes: what memories keep (if that is free), a level for every prime factor of the bounds, for every memory
with others inside a key for each dimension, by which its loops are sorted.  What does not fit is mended: its
largest factors move outwards.
"""

from __future__ import annotations

import numpy as np

from fadiff.costmodel.nests.count import Floats
from fadiff.costmodel.nests.mapping import Mappings
from fadiff.optimizer.baselines.stage import Genomes, Stage, log_of
from fadiff.optimizer.baselines.stage import Method as StageMethod
from fadiff.optimizer.nests.layer import LayerSearch, Method
from fadiff.optimizer.nests.local import STARTS
from fadiff.optimizer.nests.space import Space, primes_of


def searched_by(method: StageMethod) -> Method:
    """The search of a layer by a method on genes; it starts at the best of some random mappings."""

    def search_layer(search: LayerSearch) -> None:
        genome = Genome(search)
        if not genome.upper.any():
            return
        search.values(search.spaces[0].random(STARTS, search.generator))
        start = genome.encoded(search.best)
        timed = search.seconds is not None
        method(Stage(genome.upper, start, genome.values, search.is_over, timed, search.seed))

    return search_layer


class Genome:
    """How rows of genes are read."""

    def __init__(self, search: LayerSearch) -> None:
        self.search = search
        space = search.spaces[0]
        active = search.workload.active
        self.levels = [np.flatnonzero(space.fixed[:, at] == 0) for at in range(len(active))]
        self.factors = [
            (at, p)
            for at, bound in enumerate(search.workload.bounds)
            for p in primes_of(int(bound) // int(np.prod(np.maximum(space.fixed[:, at], 1))))
        ]
        self.memories = range(len(search.machine.memories) - 1)
        keys = [len(active) - 1] * (len(self.memories) * len(active))
        places = [len(self.levels[at]) - 1 for at, _ in self.factors]
        self.upper = np.array([len(search.spaces) - 1, *places, *keys], dtype=np.int64)

    def values(self, rows: Genomes) -> Floats:
        """Log of the objective."""
        found = np.full(len(rows), np.inf)
        for number, space in enumerate(self.search.spaces):
            of_space = np.flatnonzero(rows[:, 0] == number)
            if len(of_space):
                found[of_space] = self.search.values(space.mended(self.decoded(rows[of_space], space)))
        return log_of(found)

    def decoded(self, rows: Genomes, space: Space) -> Mappings:
        """Mappings that need not fit."""
        factors = np.repeat(np.maximum(space.fixed, 1)[None], len(rows), axis=0)
        every = np.arange(len(rows))
        for gene, (at, prime) in enumerate(self.factors, 1):
            factors[every, self.levels[at][rows[:, gene]], at] *= prime
        orders = np.repeat(space.outermost.orders, len(rows), axis=0)
        dims = orders.shape[2]
        keys = rows[:, 1 + len(self.factors) :].reshape(len(rows), len(self.memories), dims)
        for memory in self.memories:
            free = np.array([space.is_free(memory, at) for at in range(dims)])
            order = np.argsort(np.where(free, keys[:, memory] + dims, 0), axis=1, kind="stable")
            inner = [at for at in orders[0, memory] if not free[at]]
            order[:, : len(inner)] = inner
            orders[:, memory] = order
        return Mappings(factors, orders, space.keeps)

    def encoded(self, mapping: Mappings) -> Genomes:
        """Genes of one mapping."""
        row = np.zeros(len(self.upper), dtype=np.int64)
        row[0] = [space.keeps for space in self.search.spaces].index(mapping.keeps)
        left = mapping.factors[0].copy()
        for gene, (at, prime) in enumerate(self.factors, 1):
            row[gene] = next(i for i, level in enumerate(self.levels[at]) if left[level, at] % prime == 0)
            left[self.levels[at][row[gene]], at] //= prime
        orders = mapping.orders[0, : len(self.memories)]
        row[1 + len(self.factors) :] = np.argsort(orders, axis=1).ravel()
        return row
