"""Bayesian search by optuna (tree-structured Parzen estimator).

Layers couple only through fusion, so each distinct layer has a study of its own over its extents and
order (about twelve parameters, where TPE works) for most of the budget; a last study decides the
fused edges and refines group tiles at the layers' best mappings.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from optimizer.baselines.population import Population
from optimizer.decode import VARIABLES
from optimizer.partition import Partition
from optimizer.problem import Problem

TRIALS = 60
"""Per study without a time budget."""
LAYER_SHARE = 0.75


def bayesian(problem: Problem) -> Partition:
    """The best schedule of a Bayesian search.

    Raises:
        ImportError: optuna is not installed; the message names the extra.
    """
    try:
        import optuna
    except ImportError as error:
        raise ImportError("method bayesian needs optuna: pip install 'fadiff[baselines]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    population = Population(problem)
    width = len(VARIABLES) + 1
    nodes = population.encoding.nodes
    genome = population.upper.copy()
    genome[nodes * width :] = 0

    def study_of(seed: int) -> Any:
        return optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=problem.seed * 1000 + seed, multivariate=True)
        )

    def run(study: Any, genes: list[int], until: float) -> None:
        """Optimise some genes, the others as in `genome`; the best replace them."""
        best = np.inf
        best_genes = genome[genes].copy()
        trials = 0
        while trials < TRIALS or problem.time_budget is not None:
            if problem.out_of_time(until):
                break
            trial = study.ask()
            candidate = genome.copy()
            candidate[genes] = [trial.suggest_int(str(g), 0, int(population.upper[g])) for g in genes]
            score = float(population.evaluate(candidate[None])[0])
            study.tell(trial, score)
            trials += 1
            if score < best:
                best, best_genes = score, candidate[genes]
        genome[genes] = best_genes

    population.evaluate(genome[None])
    for i in range(nodes):
        genes = [g for g in range(i * width, (i + 1) * width) if population.upper[g] > 0]
        run(study_of(i), genes, LAYER_SHARE * (i + 1) / nodes)
    edges = list(range(nodes * width, len(genome)))
    if edges:
        sinks = sorted({consumer for _, consumer in population.encoding.network.edges})
        tiles = [s * width + VARIABLES.index(d) for s in sinks for d in ("P", "Q")]
        run(study_of(nodes), edges + [g for g in tiles if population.upper[g] > 0], 1.0)
    return population.partition()
