"""Exact search: every canonical mapping, every candidate group, hull dynamic programming.

Optimal among canonical mappings (see `enumerate`), groups of up to `MOST_MEMBERS` layers and the
group tiles of `options.all_tiles`; the bound it returns holds for exactly that space.
"""

from __future__ import annotations

from optimizer.hull import HullResult
from optimizer.options import EMPTY, GroupHull, group_runs
from optimizer.partition import Partition
from optimizer.problem import Problem, partitioner, value

MOST_MEMBERS = 4


def layerwise(problem: Problem) -> HullResult[Partition]:
    """Every layer alone at the mapping that is best for the network."""
    result = partitioner(problem, {}).best(problem.objective)
    problem.steps += result.solves
    problem.record(value("edp", result.best.energy, result.best.latency))
    return result


def exact(problem: Problem, most: int = MOST_MEMBERS) -> tuple[HullResult[Partition], bool]:
    """The best partition, and whether every candidate group was priced in time."""
    layerwise(problem)
    candidates = problem.candidates(most)
    hulls: dict[tuple[str, ...], GroupHull] = {}
    distinct = sorted(set(candidates.values()), key=len)
    complete = True
    for done, layers in enumerate(distinct):
        if problem.out_of_time(0.9):
            complete = False
            break
        problem.say(f"pricing fusion groups: {done} of {len(distinct)} ({'+'.join(layers)})")
        runs = group_runs(problem.graph, layers, problem.rules.tiling)
        hulls[layers] = problem.groups.solve(layers, runs, problem.unfused(layers))
    result = partitioner(problem, spread(candidates, hulls)).best(problem.objective)
    problem.steps += len(hulls)
    problem.record(value("edp", result.best.energy, result.best.latency))
    return result, complete


def spread(
    candidates: dict[tuple[str, ...], tuple[str, ...]], hulls: dict[tuple[str, ...], GroupHull]
) -> dict[tuple[str, ...], GroupHull]:
    """Hulls of all groups from those of the distinct ones."""
    result = {}
    for layers, first in candidates.items():
        hull = hulls.get(first, EMPTY)
        if len(hull):
            choices = tuple(choice.renamed(layers) for choice in hull.choices)
            result[layers] = GroupHull(hull.energy, hull.latency, choices)
    return result
