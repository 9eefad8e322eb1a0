"""Genetic search by pymoo: whole layers are exchanged between parents, extents mutate by rank.

Layers hardly depend on each other, so exchanging all genes of a layer at once keeps what works; a
gene-wise crossover (simulated binary) needs several times as many generations.
"""

from __future__ import annotations

import numpy as np

from optimizer.baselines.population import Genomes, Population
from optimizer.decode import VARIABLES
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
        from pymoo.core.crossover import Crossover
        from pymoo.core.population import Population as Individuals
        from pymoo.core.problem import Problem as Model
        from pymoo.operators.mutation.pm import PM
        from pymoo.operators.repair.rounding import RoundingRepair
        from pymoo.operators.sampling.rnd import IntegerRandomSampling
    except ImportError as error:
        raise ImportError("method genetic needs pymoo: pip install 'fadiff[baselines]'") from error

    population = Population(problem)
    width = len(VARIABLES) + 1
    genes = len(population.upper)
    layers = population.encoding.nodes
    block = np.concatenate(
        [np.repeat(np.arange(layers), width), np.arange(layers, layers + population.encoding.edges)]
    )

    class LayerCrossover(Crossover):  # type: ignore[misc]
        """Swap the genes of each layer, and each fusion bit, with even odds."""

        def _do(self, _: object, parents: Genomes, **options: object) -> Genomes:
            swap = rng.random((parents.shape[1], block[-1] + 1)) < 0.5
            mask = swap[:, block]
            children = parents.copy()
            children[0][mask], children[1][mask] = parents[1][mask], parents[0][mask]
            return children

    rng = np.random.default_rng(problem.seed)
    model = Model(n_var=genes, n_obj=1, xl=0, xu=population.upper, vtype=int)
    algorithm = GA(
        pop_size=POPULATION,
        sampling=IntegerRandomSampling(),
        crossover=LayerCrossover(2, 2, prob=0.9),
        # A low distribution index: mutations reach far in rank.
        mutation=PM(prob=1.0, prob_var=2 / genes, eta=3, vtype=float, repair=RoundingRepair()),
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
