"""Method `gradient`: descend, decode every restart, polish what descent proposes."""

from __future__ import annotations

import numpy as np

from optimizer.exact import layerwise
from optimizer.partition import Partition
from optimizer.polish import Polish
from optimizer.problem import Problem

MOST_PROPOSALS = 80


def gradient(problem: Problem) -> Partition:
    """The joint search; never worse than layer-wise."""
    from optimizer.decode import Batch, Decoder, Encoding
    from optimizer.gradient import Effort, descend, proposals

    layerwise(problem)
    descent = descend(problem, Effort())
    if problem.fusion_model == "sound":
        batch = Batch(descent.extents.numpy(), descent.order.numpy(), descent.fused.numpy())
        energy, latency = Decoder(problem, Encoding.of(problem)).cost(batch)
        decoded = float(np.min(energy * latency)) * 1e-6
        problem.say(f"decoded {len(batch)} restarts: best EDP {decoded:.4g} uJ x cycles")
        problem.record(decoded, float(descent.feasible.float().mean()))
    polish = Polish(problem)
    for proposal in proposals(problem, descent, problem.most_members)[:MOST_PROPOSALS]:
        if problem.out_of_time(0.75):
            break
        polish.propose(proposal.layers, [proposal.tile])
    return polish.run().best.choice
