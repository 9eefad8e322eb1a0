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

from costmodel.group.fusion import ScheduleError, boundary
from costmodel.schedule.schedule import FusionGroup, GroupTile
from optimizer.cut.partition import Partition, Partitioner
from optimizer.cut.problem import Problem, value
from optimizer.group.hull import EMPTY, Choice, GroupHull, merge
from optimizer.group.least_regions import least_regions
from optimizer.group.residency import Boundary, Layers, Variant
from optimizer.group.tiles import last_output
from optimizer.layer.hull import Solution

Hulls = dict[Variant, GroupHull]


class Certified(NamedTuple):
    """The best partition found, a lower bound on the objective (pJ and cycles), whether it is optimal."""

    partition: Partition
    lower_bound: float
    complete: bool


def layerwise(problem: Problem) -> tuple[Solution[Partition], float]:
    """Every layer alone at the mapping that is best for the network, and the bound for that."""
    best, bound = problem.layerwise
    problem.record(value("edp", best.energy, best.latency))
    return best, bound


def exact(problem: Problem, most_fronts: int | None = None) -> Certified:
    """Every layer, every candidate group and every set of tensors on chip in between.

    After `most_fronts` enumerated fronts no further variant is priced: the bound is then that of the floors
    left.
    """
    layerwise(problem)
    return Certificate(problem).run(most_fronts)


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

    certificate = Certificate(
        problem, Partitioner(problem.graph, {**problem.layers, **groups}, problem.rules), price
    )
    certificate.run()
    return certificate.sure


class Certificate:
    """Prices the variants that get chosen until all that are chosen are priced.

    Other searches may offer choices meanwhile: where these are good, less has to be enumerated.
    """

    def __init__(
        self,
        problem: Problem,
        cuts: Partitioner | None = None,
        price: Callable[[Variant, GroupHull], GroupHull] | None = None,
    ) -> None:
        self.problem = problem
        self.cuts = cuts or problem.cuts
        self.sure: Hulls = dict(problem.alone)
        """Choices that can be executed, of all variants that have some."""
        self._priced = dict(problem.alone)
        self._price = price or problem.price
        self._floors = Floors(problem)

    def offer(self, hulls: Hulls) -> None:
        """Choices found elsewhere."""
        for variant, hull in hulls.items():
            self.sure[variant] = merge((self.sure.get(variant, EMPTY), hull))

    def optimistic(self) -> Hulls:
        """Hulls of what is priced, floors of the rest (kept: the first time takes longest)."""
        priced = self._priced
        return {v: priced[v] if v in priced else self._floors.of(v) for v in self.cuts.variants}

    @property
    def best(self) -> Solution[Partition]:
        """The best partition into choices that can be executed."""
        return self.cuts.optimum(self.sure, self.problem.objective)

    def run(self, most_fronts: int | None = None) -> Certified:
        """The best partition, its tensors in their places; optimal unless time, or `most_fronts` fronts
        enumerated from now on, stop it."""
        found = self._run(most_fronts)
        placed = self.problem.placed(found.partition)
        has_places = {choice.group for choice in placed} == {choice.group for choice in found.partition}
        return Certified(placed, found.lower_bound, found.complete and has_places)

    def _run(self, most_fronts: int | None) -> Certified:
        problem, objective, sure = self.problem, self.problem.objective, self.sure
        last = None if most_fronts is None else len(problem.fronts) + most_fronts

        def stop() -> bool:
            return problem.out_of_time() or (last is not None and len(problem.fronts) >= last)

        while True:
            hulls = self.optimistic()
            result = self.cuts.best(hulls, objective)
            wanted = {self.cuts.variant(step) for step, _ in result.best.choice} - self._priced.keys()
            if not wanted:
                problem.record(value("edp", result.best.energy, result.best.latency))
                return Certified(self.cuts.partition(hulls, result.best.choice), result.lower_bound, True)
            has_more = False
            for variant in sorted(wanted, key=_order):
                if stop():
                    break
                if len(variant.layers) > 1:
                    problem.say(f"pricing fusion group {problem.steps}: {' + '.join(variant.layers)}")
                known = sure.get(variant, EMPTY)
                fresh = self._price(variant, known)
                sure[variant] = self._priced[variant] = merge((known, fresh))
                has_more |= len(fresh) > 0
                problem.steps += 1
            is_over = stop()
            if has_more or is_over:
                best = self.cuts.best(sure, objective).best
                problem.record(value("edp", best.energy, best.latency))
                if is_over:
                    return Certified(self.cuts.partition(sure, best.choice), result.lower_bound, False)


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
            plan = boundary(problem.graph, group) if is_paper else problem.groups.spaces.plan(group)
        except ScheduleError:
            return EMPTY
        least = plan if is_paper else least_regions(problem.graph, plan)
        energy, latency = problem.groups.spaces.group_floor(group, least, is_paper=is_paper)
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
