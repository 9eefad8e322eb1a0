"""Method `gradient`: descend, decode every restart, price what descent proposes, certify or polish."""

from __future__ import annotations

from fadiff.optimizer.cut.exact import (
    CERTIFIED_FRONTS,
    Certificate,
    Certified,
    Hulls,
    exact,
    keep_tensors,
    layerwise,
)
from fadiff.optimizer.cut.partition import value
from fadiff.optimizer.cut.polish import Polish
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.gradient.descent import Effort, descend, groups_found

MOST_TRIED = 80


def gradient(problem: Problem) -> Certified:
    """The joint search, descent first.

    Never worse than layer-wise.  The certificate is the one of `exact`, started from what descent
    proposes: it looks only at groups that could still beat the schedule found, and where one does, takes
    it.  Local moves are for when a proof is out of reach or may take longer than there is time.
    """
    if not problem.graph.tensor_core_layers:
        return exact(problem)  # nothing has a mapping
    layerwise(problem)
    certificate = Certificate(problem)
    if problem.time_budget is not None:
        certificate.optimistic()  # now, so that descent takes its share of what is left
    polish = Polish(problem)
    polish.offer(certificate.sure)
    hurries = problem.time_budget is not None
    again = 0
    while True:
        _propose(problem, polish, again)
        if hurries:
            polish.run()
        certificate.offer(_priced(problem, polish))
        found = certificate.run(CERTIFIED_FRONTS)
        if not hurries and not found.complete:
            polish.offer(certificate.sure)
            polish.run()
            certificate.offer(_priced(problem, polish))
            found = certificate.run(0)
        # What is left of a time budget is for further restarts.
        if found.complete or not hurries or problem.out_of_time(0.7):
            return found
        again += 1


def _priced(problem: Problem, polish: Polish) -> Hulls:
    """What polish priced, and the best schedule made of it with tensors kept on chip."""
    if not problem.cuts.tensors:
        return polish.placed_groups
    return {**keep_tensors(problem, polish.best().argmin), **polish.placed_groups}


def _propose(problem: Problem, polish: Polish, again: int) -> None:
    """Price the groups that one descent arrives at."""
    descent = descend(problem, Effort(), again)
    if descent.best is not None:
        decoded = value("edp", descent.best.energy, descent.best.latency)
        problem.say(f"decoded {len(descent.fused)} restarts: best EDP {decoded:.4g} uJ x cycles")
        problem.record(decoded, float(descent.feasible.float().mean()))
    for layers, tile in groups_found(problem, descent)[:MOST_TRIED]:
        if problem.out_of_time(0.75):
            break
        polish.propose(layers, [tile])
