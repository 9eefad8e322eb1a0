"""Genetic search by pymoo: integer genomes, simulated binary crossover, polynomial mutation."""

from __future__ import annotations

import numpy as np

from optimizer.baselines.population import Population
from optimizer.partition import Partition
from optimizer.problem import Problem

POPULATION = 64
GENERATIONS = 100
"""Without a time budget."""


def genetic(problem: Problem) -> Partition:
    """The best schedule of a genetic search.

    Raises:
        ImportError: pymoo is not installed; the message names the extra.
    """
    try:
        from pymoo.algorithms.soo.nonconvex.ga import GA
        from pymoo.core.population import Population as Individuals
        from pymoo.core.problem import Problem as Model
        from pymoo.operators.crossover.sbx import SBX
        from pymoo.operators.mutation.pm import PM
        from pymoo.operators.repair.rounding import RoundingRepair
        from pymoo.operators.sampling.rnd import IntegerRandomSampling
    except ImportError as error:
        raise ImportError("method genetic needs pymoo: pip install 'fadiff[baselines]'") from error

    population = Population(problem)
    model = Model(n_var=len(population.upper), n_obj=1, xl=0, xu=population.upper, vtype=int)
    algorithm = GA(
        pop_size=POPULATION,
        sampling=IntegerRandomSampling(),
        # Low distribution indices: large steps between ranks (swept 3..30 on ResNet-18).
        crossover=SBX(prob=0.9, eta=3, vtype=float, repair=RoundingRepair()),
        mutation=PM(
            prob=1.0, prob_var=2 / len(population.upper), eta=3, vtype=float, repair=RoundingRepair()
        ),
        eliminate_duplicates=True,
    )
    algorithm.setup(model, termination=("n_gen", 1 << 30), seed=problem.seed, verbose=False)
    generation = 0
    while not problem.out_of_time() and (problem.time_budget is not None or generation < GENERATIONS):
        asked = algorithm.ask()
        if asked is None or len(asked) == 0:
            break
        genomes = np.asarray(asked.get("X"), dtype=np.int64)
        asked.set("F", population.evaluate(genomes)[:, None])
        algorithm.tell(infills=Individuals.create(*asked))
        generation += 1
    return population.partition()
