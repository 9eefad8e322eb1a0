"""`optimize`: the one entry point of every search method."""

from __future__ import annotations

from converter.graph import Graph
from costmodel.schedule import FusionModel, LatencyModel, Profile, Schedule
from costmodel.target import Target
from optimizer.candidates import Tiling
from optimizer.exact import exact, layerwise, relaxed_bound
from optimizer.partition import Objective, Partition
from optimizer.problem import MethodName, Problem, Progress, RelaxationForm
from optimizer.result import BoundKind, SearchResult
from optimizer.space import Rules


def optimize(
    graph: Graph,
    target: Target,
    *,
    profile: Profile = "hw",
    method: MethodName = "gradient",
    objective: Objective = "edp",
    fusion: bool = True,
    fusion_model: FusionModel = "sound",
    residency: bool = True,
    latency: LatencyModel = "roofline",
    tiling: Tiling = "ragged",
    row_packing: bool = True,
    relaxation: RelaxationForm = "log",
    seed: int = 0,
    time_budget: float | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Search the mapping of every layer and the fusion of the graph; the schedule is always legal.

    Args:
        graph: What to run.
        target: On what.
        profile: `hw` decides what is emitted, `dosa` compares with published numbers.
        method: How to search.
        objective: What to minimise.
        fusion: Whether layers may be fused.
        fusion_model: `sound`, or the literature's (`paper`).
        residency: Whether tensors may stay on chip from one group to later ones (methods exact and gradient,
            with sound fusion).
        latency: Latency model to search and score with.  Under `rtl` nothing is proven: the bound is that
            of floors.
        tiling: `divisor` restricts tiles to divisors.
        row_packing: Whether kernel taps may share the array rows of a layer with few channels.
        relaxation: Form of the trainable tiles in method `gradient`: `paper` is Eq. 1-3 as printed.
        seed: Equal seeds give equal schedules (unless `time_budget` cuts the search short).
        time_budget: Seconds after which to return the best schedule known.
        progress: Called with a line of text now and then.

    Raises:
        ScheduleError: a layer does not fit the target at any tile size.
        ValueError: an unknown method, or one that cannot search this fusion model.
        ImportError: the method needs an extra that is not installed.
    """
    problem = Problem(
        graph,
        Rules(target, profile, tiling, row_packing, latency=latency),
        objective,
        fusion,
        fusion_model,
        seed,
        time_budget,
        progress,
        relaxation=relaxation,
        residency=residency,
    )
    schedule, bound, kind = _search(problem, method)
    if latency != "roofline":
        # What is enumerated is undominated under roofline latency only.
        bound, kind = relaxed_bound(problem) * problem.unit, "relaxed"
    cost = problem.cost(schedule)
    return SearchResult(
        schedule=schedule,
        cost=cost,
        lower_bound=bound,
        bound=kind,
        method=method,
        seconds=problem.seconds,
        steps=problem.steps,
        history=tuple(problem.history),
        objective=objective,
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
