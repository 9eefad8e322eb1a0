"""Random search: genomes drawn uniformly (extents by rank, so about uniform in the log)."""

from __future__ import annotations

import numpy as np

from optimizer.baselines.population import Population
from optimizer.partition import Partition
from optimizer.problem import Problem

BATCH = 128
BATCHES = 40
"""Without a time budget."""


def random_search(problem: Problem) -> Partition:
    """The best of many random schedules."""
    population = Population(problem)
    rng = np.random.default_rng(problem.seed)
    done = 0
    while not problem.out_of_time() and (problem.time_budget is not None or done < BATCHES):
        population.evaluate(rng.integers(0, population.upper + 1, size=(BATCH, len(population.upper))))
        done += 1
    return population.partition()
