"""Random search: genes drawn uniformly (extents by rank, so about uniform in the log)."""

from __future__ import annotations

import numpy as np

from fadiff.optimizer.baselines.population import Population
from fadiff.optimizer.baselines.stage import Stage
from fadiff.optimizer.cut.partition import Partition
from fadiff.optimizer.cut.problem import Problem

BATCH = 64
BATCHES = 8
"""Per stage without a time budget."""


def random_search(problem: Problem) -> Partition:
    """The best of many random choices."""
    return Population(problem).run(draw_rows)


def draw_rows(stage: Stage) -> None:
    """Batches of random rows."""
    rng = np.random.default_rng(stage.seed)
    done = 0
    while not stage.is_over() and (stage.is_timed or done < BATCHES):
        stage.values(stage.draw(rng, BATCH))
        done += 1
