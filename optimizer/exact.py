"""Exact search: every canonical mapping, every candidate group, hull dynamic programming.

Optimal among canonical mappings (see `enumerate`), groups of up to `Problem.most_members` layers, the
group tiles of `options.all_tiles` and the tensors that `Partitioner` lets stay on chip between groups.
Groups are priced lazily: an unpriced variant stands in with a floor no option of it can beat, the cuts
are decided on these optimistic costs, and only variants that get chosen are priced.  When all chosen
ones are priced the partition is optimal; until then its optimistic cost is a lower bound (anytime
certificate).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from costmodel.fusion import ScheduleError, boundary, plan_group
from costmodel.schedule import FusionGroup, GroupTile
from optimizer.group_hull import EMPTY, Choice, GroupHull, merge
from optimizer.group_tiles import last_output
from optimizer.hull import Solution
from optimizer.least_regions import least_regions
from optimizer.partition import Partition, Partitioner
from optimizer.problem import Problem, value
from optimizer.residency import Boundary, Layers, Variant

Hulls = dict[Variant, GroupHull]


class Certified(NamedTuple):
    """The best partition found, a lower bound on the objective (pJ and cycles), whether it is optimal."""

    partition: Partition
    lower_bound: float
    complete: bool


def layerwise(problem: Problem) -> tuple[Solution[Partition], float]:
    """Every layer alone at the mapping that is best for the network, and the bound for that."""
    cuts = Partitioner(problem.graph, problem.layers)
    result = cuts.best(problem.alone, problem.objective)
    problem.steps += result.solves
    problem.record(value("edp", result.best.energy, result.best.latency))
    partition = cuts.partition(problem.alone, result.best.choice)
    return Solution(result.best.energy, result.best.latency, partition), result.lower_bound


def exact(problem: Problem, known: Hulls | None = None, most_fronts: int | None = None) -> Certified:
    """Every layer, every candidate group and every set of tensors on chip in between.

    `known` has hulls of variants that another search, begun layer-wise, priced at some of their tiles:
    where they are better than the unfused layers, less has to be enumerated.  After `most_fronts` solved
    fronts no further variant is priced: the bound is then that of the floors left.
    """
    if known is None:
        layerwise(problem)
    sure = {**problem.alone, **(known or {})}
    found = _lazily(problem, problem.cuts, sure, problem.price, most_fronts)
    placed = problem.placed(found.partition)
    has_places = {choice.group for choice in placed} == {choice.group for choice in found.partition}
    return Certified(placed, found.lower_bound, found.complete and has_places)


def keep_tensors(problem: Problem, partition: Partition) -> Hulls:
    """Hulls of the groups of `partition` with those tensors on chip that pay there.

    In profile hw at the mappings found, which takes milliseconds; in profile dosa, where tensors on chip
    take room from the tiles, at the group tiles found.
    """
    hulls = dict(problem.alone)
    if not problem.cuts.tensors:
        return hulls
    first = {**problem.layers, **problem.candidates}
    choices: dict[Layers, list[Choice]] = {}
    for choice in partition:
        same = first[choice.group.layers]
        choices.setdefault(same, []).append(choice.renamed(same))
    groups = {choice.group.layers: first[choice.group.layers] for choice in partition}
    if problem.rules.hw:
        for variant in Partitioner(problem.graph, groups, problem.rules).variants:
            found = problem.groups.at_mappings(choices[variant.layers], variant.boundary)
            hulls[variant] = merge((hulls.get(variant, EMPTY), found))
        return hulls

    def price(variant: Variant, known: GroupHull) -> GroupHull:
        if len(variant.layers) == 1:
            return problem.price(variant, known)
        tiles = dict.fromkeys(c.group.tile for c in choices[variant.layers] if c.group.tile)
        return problem.price_group(variant.layers, tiles, known, variant.boundary)

    cuts = Partitioner(problem.graph, {**problem.layers, **groups}, problem.rules)
    _lazily(problem, cuts, hulls, price, None)
    return hulls


def _lazily(
    problem: Problem,
    cuts: Partitioner,
    sure: Hulls,
    price: Callable[[Variant, GroupHull], GroupHull],
    most_fronts: int | None,
) -> Certified:
    """Price what gets chosen, into `sure`, until nothing else is."""
    objective = problem.objective
    floors = Floors(problem)
    priced = dict(problem.alone)
    best = cuts.optimum(sure, objective)

    def stop() -> bool:
        return problem.out_of_time() or (most_fronts is not None and len(problem.fronts) >= most_fronts)

    while True:
        hulls = {v: priced[v] if v in priced else floors.of(v) for v in cuts.variants}
        result = cuts.best(hulls, objective)
        wanted = {cuts.variant(step) for step, _ in result.best.choice} - priced.keys()
        if not wanted:
            problem.record(value("edp", result.best.energy, result.best.latency))
            return Certified(cuts.partition(hulls, result.best.choice), result.lower_bound, True)
        for variant in sorted(wanted, key=_order):
            if stop():
                break
            if len(variant.layers) > 1:
                problem.say(f"pricing fusion group {problem.steps}: {' + '.join(variant.layers)}")
            found = sure.get(variant, EMPTY)
            sure[variant] = priced[variant] = merge((found, price(variant, found)))
            problem.steps += 1
        now = cuts.optimum(sure, objective)
        if value(objective, now.energy, now.latency) < value(objective, best.energy, best.latency):
            best = now
        problem.record(value("edp", best.energy, best.latency))
        if stop():
            return Certified(best.choice, result.lower_bound, False)


def _order(variant: Variant) -> tuple[Layers, list[str], list[str], int]:
    read, kept, reserved = variant.boundary
    return variant.layers, sorted(read), sorted(kept), reserved


class Floors:
    """Costs that no option of a variant can beat: no halo computed twice, weights loaded once, a
    scratchpad that holds everything."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._found: Hulls = {}

    def of(self, variant: Variant) -> GroupHull:
        """One point; nothing for layers that cannot run as a group."""
        key = Variant(variant.layers, variant.boundary._replace(reserved=0))
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._solve(*key)
        return found

    def _solve(self, layers: Layers, at: Boundary) -> GroupHull:
        problem = self.problem
        if len(layers) == 1:
            return problem.groups.floor_alone(layers[0], at)
        size = last_output(problem.graph, layers)
        if size is None:
            return EMPTY
        group = FusionGroup(layers, GroupTile(*size), resident_tensors=at.tensors)
        is_paper = problem.fusion_model == "paper"
        try:
            plan = (boundary if is_paper else plan_group)(problem.graph, group)
        except ScheduleError:
            return EMPTY
        least = plan if is_paper else least_regions(problem.graph, plan)
        energy, latency = problem.groups.floor(group, least, is_paper=is_paper)
        return GroupHull(np.array([energy]), np.array([latency]), (Choice(group, (), ()),))


def relaxed_bound(problem: Problem) -> float:
    """A lower bound in pJ and cycles without pricing any group: floors instead of fused costs.

    Under a latency model other than roofline floors stand for single layers, too: mappings that it would
    prefer may be missing among those enumerated.
    """
    floors = Floors(problem)
    known: Mapping[Variant, GroupHull] = problem.alone if problem.rules.latency == "roofline" else {}
    hulls = {v: known[v] if v in known else floors.of(v) for v in problem.cuts.variants}
    return problem.cuts.best(hulls, problem.objective).lower_bound
