"""Genetic search by pymoo: uniform crossover of genes, extents mutate by rank, equal genomes removed."""

from __future__ import annotations

import numpy as np

from fadiff.optimizer.baselines.population import Population
from fadiff.optimizer.baselines.stage import Stage
from fadiff.optimizer.cut.partition import Partition
from fadiff.optimizer.cut.problem import Problem

POPULATION = 48
GENERATIONS = 12
"""Per stage without a time budget."""
STALE = 25
"""Generations without progress after which a stage with a time budget starts afresh."""


def genetic(problem: Problem) -> Partition:
    """The best schedule of a genetic search.

    Raises:
        ImportError: pymoo is not installed.
    """
    import pymoo  # noqa: F401

    return Population(problem).run(evolve)


def evolve(stage: Stage) -> None:
    """Populations one after the other, each with the best so far in it."""
    rng = np.random.default_rng(stage.seed)
    best, start = np.inf, stage.start
    while not stage.is_over():
        found, genome = _population(stage, start, int(rng.integers(1 << 31)))
        if found < best:
            best, start = found, genome
        if not stage.is_timed:
            return


def _population(stage: Stage, start: np.ndarray, seed: int) -> tuple[float, np.ndarray]:
    from pymoo.algorithms.soo.nonconvex.ga import GA
    from pymoo.core.population import Population as Individuals
    from pymoo.core.problem import Problem as Model
    from pymoo.operators.crossover.ux import UX
    from pymoo.operators.mutation.pm import PM
    from pymoo.operators.repair.rounding import RoundingRepair

    genes = len(stage.upper)
    first = stage.draw(np.random.default_rng(seed), POPULATION)
    first[0] = start
    algorithm = GA(
        pop_size=POPULATION,
        sampling=first,
        crossover=UX(repair=RoundingRepair()),
        # A low distribution index: mutations reach far in rank.
        mutation=PM(prob=0.9, prob_var=max(0.1, 2 / genes), eta=3, vtype=float, repair=RoundingRepair()),
        eliminate_duplicates=True,
    )
    model = Model(n_var=genes, n_obj=1, xl=0, xu=stage.upper, vtype=int)
    algorithm.setup(model, termination=("n_gen", 1 << 30), seed=seed, verbose=False)
    best, genome = np.inf, start
    generation = stale = 0
    while not stage.is_over() and (stale < STALE if stage.is_timed else generation < GENERATIONS):
        asked = algorithm.ask()
        if asked is None or len(asked) == 0:
            break
        rows = np.asarray(asked.get("X"), dtype=np.int64)
        values = stage.values(rows)
        asked.set("F", values[:, None])
        algorithm.tell(infills=Individuals.create(*asked))
        generation += 1
        stale += 1
        if values.min() < best:
            best, genome, stale = float(values.min()), rows[values.argmin()], 0
    return best, genome
