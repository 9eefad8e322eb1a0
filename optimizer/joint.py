"""Method `gradient`: descend, decode, repair by exact pricing, polish."""

from __future__ import annotations

from optimizer.exact import layerwise
from optimizer.partition import Partition
from optimizer.polish import Polish
from optimizer.problem import Problem

MOST_MEMBERS = 6
MOST_PROPOSALS = 80


def gradient(problem: Problem) -> Partition:
    """The joint search; never worse than layer-wise."""
    from optimizer.gradient import Effort, descend, proposals

    layerwise(problem)
    descent = descend(problem, Effort())
    polish = Polish(problem, MOST_MEMBERS)
    for proposal in proposals(problem, descent, MOST_MEMBERS)[:MOST_PROPOSALS]:
        if problem.out_of_time(0.75):
            break
        polish.propose(proposal.layers, [proposal.tile])
    return polish.run().best.choice
