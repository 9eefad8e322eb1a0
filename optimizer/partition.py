"""Cut a graph into fusion groups: exact dynamic programming over what is done so far.

The first layer not yet in a group decides the next group; what is done beyond it (open branches)
is the state, so chains cost one state per layer and a residual block a handful.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Literal

import networkx as nx
import numpy as np

from converter.graph import Graph
from optimizer.group_hull import Choice, GroupHull
from optimizer.hull import HullResult, Solution, minimise_edp

Objective = Literal["edp", "energy", "latency"]
Partition = tuple[Choice, ...]


@dataclass(frozen=True)
class _Candidate:
    layers: tuple[str, ...]
    rest: int
    """Bit mask of the members after the first."""
    hull: GroupHull
    distinct: int
    """Index of the hull's costs among the distinct ones: identical groups share them."""


_Origin = tuple[int, int, int, _Candidate | None]
"""(layer, state, vertex, group) that a state was reached from."""
_Frontier = list[dict[int, tuple[float, _Origin | None]]]
"""Per layer: which later layers are grouped already -> (least cost, how it was reached)."""


class Partitioner:
    """Minimises over partitions of a graph into candidate groups, each with its hull of options."""

    def __init__(self, graph: Graph, hulls: dict[tuple[str, ...], GroupHull]) -> None:
        self.graph = graph
        self.position = {layer.name: i for i, layer in enumerate(graph.layers)}
        self.starting: list[list[_Candidate]] = [[] for _ in graph.layers]
        self.distinct: list[GroupHull] = []
        index: dict[int, int] = {}
        for layers, hull in hulls.items():
            if len(hull):
                mask = sum(1 << self.position[name] for name in layers[1:])
                known = index.setdefault(id(hull.energy), len(self.distinct))
                if known == len(self.distinct):
                    self.distinct.append(hull)
                self.starting[self.position[layers[0]]].append(_Candidate(layers, mask, hull, known))

    def best(self, objective: Objective) -> HullResult[Partition]:
        """The best partition and a bound that holds for every partition into the candidates."""
        if objective == "edp":
            return minimise_edp(self.solve)
        solution = self.solve(1.0, 1e-9) if objective == "energy" else self.solve(1e-9, 1.0)
        return HullResult(
            solution, solution.energy if objective == "energy" else solution.latency, 1, (solution,)
        )

    def solve(self, a: float, b: float) -> Solution[Partition]:
        """Exact minimum of a * energy + b * latency."""
        banned: set[tuple[str, ...]] = set()
        while True:
            solution = self._solve(a, b, banned)
            cycle = deadlock(self.graph, [choice.group.layers for choice in solution.choice])
            if cycle is None:
                return solution
            banned.add(cycle)

    def _solve(self, a: float, b: float, banned: set[tuple[str, ...]]) -> Solution[Partition]:
        best: list[tuple[float, int]] = []
        for hull in self.distinct:
            weighted = a * hull.energy + b * hull.latency
            vertex = int(np.argmin(weighted))
            best.append((float(weighted[vertex]), vertex))
        priced = [
            [(*best[c.distinct], c) for c in candidates if c.layers not in banned]
            for candidates in self.starting
        ]
        count = len(self.graph.layers)
        frontier: _Frontier = [{} for _ in range(count + 1)]
        frontier[0][0] = (0.0, None)
        for i in range(count):
            for state, (cost, _) in frontier[i].items():
                if state & 1:
                    self._reach(frontier, i + 1, state >> 1, cost, (i, state, -1, None))
                    continue
                for value, vertex, candidate in priced[i]:
                    rest = candidate.rest >> i
                    if rest & state:
                        continue
                    self._reach(
                        frontier, i + 1, (state | rest) >> 1, cost + value, (i, state, vertex, candidate)
                    )
        return self._trace(frontier)

    @staticmethod
    def _reach(frontier: _Frontier, index: int, state: int, cost: float, origin: _Origin) -> None:
        known = frontier[index].get(state)
        if known is None or cost < known[0]:
            frontier[index][state] = (cost, origin)

    def _trace(self, frontier: _Frontier) -> Solution[Partition]:
        energy = latency = 0.0
        chosen: list[Choice] = []
        origin = frontier[-1][0][1]
        while origin is not None:
            i, state, vertex, candidate = origin
            if candidate is not None:
                energy += float(candidate.hull.energy[vertex])
                latency += float(candidate.hull.latency[vertex])
                chosen.append(candidate.hull.choices[vertex])
            origin = frontier[i][state][1]
        return Solution(energy, latency, tuple(reversed(chosen)))


def deadlock(graph: Graph, groups: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    """A group that waits for itself through others, if any (convex groups can deadlock in pairs).

    Layers in none of the groups run alone.
    """
    position = {layer.name: i for i, layer in enumerate(graph.layers)}
    if all(position[layers[-1]] - position[layers[0]] == len(layers) - 1 for layers in groups):
        return None  # runs of consecutive layers keep the topological order
    group_of = {name: layers for layers in groups for name in layers}
    waits: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for names in graph.dag.edges:
        producer, consumer = (group_of.get(name, (name,)) for name in names)
        if producer != consumer:
            waits.setdefault(consumer, set()).add(producer)
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        cycle: list[tuple[str, ...]] = error.args[1]
        return max(cycle, key=len)
    return None


def ordered(graph: Graph, partition: Partition) -> Partition:
    """Groups in an order that runs producers before consumers, close to graph order."""
    group_of = {name: i for i, choice in enumerate(partition) for name in choice.group.layers}
    quotient: nx.DiGraph[int] = nx.DiGraph()
    quotient.add_nodes_from(range(len(partition)))
    for producer, consumer in graph.dag.edges:
        if group_of[producer] != group_of[consumer]:
            quotient.add_edge(group_of[producer], group_of[consumer])
    position = {layer.name: i for i, layer in enumerate(graph.layers)}
    order = nx.lexicographical_topological_sort(
        quotient, key=lambda i: position[partition[i].group.layers[-1]]
    )
    return tuple(partition[i] for i in order)
