"""`optimize`: the one entry point of every search method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from converter.graph import Graph
from costmodel.schedule import Schedule
from costmodel.target import Target
from optimizer.exact import exact, layerwise, relaxed_bound
from optimizer.partition import Partition
from optimizer.problem import Problem, Progress
from optimizer.result import BoundKind, SearchResult
from optimizer.settings import MethodName, Settings


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
    problem = Problem.of(settings, graph, target, progress)
    schedule, bound, kind = _search(problem, settings.method)
    if settings.latency != "roofline":
        # What is enumerated is undominated under roofline latency only.
        bound, kind = relaxed_bound(problem) * problem.unit, "relaxed"
    cost = problem.cost(schedule)
    return SearchResult(
        schedule=schedule,
        cost=cost,
        lower_bound=bound,
        bound=kind,
        settings=settings,
        seconds=problem.seconds,
        steps=problem.steps,
        history=tuple(problem.history),
    )


def _search(problem: Problem, method: MethodName) -> tuple[Schedule, float, BoundKind]:
    scale = problem.unit
    proven: BoundKind = "proven" if problem.fusion else "unfused"
    if method == "layerwise" or (method == "exact" and not problem.fusion):
        alone, bound = layerwise(problem)
        return problem.schedule(alone.choice), bound * scale, "unfused"
    if method == "exact":
        partition, bound, complete = exact(problem)
        return problem.schedule(partition), bound * scale, proven if complete else "relaxed"
    if method == "gradient":
        from optimizer.joint import gradient

        partition, bound, complete = gradient(problem)
        return problem.schedule(partition), bound * scale, proven if complete else "relaxed"
    if method == "gemmini-auto":
        from optimizer.baselines.gemmini_auto import automatic_schedule

        rules = problem.rules
        automatic = automatic_schedule(
            problem.graph, rules.target, rules.row_packing, rules.profile, problem.fusion_model
        )
        return automatic, relaxed_bound(problem) * scale, "relaxed"
    partition = _baseline(problem, method)
    return problem.schedule(partition), relaxed_bound(problem) * scale, "relaxed"


def _baseline(problem: Problem, method: MethodName) -> Partition:
    if method in ("genetic", "bayesian", "random") and problem.fusion and problem.fusion_model == "paper":
        raise ValueError(f"method {method} searches executable fusion only: use fusion model sound")
    if method == "dosa":
        from optimizer.baselines.dosa import dosa

        return dosa(problem)
    if method == "genetic":
        from optimizer.baselines.genetic import genetic

        return genetic(problem)
    if method == "bayesian":
        from optimizer.baselines.bayesian import bayesian

        return bayesian(problem)
    if method == "random":
        from optimizer.baselines.random_search import random_search

        return random_search(problem)
    raise ValueError(f"unknown method {method!r}")
