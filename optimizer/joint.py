"""Method `gradient`: descend, decode every restart, polish what descent proposes, certify."""

from __future__ import annotations

from optimizer.exact import Certified, exact, keep_tensors, layerwise, relaxed_bound
from optimizer.polish import Polish
from optimizer.problem import Problem, value

MOST_PROPOSALS = 80
CERTIFIED_FRONTS = 2000
"""Fronts of single layers that the certificate may solve (about ten milliseconds each in profile hw)."""


def gradient(problem: Problem) -> Certified:
    """The joint search.

    Never worse than layer-wise.  The certificate is the one of `exact`, started from what polish
    priced: it looks only at groups that could still beat the schedule found, and where one does, takes it.
    """
    if not problem.graph.tensor_core_layers:
        return exact(problem)  # nothing has a mapping
    layerwise(problem)
    polish = Polish(problem)
    again = 0
    while True:
        _propose(problem, polish, again)
        polished = polish.run()
        hulls = {**keep_tensors(problem, polished.choice), **polish.variants}
        if problem.rules.latency == "roofline":
            found = exact(problem, hulls, len(problem.fronts) + CERTIFIED_FRONTS)
        else:  # floors are too far to prune with
            best = problem.cuts.optimum(hulls, problem.objective).choice
            found = Certified(best, relaxed_bound(problem), False)
        # What is left of a time budget is for further restarts.
        if found.complete or problem.time_budget is None or problem.out_of_time(0.7):
            return found
        again += 1


def _propose(problem: Problem, polish: Polish, again: int) -> None:
    """Price the groups that one descent arrives at."""
    from optimizer.gradient import Effort, descend, proposals

    descent = descend(problem, Effort(), again)
    if descent.best is not None:
        decoded = value("edp", descent.best.energy, descent.best.latency)
        problem.say(f"decoded {len(descent.fused)} restarts: best EDP {decoded:.4g} uJ x cycles")
        problem.record(decoded, float(descent.feasible.float().mean()))
    for proposal in proposals(problem, descent)[:MOST_PROPOSALS]:
        if problem.out_of_time(0.75):
            break
        polish.propose(proposal.layers, [proposal.tile])
