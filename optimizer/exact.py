"""Exact search: every canonical mapping, every candidate group, hull dynamic programming.

Optimal among canonical mappings (see `enumerate`), groups of up to `Problem.most_members` layers and the
group tiles of `options.all_tiles`.  Groups are priced lazily: an unpriced group stands in with a
floor no option of it can beat, the cuts are decided on these optimistic costs, and only groups that
get chosen are priced.  When all chosen groups are priced the partition is optimal; until then its
optimistic cost is a lower bound (anytime certificate).
"""

from __future__ import annotations

import numpy as np

from costmodel.fusion import ScheduleError, boundary, plan_group
from costmodel.schedule import FusionGroup, GroupTile
from optimizer.group_hull import EMPTY, Choice, GroupHull, merge
from optimizer.hull import HullResult
from optimizer.options import last_output
from optimizer.partition import Partition
from optimizer.problem import Problem, partitioner, spread, value

Layers = tuple[str, ...]


def layerwise(problem: Problem) -> HullResult[Partition]:
    """Every layer alone at the mapping that is best for the network."""
    result = partitioner(problem, {}).best(problem.objective)
    problem.steps += result.solves
    problem.record(value("edp", result.best.energy, result.best.latency))
    return result


def exact(
    problem: Problem, known: dict[Layers, GroupHull] | None = None, most_fronts: int | None = None
) -> tuple[Partition, float, bool]:
    """(best partition found, lower bound on the objective in pJ and cycles, whether it is optimal).

    `known` has hulls of distinct groups that another search priced at some of their tiles: where they
    are better than the unfused layers, less has to be enumerated.  After `most_fronts` solved fronts no
    further group is priced: the bound is then that of the floors left.
    """
    best = layerwise(problem).best
    candidates = problem.candidates
    known = known or {}
    if known:
        best = partitioner(problem, spread(candidates, known)).best(problem.objective).best
    priced: dict[Layers, GroupHull] = {}
    optimistic = floors(problem, candidates)

    def stop() -> bool:
        return problem.out_of_time() or (most_fronts is not None and len(problem.fronts) >= most_fronts)

    while True:
        result = partitioner(problem, spread(candidates, {**optimistic, **priced})).best(problem.objective)
        chosen = {choice.group.layers for vertex in result.vertices for choice in vertex.choice}
        wanted = {candidates[layers] for layers in chosen if len(layers) > 1} - set(priced)
        if not wanted:
            best = result.best
            problem.record(value("edp", best.energy, best.latency))
            return best.choice, result.lower_bound, True
        for layers in sorted(wanted):
            if stop():
                break
            problem.say(f"pricing fusion group {len(priced) + 1}: {' + '.join(layers)}")
            found = known.get(layers, EMPTY)
            priced[layers] = merge((found, problem.price_group(layers, known=found)))
            problem.steps += 1
        sure = partitioner(problem, spread(candidates, {**known, **priced})).best(problem.objective).best
        if value(problem.objective, sure.energy, sure.latency) < value(
            problem.objective, best.energy, best.latency
        ):
            best = sure
        problem.record(value("edp", best.energy, best.latency))
        if stop():
            return best.choice, result.lower_bound, False


def floors(problem: Problem, candidates: dict[Layers, Layers]) -> dict[Layers, GroupHull]:
    """For every distinct group a cost that none of its options can beat: no halo computed twice,
    weights loaded once, a scratchpad that holds everything."""
    found = {}
    is_paper = problem.fusion_model == "paper"
    for first in sorted(set(candidates.values())):
        size = last_output(problem.graph, first)
        if size is None:
            continue
        group = FusionGroup(first, GroupTile(*size))
        try:
            plan = (boundary if is_paper else plan_group)(problem.graph, group)
        except ScheduleError:
            continue
        energy, latency = problem.groups.floor(group, plan, is_paper=is_paper)
        found[first] = GroupHull(np.array([energy]), np.array([latency]), (Choice(group, (), ()),))
    return found


def relaxed_bound(problem: Problem) -> float:
    """A lower bound in pJ and cycles without pricing any group: floors instead of fused costs.

    Under a latency model other than roofline floors stand for single layers, too: mappings that it would
    prefer may be missing among those enumerated.
    """
    candidates = problem.candidates
    hulls = spread(candidates, floors(problem, candidates))
    if problem.rules.latency != "roofline":
        hulls |= {layers: problem.groups.floor_alone(layers[0]) for layers in problem.alone}
    return partitioner(problem, hulls).best(problem.objective).lower_bound
