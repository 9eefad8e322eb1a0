"""Cut a graph into fusion groups: exact dynamic programming over what is done so far.

The first layer not yet in a group decides the next group; what is done beyond it (open branches) and
which tensors are on chip is the state, so chains cost two states per layer and a residual block a few.
Where branches cross, groups may wait for each other although each could run: the state then also has which
layers not done wait for which through groups, and no group is run that would wait for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from fadiff.converter.ir.graph import Graph, HostLayer
from fadiff.costmodel.group.resident_tensors import row_readers
from fadiff.costmodel.schedule.schedule import FusionGroup
from fadiff.optimizer.group.hull import GroupHull, Way
from fadiff.optimizer.group.residency import Layers, PlacedGroup, Surroundings, capacity, residents, streamed
from fadiff.optimizer.layer.hull import HullResult, Solution, minimise_edp
from fadiff.optimizer.layer.space import Rules

Objective = Literal["edp", "energy", "latency"]


class Prices(NamedTuple):
    """Of a pJ and a cycle, where a sum of both is minimised."""

    energy: float
    cycle: float


PRICES: dict[Objective, Prices] = {"energy": Prices(1.0, 1e-9), "latency": Prices(1e-9, 1.0)}


def value(objective: Objective | Prices, energy: float, latency: float) -> float:
    """The objective in the units of SearchResult.lower_bound, from pJ and cycles."""
    if isinstance(objective, Prices):
        return objective.energy * energy + objective.cycle * latency
    return {"edp": energy * latency * 1e-6, "energy": energy, "latency": latency}[objective]


Partition = tuple[Way, ...]
Cuts = tuple[tuple[int, int], ...]
"""Steps of a Partitioner, each with a vertex of its hull."""
Waits = tuple[tuple[int, int], ...]
"""Layers not done, each with a mask of those that wait for it through two members of a group."""
MOST_RESIDENT = 4
"""Tensors on chip at once."""
MOST_STEPS = 50_000
"""Steps between states; with more of them, fewer tensors may be on chip at once."""


@dataclass(frozen=True)
class _Candidate:
    """A group, with layers and tensors as bits of integers."""

    layers: Layers
    first: Layers
    """The first identical group."""
    members: int
    is_run: bool
    """Whether its layers are neighbours in graph order."""
    reads: int
    """Tensors of other groups that may be on chip."""
    writes: tuple[int, ...]
    """Tensors that may stay for other groups, one bit each."""
    same: Mapping[str, str]
    """Its tensors, and what the first identical group has in their place."""
    later: int
    """Layers that depend on any of its own."""


class _Step(NamedTuple):
    """Running one group in one state."""

    candidate: int
    placed: int
    resident: int
    """Tensors on chip meanwhile."""


class _Level(NamedTuple):
    """States in which the same layers are done up to the first gap, and the steps that lead there."""

    states: slice
    entering: slice
    sources: NDArray[np.int64]
    begins: NDArray[np.int64]
    """Of every state, among the level's steps."""


class Partitioner:
    """Minimises over partitions of a graph into candidate groups and over the tensors that stay between them.

    A tensor may stay while groups run that are neighbours in graph order: behind a group that leaves a
    gap nothing is on chip until the gap is closed.
    """

    def __init__(self, graph: Graph, groups: Mapping[Layers, Layers], rules: Rules | None = None) -> None:
        """`groups`: {candidate: the first identical one}, layers alone included.  Without `rules` no tensor
        stays."""
        self.graph = graph
        self.tensors = residents(graph, rules) if rules else {}
        self.rules = rules
        self._bit = {name: 1 << i for i, name in enumerate(self.tensors)}
        self._name = list(self.tensors)
        self._readers = [self._mask(c.name for c in graph.consumers(t)) for t in self.tensors]
        self._candidates = [self._candidate(layers, first) for layers, first in groups.items()]
        self._index: dict[PlacedGroup, int] = {}
        most = MOST_RESIDENT if self.tensors else 0
        while not self._build(most):
            most -= 1
        self.most_resident = most
        """Tensors on chip at once in this graph."""
        self.placed_groups = tuple(self._index)

    def _mask(self, names: Iterable[str]) -> int:
        mask = 0
        for name in names:
            mask |= 1 << self.graph.index[name]
        return mask

    def _candidate(self, layers: Layers, first: Layers) -> _Candidate:
        members = self._mask(layers)
        inside = {t for name in layers for t in self.graph.by_name[name].outputs}
        tensors = streamed(self.graph, layers)
        bits = [(name, self._bit[name]) for name in dict.fromkeys(tensors) if name in self.tensors]
        return _Candidate(
            layers,
            first,
            members,
            self.graph.index[layers[-1]] - self.graph.index[layers[0]] == len(layers) - 1,
            sum(bit for name, bit in bits if name not in inside),
            tuple(
                bit
                for name, bit in bits
                if name in inside
                and self._reading(bit) & ~members
                and not row_readers(self.graph, FusionGroup(layers), name)
            ),
            dict(zip(tensors, streamed(self.graph, first), strict=True)),
            self._any_later(members) & ~members,
        )

    def _any_later(self, layers: int) -> int:
        found = 0
        for at in _places(layers):
            found |= self.graph.dependents[at]
        return found

    def _reading(self, bit: int) -> int:
        return self._readers[bit.bit_length() - 1]

    def _build(self, most_resident: int) -> bool:
        """States, and steps between them; False if there are too many."""
        starting: list[list[int]] = [[] for _ in self.graph.layers]
        for index, candidate in enumerate(self._candidates):
            starting[self.graph.index[candidate.layers[0]]].append(index)
        count = len(self.graph.layers)
        self._index.clear()
        self._steps: list[_Step] = []
        into: list[dict[tuple[int, int, Waits], list[tuple[int, int]]]] = [{} for _ in range(count + 1)]
        into[0][0, 0, ()] = []
        sources: list[int] = []
        steps: list[int] = []
        begins: list[int] = []
        levels: list[tuple[int, int]] = []
        for i, level in enumerate(into):
            low = len(begins)
            for (gaps, resident, waits), entering in level.items():
                state = len(begins)
                begins.append(len(steps))
                sources += (source for source, _ in entering)
                steps += (step for _, step in entering)
                if i == count:
                    continue
                for index in starting[i]:
                    candidate = self._candidates[index]
                    rest = candidate.members >> i
                    if rest & gaps or (resident and not candidate.is_run):
                        continue
                    done = gaps | rest
                    waiting = self._waits(candidate, waits, done << i | (1 << i) - 1)
                    if waiting is None:
                        continue
                    for written in self._keeps(candidate, gaps, resident, most_resident):
                        after, left = i, done
                        while left & 1:
                            after, left = after + 1, left >> 1
                        step = self._step(index, resident, written)
                        still = (
                            self._still_read(resident | written, (1 << after) - 1)
                            if resident | written
                            else 0
                        )
                        into[after].setdefault((left, still, waiting), []).append((state, step))
                    if len(self._steps) > MOST_STEPS and most_resident:
                        return False
            if len(begins) > low:
                levels.append((low, len(begins)))
        self._sources, self._entering = np.array(sources, dtype=np.int64), np.array(steps, dtype=np.int64)
        self._begins = np.array([*begins, len(steps)], dtype=np.int64)
        self._levels = [self._level(low, high) for low, high in levels[1:]]
        self._placed_of = np.array([step.placed for step in self._steps], dtype=np.int64)
        return True

    def _level(self, low: int, high: int) -> _Level:
        entering = slice(int(self._begins[low]), int(self._begins[high]))
        return _Level(
            slice(low, high), entering, self._sources[entering], self._begins[low:high] - entering.start
        )

    def _keeps(self, candidate: _Candidate, gaps: int, resident: int, most_resident: int) -> Iterator[int]:
        """Sets of tensors that a group may leave on chip beside those that are there."""
        yield 0
        if gaps or not candidate.is_run or not self.rules:
            return
        for size in range(1, len(candidate.writes) + 1):
            for bits in combinations(candidate.writes, size):
                written = sum(bits)
                together = resident | written
                if together.bit_count() <= most_resident and self._nbytes(together) <= capacity(self.rules):
                    yield written

    def _names(self, bits: int) -> list[str]:
        return [self._name[bit.bit_length() - 1] for bit in _bits(bits)]

    def _nbytes(self, bits: int) -> int:
        return sum(self.tensors[name] for name in self._names(bits))

    def _waits(self, candidate: _Candidate, waits: Waits, done: int) -> Waits | None:
        """Who waits for whom once a group ran, with it `done` layers; None if it would wait for itself."""
        members = candidate.members
        open_ones = ~done & (1 << done.bit_length()) - 1
        if not (waits or open_ones):
            return ()
        known = dict(waits)
        if any(known.get(at, 0) & members for at in _places(members)):
            return None
        later = candidate.later
        for at in _places(members):
            later |= known.get(at, 0)
        found = []
        for at in _places(open_ones):
            behind = known.get(at, 0)
            if (self.graph.dependents[at] | behind) & members:
                # Not what a single member makes wait: a group with both ends would leave that out.
                behind |= later & ~self._any_later(self.graph.dependents[at] & members)
            if behind & ~done:
                found.append((at, behind & ~done))
        return tuple(found)

    def _still_read(self, resident: int, done: int) -> int:
        """Of the tensors on chip those that a layer not done reads."""
        return sum(bit for bit in _bits(resident) if self._reading(bit) & ~done)

    def _step(self, index: int, resident: int, written: int) -> int:
        candidate = self._candidates[index]
        placed = (
            self._placed(candidate, resident, written) if resident | written else PlacedGroup(candidate.first)
        )
        self._steps.append(_Step(index, self._index.setdefault(placed, len(self._index)), resident | written))
        return len(self._steps) - 1

    def _placed(self, candidate: _Candidate, resident: int, written: int) -> PlacedGroup:
        assert self.rules is not None
        read = resident & candidate.reads
        alone = len(candidate.layers) == 1
        on_host = alone and isinstance(self.graph.by_name[candidate.layers[0]], HostLayer)
        if on_host and not self.rules.counting.has_tile_buffer:  # costs nothing wherever its tensors are
            return PlacedGroup(candidate.first)
        reserved = 0 if alone and self.rules.counting.has_tile_buffer else self._nbytes(resident | written)
        names = [frozenset(candidate.same[name] for name in self._names(bits)) for bits in (read, written)]
        return PlacedGroup(candidate.first, Surroundings(names[0], names[1], reserved))

    def best(self, hulls: Mapping[PlacedGroup, GroupHull], objective: Objective | Prices) -> HullResult[Cuts]:
        """The best partition and a bound that holds for every partition into groups that have a hull."""
        solve = self.solver(hulls)
        if objective == "edp":
            return minimise_edp(solve)
        solution = solve(*(objective if isinstance(objective, Prices) else PRICES[objective]))
        return HullResult(solution, value(objective, solution.energy, solution.latency))

    def optimum(
        self, hulls: Mapping[PlacedGroup, GroupHull], objective: Objective | Prices
    ) -> Solution[Partition]:
        """The best partition into groups that have a hull."""
        found = self.best(hulls, objective).best
        return Solution(found.energy, found.latency, self.partition(hulls, found.argmin))

    def solver(self, hulls: Mapping[PlacedGroup, GroupHull]) -> Callable[[float, float], Solution[Cuts]]:
        """solve(a, b): exact minimum of a * energy + b * latency; groups without a hull are not taken."""
        nothing = np.array([np.inf])
        found = [hulls.get(placed) for placed in self.placed_groups]
        energy = [hull.energy if hull is not None and len(hull) else nothing for hull in found]
        latency = [hull.latency if hull is not None and len(hull) else nothing for hull in found]
        begins = np.cumsum([0, *(len(e) for e in energy)])[:-1]
        energies, latencies = np.concatenate(energy), np.concatenate(latency)

        def solve(a: float, b: float) -> Solution[Cuts]:
            weighted = a * energies + b * latencies
            weights = np.minimum.reduceat(weighted, begins)[self._placed_of]
            cuts = []
            total_energy = total_latency = 0.0
            vertices: dict[int, int] = {}
            for step in self._shortest(weights):
                placed = self._steps[step].placed
                if placed not in vertices:
                    vertices[placed] = int(np.argmin(a * energy[placed] + b * latency[placed]))
                vertex = vertices[placed]
                total_energy += float(energy[placed][vertex])
                total_latency += float(latency[placed][vertex])
                cuts.append((step, vertex))
            return Solution(total_energy, total_latency, tuple(cuts))

        return solve

    def _shortest(self, weights: NDArray[np.float64]) -> list[int]:
        """Steps of least total weight, first to last."""
        lengths = weights[self._entering]
        cost = np.zeros(len(self._begins) - 1)
        for states, entering, sources, begins in self._levels:
            cost[states] = np.minimum.reduceat(cost[sources] + lengths[entering], begins)
        state = len(cost) - 1
        steps = []
        while state:
            begin, end = self._begins[state], self._begins[state + 1]
            at = begin + int(np.argmin(cost[self._sources[begin:end]] + lengths[begin:end]))
            steps.append(int(self._entering[at]))
            state = int(self._sources[at])
        return steps[::-1]

    def layers(self, step: int) -> Layers:
        """The group that a step runs."""
        return self._candidates[self._steps[step].candidate].layers

    def placed(self, step: int) -> PlacedGroup:
        """What decides the cost of a step."""
        return self.placed_groups[self._steps[step].placed]

    def partition(self, hulls: Mapping[PlacedGroup, GroupHull], cuts: Cuts) -> Partition:
        """The ways behind `cuts`, each with the tensors on chip meanwhile."""
        ways = []
        for index, vertex in cuts:
            step = self._steps[index]
            way = hulls[self.placed_groups[step.placed]].ways[vertex]
            ways.append(way.renamed(self.layers(index), frozenset(self._names(step.resident))))
        return tuple(ways)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        yield mask & -mask
        mask &= mask - 1


def _places(mask: int) -> Iterator[int]:
    for bit in _bits(mask):
        yield bit.bit_length() - 1


def ordered(graph: Graph, partition: Partition) -> Partition:
    """Groups in an order that runs producers before consumers, close to graph order."""
    group_of = {name: i for i, way in enumerate(partition) for name in way.group.layers}
    quotient: nx.DiGraph[int] = nx.DiGraph()
    quotient.add_nodes_from(range(len(partition)))
    for producer, consumer in (*graph.dag.edges, *graph.filled_first):
        if group_of[producer] != group_of[consumer]:
            quotient.add_edge(group_of[producer], group_of[consumer])
    order = nx.lexicographical_topological_sort(
        quotient, key=lambda i: graph.index[partition[i].group.layers[-1]]
    )
    return tuple(partition[i] for i in order)
