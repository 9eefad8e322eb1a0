"""Method `auto`, the default: enumeration settles what it can, descent works on the rest."""

from __future__ import annotations

from importlib.util import find_spec

from fadiff.optimizer.cut.exact import CERTIFIED_FRONTS, Certificate, Certified, layerwise
from fadiff.optimizer.cut.problem import Problem

ENUMERATING = 0.5
"""Share of a time budget after which descent begins (profile dosa)."""


def auto(problem: Problem) -> Certified:
    """The search of `exact`; where that would take too long, descent where it is not decided yet.

    Groups are priced best first until a proof, or `CERTIFIED_FRONTS` fronts or a share of the time budget.
    Layers of groups that the bound counts by their floors are then open: descent gets these, with whatever
    may fuse with them, and starts from the best schedule known.  Without PyTorch that schedule is the result;
    and in profile hw, where enumeration uses all of the time better.
    """
    layerwise(problem)
    certificate = Certificate(problem)
    by_clock = problem.rules.latency == "clock"
    found = certificate.run(CERTIFIED_FRONTS, 1.0 if by_clock else ENUMERATING)
    layers = len(problem.graph.layers)
    problem.settled = 1 - len(found.open) / layers
    problem.say(f"enumeration settled {layers - len(found.open)} of {layers} layers")
    open_groups = any(map(found.open.intersection, problem.candidates))
    if by_clock or found.complete or not open_groups or problem.is_past_limit:
        return found
    if find_spec("torch") is None:
        return found
    from fadiff.optimizer.gradient.joint import descend_and_certify

    problem.open = found.open
    return descend_and_certify(problem, certificate)
