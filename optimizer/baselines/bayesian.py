"""Bayesian search by optuna: one study per stage, its tree-structured Parzen estimator asked in batches."""

from __future__ import annotations

import numpy as np

from fadiff.optimizer.baselines.population import Population
from fadiff.optimizer.baselines.stage import Stage
from fadiff.optimizer.cut.partition import Partition
from fadiff.optimizer.cut.problem import Problem

BATCH = 8
"""Trials asked at once; pending ones count as bad (`constant_liar`), so they spread."""
BATCHES = 8
"""Per stage without a time budget."""


def bayesian(problem: Problem) -> Partition:
    """The best schedule of a Bayesian search.

    Raises:
        ImportError: optuna is not installed.
    """
    import optuna  # noqa: F401

    return Population(problem).run(study)


def study(stage: Stage) -> None:
    """Trials asked for in batches."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(
        seed=stage.seed, multivariate=True, constant_liar=True, n_startup_trials=BATCH
    )
    trials = optuna.create_study(sampler=sampler)
    space: dict[str, optuna.distributions.BaseDistribution] = {
        str(g): optuna.distributions.IntDistribution(0, int(u)) for g, u in enumerate(stage.upper)
    }
    first = stage.draw(np.random.default_rng(stage.seed), BATCH - 1)
    for row in (stage.start, *first):
        trials.enqueue_trial({str(g): int(v) for g, v in enumerate(row)})
    done = 0
    while not stage.is_over() and (stage.is_timed or done < BATCHES):
        asked = [trials.ask(space)]
        while len(asked) < BATCH and not stage.is_over():  # they take longer than their values
            asked.append(trials.ask(space))
        rows = np.array([[t.params[str(g)] for g in range(len(stage.upper))] for t in asked])
        for trial, found in zip(asked, stage.values(rows), strict=True):
            trials.tell(trial, float(found))
        done += 1
