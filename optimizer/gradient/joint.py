"""Method `gradient`: descend, decode every restart, price what descent proposes, certify."""

from __future__ import annotations

from fadiff.optimizer.cut.exact import CERTIFIED_FRONTS, Certificate, Certified, Hulls, exact, layerwise
from fadiff.optimizer.cut.partition import value
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.gradient.descent import Effort, descend, groups_found
from fadiff.optimizer.group.hull import EMPTY, merge
from fadiff.optimizer.group.residency import PlacedGroup

MOST_TRIED = 80


def gradient(problem: Problem) -> Certified:
    """The joint search, descent first.

    Never worse than layer-wise.  The certificate is the one of `exact`, started from what descent
    proposes: it looks only at groups that could still beat the schedule found, and where one does, takes it.
    """
    if not problem.graph.tensor_core_layers:
        return exact(problem)  # nothing has a mapping
    layerwise(problem)
    certificate = Certificate(problem)
    hurries = problem.time_budget is not None
    if hurries:
        certificate.optimistic()  # now, so that descent takes its share of what is left
    again = 0
    while True:
        certificate.offer(_proposed(problem, again))
        found = certificate.run(CERTIFIED_FRONTS)
        # What is left of a time budget is for further restarts.
        if found.complete or not hurries or problem.out_of_time(0.7):
            return found
        again += 1


def _proposed(problem: Problem, again: int) -> Hulls:
    """The groups that one descent arrives at, at their tiles, with the best mappings of their members."""
    descent = descend(problem, Effort(), again)
    if descent.best is not None:
        decoded = value("edp", descent.best.energy, descent.best.latency)
        problem.say(f"decoded {len(descent.fused)} restarts: best EDP {decoded:.4g} uJ x cycles")
        problem.record(decoded, float(descent.feasible.float().mean()))
    found: Hulls = {}
    for layers, tile in groups_found(problem, descent)[:MOST_TRIED]:
        if problem.out_of_time(0.75):
            break
        first = problem.candidates.get(layers)
        if first is not None:
            placed = PlacedGroup(first)
            found[placed] = merge((found.get(placed, EMPTY), problem.price_group(first, [tile])))
    return found
