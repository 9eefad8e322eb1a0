"""`optimize`: the one entry point of every search method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.baselines.gemmini_auto import automatic_schedule
from fadiff.optimizer.cut.exact import CERTIFIED_FRONTS, Certified, exact, layerwise, relaxed
from fadiff.optimizer.cut.partition import Partition
from fadiff.optimizer.cut.problem import Problem, Progress
from fadiff.optimizer.cut.result import BoundKind, SearchResult
from fadiff.optimizer.cut.settings import MethodName, Settings

PROVING: tuple[MethodName, ...] = ("auto", "gradient", "exact", "layerwise")
"""Methods that find a lower bound as they search."""


def optimize(
    graph: Graph,
    target: Target,
    settings: Settings | None = None,
    *,
    progress: Progress | None = None,
    **changes: Any,
) -> SearchResult:
    """Search the mapping of every layer and the fusion of the graph; the schedule is always legal.

        optimize(graph, target, method="exact", time_budget=60)

    Args:
        graph: What to run.
        target: On what.
        settings: What to search for and how (default: `Settings()`).
        progress: Called with a line of text now and then.
        changes: Fields of `settings` to change.

    Raises:
        ScheduleError: a layer does not fit the target at any tile size.
        TypeError: `changes` has a name that is no field of `Settings`.
        ValueError: an unknown method, or one that cannot search this fusion model.
        ImportError: the method needs an extra that is not installed.
    """
    settings = replace(settings or Settings(), **changes)
    if settings.obstacle:
        raise ValueError(settings.obstacle)
    problem = whole = Problem.of(settings, graph, target, progress)
    floor = None
    if settings.method not in PROVING:
        # First, so that the search has what is left of the time budget; it sees nothing of this.
        floor = _floor(problem, settings.method)
        problem = problem.rest()
    schedule, bound, kind = solve(problem, settings.method)
    if floor is not None:
        bound, kind = floor, "relaxed"
    return SearchResult(
        schedule=schedule,
        cost=problem.cost(schedule),
        lower_bound=bound * problem.unit,
        bound=kind,
        settings=settings,
        seconds=whole.seconds,
        steps=problem.steps,
        history=tuple(problem.history),
        unfused_bytes=_unfused_bytes(problem),
    )


def _unfused_bytes(problem: Problem) -> int | None:
    """Of the layer-wise optimum that methods with a bound begin with; nothing is searched for it."""
    if "layerwise" not in vars(problem):
        return None
    return problem.cost(problem.schedule(problem.layerwise[0].argmin)).dram_bytes


def _floor(problem: Problem, method: MethodName) -> float:
    """A lower bound in pJ and cycles, in the space that the schedules of `method` are in."""
    if method == "gemmini-auto":  # whatever the rules: ragged tiles, depthwise layers by single channels
        rules = replace(problem.rules, tiling="ragged", all_lanes=True)
        problem = replace(problem, rules=rules)
    return relaxed(problem).lower_bound


def solve(problem: Problem, method: MethodName) -> tuple[Schedule, float, BoundKind]:
    """The schedule that a method finds, a lower bound in pJ and cycles (0 of a method that has none), and
    what that is worth."""
    proven: BoundKind = "proven" if problem.fusion else "unfused"
    if method == "layerwise" or (method == "exact" and not problem.fusion):
        alone, bound = layerwise(problem)
        return problem.schedule(alone.argmin), bound, "unfused"
    if method in ("auto", "exact", "gradient"):
        found = _certified(problem, method)
        return problem.schedule(found.partition), found.lower_bound, proven if found.complete else "relaxed"
    if method == "gemmini-auto":
        rules = problem.rules
        automatic = automatic_schedule(
            problem.graph, rules.target, rules.row_packing, rules.profile, problem.fusion_model
        )
        return automatic, 0.0, "relaxed"
    return problem.schedule(_baseline(problem, method)), 0.0, "relaxed"


def _certified(problem: Problem, method: MethodName) -> Certified:
    if method in ("auto", "exact"):
        ends_itself = method == "exact" or problem.time_budget is not None
        return exact(problem, None if ends_itself else CERTIFIED_FRONTS)
    from fadiff.optimizer.gradient.joint import gradient

    return gradient(problem)


def _baseline(problem: Problem, method: MethodName) -> Partition:
    if method == "dosa":
        from fadiff.optimizer.gradient.dosa import dosa

        return dosa(problem)
    if method == "genetic":
        from fadiff.optimizer.baselines.genetic import genetic

        return genetic(problem)
    if method == "bayesian":
        from fadiff.optimizer.baselines.bayesian import bayesian

        return bayesian(problem)
    if method == "random":
        from fadiff.optimizer.baselines.random_search import random_search

        return random_search(problem)
    raise ValueError(f"unknown method {method!r}")
