"""Exact search: every canonical mapping, every candidate group, hull dynamic programming.

Optimal among canonical mappings (see `enumerate`), groups of up to `Problem.most_members` layers, the
group tiles of `tiles.all_tiles` and the tensors that `Partitioner` lets stay on chip between groups.
Groups are priced lazily: an unpriced group stands in with a floor no way to run it can beat, the cuts
are decided on these optimistic costs, and only groups that get chosen are priced.  When all chosen
ones are priced the partition is optimal; until then its optimistic cost is a lower bound (anytime
certificate).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fadiff.costmodel.group.fusion import ScheduleError, paper_plan
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile
from fadiff.optimizer.cut.partition import Cuts, Partition, value
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.group.hull import EMPTY, GroupHull, Way, merge
from fadiff.optimizer.group.residency import Layers, PlacedGroup, Surroundings
from fadiff.optimizer.group.tiles import last_output
from fadiff.optimizer.layer.hull import HullResult, Solution, lower_hull

Hulls = dict[PlacedGroup, GroupHull]
CERTIFIED_FRONTS = 3000
"""Fronts of single layers to enumerate for a proof (about six milliseconds each in profile hw)."""


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

    After `most_fronts` enumerated fronts no further group is priced: the bound is then that of the floors
    left.
    """
    layerwise(problem)
    return Certificate(problem).run(most_fronts)


class Certificate:
    """Prices the groups that get chosen until all that are chosen are priced.

    Other searches may offer ways meanwhile: where these are good, less has to be enumerated.
    """

    def __init__(
        self,
        problem: Problem,
    ) -> None:
        self.problem, self.cuts = problem, problem.cuts
        self.sure: Hulls = dict(problem.alone)
        """Ways that can be executed, of all groups that have some."""
        self._floors = Floors(problem)
        self._optimistic: Hulls = {}
        self._priced = set(problem.alone)
        self._by_tile: set[PlacedGroup] = set()
        """Groups whose floors are those of their tiles: most of those that get chosen need no price then."""
        self._refines = problem.fusion_model == "sound"
        self._kept: tuple[float, Partition] | None = None
        self._least = math.inf
        """Value of the best partition that was to be kept, wherever its tensors have their places."""

    def offer(self, hulls: Hulls) -> None:
        """Ways found elsewhere."""
        for placed, hull in hulls.items():
            self.sure[placed] = merge((self.sure.get(placed, EMPTY), hull))
            if placed in self._optimistic:
                self._optimistic[placed] = merge((self._optimistic[placed], hull))

    def optimistic(self) -> Hulls:
        """Hulls of what is priced, floors of the rest (kept: the first time takes longest)."""
        if not self._optimistic:
            alone = self.problem.alone
            self._optimistic = {
                placed: alone[placed] if placed in alone else self._floors.of(placed)
                for placed in self.cuts.placed_groups
            }
        return self._optimistic

    @property
    def best(self) -> Solution[Partition]:
        """The best partition into ways that can be executed."""
        return self.cuts.optimum(self.sure, self.problem.objective)

    def run(self, most_fronts: int | None = None) -> Certified:
        """The best partition, its tensors in their places; optimal unless the time budget, or `most_fronts`
        fronts enumerated from now on, stop it."""
        self._keep(self.problem.layerwise[0].argmin)
        found = self._run(most_fronts)
        has_places = self._keep(found.partition)
        assert self._kept is not None
        complete = found.complete and has_places
        if self.problem.rules.latency == "clock":
            # Where no unit runs a layer, not all single instructions that the clock tells apart are tried.
            issues = {mapping.issue for way in self._kept[1] for mapping in way.mappings().values()}
            complete &= "instructions" not in issues
        return found._replace(partition=self._kept[1], complete=complete)

    def _keep(self, partition: Partition) -> bool:
        """Remember a partition if it is the best with its tensors in their places; whether all have some."""
        problem = self.problem
        placed = problem.placed(partition)
        try:
            cost = problem.cost(problem.schedule_of(placed))
        except ScheduleError:
            # Its mappings were for tensors on chip that had no place, and there was no time for others.
            return False
        worth = value(problem.objective, cost.energy_pj, cost.latency_cycles)
        if self._kept is None or worth < self._kept[0]:
            self._kept = worth, placed
        return {way.group for way in placed} == {way.group for way in partition}

    def _run(self, most_fronts: int | None) -> Certified:
        problem, objective, sure = self.problem, self.problem.objective, self.sure
        last = None if most_fronts is None else len(problem.fronts) + most_fronts

        def stop() -> bool:
            return problem.out_of_time() or (last is not None and len(problem.fronts) >= last)

        while True:
            hulls = self.optimistic()
            result = self.cuts.best(hulls, objective)
            wanted = {self.cuts.placed(step) for step, _ in result.best.argmin} - self._priced
            if not wanted:
                problem.record(value("edp", result.best.energy, result.best.latency))
                return Certified(self.cuts.partition(hulls, result.best.argmin), result.lower_bound, True)
            rough = {placed for placed in wanted if len(placed.layers) > 1} - self._by_tile
            if self._refines and rough and not stop():
                self._by_tile |= rough
                for placed in rough:
                    hulls[placed] = merge((sure.get(placed, EMPTY), self._floors.by_tile(placed)))
                continue
            has_more = False
            for placed in sorted(wanted, key=_order):
                if stop():
                    break
                if len(placed.layers) > 1:
                    problem.say(f"pricing fusion group {problem.steps}: {' + '.join(placed.layers)}")
                known = sure.get(placed, EMPTY)
                fresh = problem.price(placed, known)
                sure[placed] = hulls[placed] = merge((known, fresh))
                self._priced.add(placed)
                has_more |= len(fresh) > 0
                problem.steps += 1
            is_over = stop()
            if has_more or is_over:
                best = self.cuts.best(sure, objective).best
                problem.record(value("edp", best.energy, best.latency))
                worth = value(objective, best.energy, best.latency)
                if not is_over and worth < self._least:
                    self._least = worth
                    self._keep(self.cuts.partition(sure, best.argmin))
                if is_over:
                    return Certified(self.cuts.partition(sure, best.argmin), result.lower_bound, False)


def _order(placed: PlacedGroup) -> tuple[Layers, list[str], list[str], int]:
    read, written, reserved = placed.surroundings
    return placed.layers, sorted(read), sorted(written), reserved


class Floors:
    """Costs that no way to run a group can beat: no halo computed twice, weights loaded once, a
    scratchpad that holds everything."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._found: Hulls = {}

    def of(self, placed: PlacedGroup) -> GroupHull:
        """One point; nothing for layers that cannot run as a group."""
        key = PlacedGroup(placed.layers, placed.surroundings._replace(reserved=0))
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._solve(*key)
        return found

    def by_tile(self, placed: PlacedGroup) -> GroupHull:
        """Hull of the floors of every group tile that may have room."""
        floors = self.problem.groups.tile_floors(*placed)
        keep = lower_hull(floors.energy, floors.latency)
        ways = tuple(Way(floors.tiles[i], (), ()) for i in keep)
        return GroupHull(floors.energy[keep], floors.latency[keep], ways)

    def _solve(self, layers: Layers, at: Surroundings) -> GroupHull:
        problem = self.problem
        if len(layers) == 1:
            return problem.groups.floor_alone(layers[0], at)
        size = last_output(problem.graph, layers)
        if size is None:
            return EMPTY
        group = FusionGroup(layers, GroupTile(*size), resident_tensors=at.tensors)
        is_paper, spaces = problem.fusion_model == "paper", problem.groups.spaces
        try:
            least = paper_plan(problem.graph, group) if is_paper else spaces.least(layers, at.tensors)
        except ScheduleError:
            return EMPTY
        energy, latency = spaces.group_floor(group, least, is_paper=is_paper)
        return GroupHull.of(energy, latency, Way(group, (), ()))


def relaxed(problem: Problem) -> HullResult[Cuts]:
    """The best partition and a lower bound without pricing any group: floors instead of fused costs."""
    floors, known = Floors(problem), problem.alone
    hulls = {v: known[v] if v in known else floors.of(v) for v in problem.cuts.placed_groups}
    return problem.cuts.best(hulls, problem.objective)
