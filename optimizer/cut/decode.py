"""From free choices (extents, orders, fused edges) to legal schedules and their exact cost.

Used by every method that proposes whole schedules: descent's restarts, genetic, Bayesian and random
search.  Illegal tiles are shrunk until they fit (`legalise`); of layers joined by fused edges the first
ones are left out until the rest may run as one group, which falls apart into its layers if its tiles
cannot be executed, or if groups would wait for each other.  So every point decodes to a legal schedule.

Shapes: B points, L nodes, V variables (relaxation.VARIABLES), E fusable edges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fadiff.converter.ir.graph import Graph
from fadiff.converter.ir.loops import Dim
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.group.nodes import Node
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile
from fadiff.optimizer.cut.partition import Partition
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.group.hull import GroupHull, Way, merge
from fadiff.optimizer.group.network import RelaxedNetwork
from fadiff.optimizer.group.open_ways import OpenWay
from fadiff.optimizer.group.residency import PlacedGroup
from fadiff.optimizer.layer.canonical import Points
from fadiff.optimizer.layer.fronts import Floats, Front
from fadiff.optimizer.layer.hull import Solution, lower_hull
from fadiff.optimizer.layer.legalise import legalise
from fadiff.optimizer.layer.loop_points import LoopPoints, loop_points
from fadiff.optimizer.layer.pricing import price
from fadiff.optimizer.layer.space import Ints, LayerSpace

_TILE: tuple[Dim, ...] = ("N", "K", "C", "P", "Q", "R", "S")
VARIABLES: tuple[str, ...] = ("N", "K", "C", "P", "Q", "R", "S", "n", "k", "p", "q")
"""Scratchpad-tile extents (capitals) and accumulator-tile extents; C R S of the latter follow the former."""
Priced = tuple[float, float, Way]
"""Energy, latency and how to run a group."""
_Groups = list[tuple[tuple[str, ...], Priced]]
"""Layers that run as one, and how."""
Row = tuple[int, ...]
"""Extents and order of one node at one point."""
_PointWay = tuple[OpenWay, list[Row]]
"""How to run a group, and what a point says about every tensor-core member."""


def extents_of(node: Node, space: LayerSpace) -> tuple[tuple[int, ...], ...]:
    """Candidates of every variable, ascending; an add has a choice along N, P and Q only."""
    found = []
    for name in VARIABLES:
        d: Dim = name.upper()  # type: ignore[assignment]
        free = not node.is_add or name in ("N", "P", "Q")
        found.append(space.tiles(d) if free else (space.bounds[d],))
    return tuple(found)


@dataclass(frozen=True)
class Encoding:
    """The joint search space of a problem as arrays."""

    network: RelaxedNetwork
    spaces: tuple[LayerSpace, ...]
    candidates: tuple[tuple[tuple[int, ...], ...], ...]
    """[node][variable]: extents, ascending."""

    @classmethod
    def of(cls, problem: Problem) -> Encoding:
        """All distinct layers and fusable edges."""
        network = problem.network
        spaces = tuple(LayerSpace.alone(shape, problem.rules) for shape in network.shapes)
        if problem.rules.latency == "clock":
            first = {node: name for name, node in reversed(network.node_of.items())}
            spaces = tuple(
                space if network.nodes[i].is_add else problem.groups.space_alone(first[i])
                for i, space in enumerate(spaces)
            )
        lists = tuple(extents_of(node, space) for node, space in zip(network.nodes, spaces, strict=True))
        return cls(network, spaces, lists)

    @property
    def nodes(self) -> int:
        """Distinct layers."""
        return len(self.spaces)

    @property
    def edges(self) -> int:
        """Fusable edges between them."""
        return len(self.network.edges)


@dataclass
class Batch:
    """Points of the search space: extents [B, L, V], order [B, L], fused [B, E], and height and width of
    the group tile of each node as the last of its group, [B, L, 2] (None: its scratchpad tile)."""

    extents: Ints
    order: Ints
    fused: NDArray[np.bool_]
    tiles: Ints | None = None

    def select(self, b: int) -> Batch:
        """One point."""
        tiles = None if self.tiles is None else self.tiles[b : b + 1]
        return Batch(self.extents[b : b + 1], self.order[b : b + 1], self.fused[b : b + 1], tiles)

    def group_tile(self, b: int, node: int) -> GroupTile:
        """The group tile of a group that ends with a node."""
        n, p, q = (int(self.extents[b, node, VARIABLES.index(d)]) for d in ("N", "P", "Q"))
        if self.tiles is not None:
            p, q = self.tiles[b, node].tolist()
        return GroupTile(n, p, q)

    def __len__(self) -> int:
        return len(self.extents)


class Decoder:
    """Exact cost of batches of points, with everything seen remembered."""

    def __init__(self, problem: Problem, encoding: Encoding) -> None:
        self.problem, self.encoding = problem, encoding
        self._groups: dict[object, Priced | None] = {}
        self._members: dict[LayerSpace, dict[Row, _Member]] = defaultdict(dict)
        self._partings: dict[bytes, list[tuple[str, ...]]] = {}
        node_of = encoding.network.node_of
        self._repeats = np.array(encoding.network.repeats)
        self._adds = {
            i: problem.groups.alone(name) for name, i in node_of.items() if encoding.network.nodes[i].is_add
        }
        self.host = problem.beside(encoding.network)
        """Energy and latency of the layers that are no nodes."""

    def alone(self, batch: Batch) -> tuple[Floats, Floats, list[Points | _Near | None]]:
        """Energy and latency [B, L] of every node unfused, and its legalised points (an add has none)."""
        energy = np.zeros((len(batch), self.encoding.nodes))
        latency = np.zeros_like(energy)
        points: list[Points | _Near | None] = []
        for i, space in enumerate(self.encoding.spaces):
            if i in self._adds:
                energy[:, i], latency[:, i] = self._adds[i].energy[0], self._adds[i].latency[0]
                points.append(None)
                continue
            legal, energy[:, i], latency[:, i] = price_legal(space, batch.extents[:, i], batch.order[:, i])
            points.append(legal)
        return energy, latency, points

    def cost(self, batch: Batch) -> tuple[Floats, Floats]:
        """Network energy and latency [B]."""
        node_energy, node_latency, _ = self.alone(batch)
        energy = node_energy @ self._repeats + self.host[0]
        latency = node_latency @ self._repeats + self.host[1]
        fused = np.flatnonzero(batch.fused.any(axis=1)).tolist()
        for b, groups in zip(fused, self._price_groups(batch, fused), strict=True):
            for layers, found in self._without_deadlock(groups):
                nodes = self._nodes(layers)
                energy[b] += found[0] - node_energy[b, nodes].sum()
                latency[b] += found[1] - node_latency[b, nodes].sum()
                for name in layers:
                    if name not in self.encoding.network.node_of:
                        energy[b] -= self.problem.groups.alone(name).energy[0]
                        latency[b] -= self.problem.groups.alone(name).latency[0]
        return energy, latency

    def best(self, batch: Batch) -> Solution[Partition]:
        """The best schedule made of groups and unfused layers of any points: only the sums of energy and
        latency couple them, so points are as good as their best parts together."""
        problem = self.problem
        found: dict[PlacedGroup, dict[int, GroupHull]] = {}
        energy, latency, points = self.alone(batch)
        for name, node in self.encoding.network.node_of.items():
            first, legal = problem.layers[name,], points[node]
            if legal is not None and node not in found.setdefault(PlacedGroup(first), {}):
                fits = np.flatnonzero(np.isfinite(energy[:, node]))
                keep = fits[lower_hull(energy[fits, node], latency[fits, node])]
                mappings = tuple(legal.mapping(int(b)) for b in keep)
                front = Front(energy[keep, node], latency[keep, node], mappings)
                group = FusionGroup(first)
                ways = tuple(Way(group, ((first[0], front),), (at,)) for at in range(len(front)))
                found[PlacedGroup(first)][node] = GroupHull(front.energy, front.latency, ways)
        for groups in self._price_groups(batch, range(len(batch))):
            for layers, (e, lat, way) in groups:
                same = found.setdefault(PlacedGroup(problem.candidates[layers]), {})
                same[id(way)] = GroupHull.of(e, lat, way)
        # A layer that fits at none of the points is mapped as well as it can be.
        merged = {placed: merge(same.values()) for placed, same in found.items() if same}
        hulls = problem.alone | {placed: hull for placed, hull in merged.items() if len(hull)}
        return problem.off_chip.optimum(hulls, problem.objective)

    def partition(self, batch: Batch, b: int) -> Partition:
        """The schedule of one point."""
        one = batch.select(b)
        energy, latency, points = self.alone(one)
        (groups,) = self._price_groups(one, [0])
        parts = [found[2].renamed(layers) for layers, found in self._without_deadlock(groups)]
        fused = {name for way in parts for name in way.group.layers}
        for layer in self.problem.graph.layers:
            if layer.name in fused:
                continue
            i = self.encoding.network.node_of.get(layer.name)
            found = None if i is None else points[i]
            if i is None or found is None:
                parts.append(self.problem.groups.alone(layer.name).ways[0])
                continue
            front = Front(energy[0, i : i + 1], latency[0, i : i + 1], (found.mapping(0),))
            parts.append(Way(FusionGroup((layer.name,)), ((layer.name, front),), (0,)))
        return tuple(parts)

    def _without_deadlock(self, groups: _Groups) -> _Groups:
        """Those of the groups of one point that do not wait for each other."""
        while cycle := deadlock(self.problem.graph, [layers for layers, _ in groups]):
            groups = [group for group in groups if group[0] != cycle]
        return groups

    def _joined(self, fused: NDArray[np.bool_]) -> list[tuple[str, ...]]:
        """Candidate groups that the fused edges join."""
        key = fused.tobytes()
        if key not in self._partings:
            self._partings[key] = joined_groups(self.problem, self.encoding.network, fused.tolist())
        return self._partings[key]

    def _nodes(self, layers: tuple[str, ...]) -> list[int]:
        """Nodes of the members that are nodes; the last one always is."""
        node_of = self.encoding.network.node_of
        return [node_of[name] for name in layers if name in node_of]

    def _key(self, layers: tuple[str, ...], batch: Batch, b: int) -> object:
        """What decides how a point runs a group, equal for identical groups."""
        nodes = self._nodes(layers)
        first = self.problem.candidates.get(layers, layers)
        tile = batch.group_tile(b, nodes[-1])
        return first, tuple(nodes), batch.extents[b, nodes].tobytes(), batch.order[b, nodes].tobytes(), tile

    def _price_groups(self, batch: Batch, points: Iterable[int]) -> list[_Groups]:
        """The groups of some points that can be executed, at their members' tiles; in what they cost layers
        are named as in the first identical group."""
        asked = [
            [(layers, self._key(layers, batch, b), b) for layers in self._joined(batch.fused[b])]
            for b in points
        ]
        ways: dict[object, _PointWay | None] = {}
        for layers, key, b in chain.from_iterable(asked):
            if key not in self._groups and key not in ways:
                open_way = self._open_way(layers, batch, b)
                ways[key] = (open_way, self._rows(open_way, batch, b)) if open_way else None
        self._price_members(filter(None, ways.values()))
        self._groups.update((key, way and self._priced(*way)) for key, way in ways.items())
        return [
            [(layers, found) for layers, key, _ in groups if (found := self._groups[key]) is not None]
            for groups in asked
        ]

    def _price_members(self, ways: Iterable[_PointWay]) -> None:
        """Remember what members cost, those with one map-space priced together."""
        rows: dict[LayerSpace, dict[Row, None]] = {}
        for open_way, wanted in ways:
            for (_, space), row in zip(open_way.spaces, wanted, strict=True):
                if row not in self._members[space]:
                    rows.setdefault(space, {})[row] = None
        for space, fresh in rows.items():
            self._members[space].update(zip(fresh, _price_rows(space, list(fresh)), strict=True))

    def _open_way(self, layers: tuple[str, ...], batch: Batch, b: int) -> OpenWay | None:
        """A group at a point's group tile; None if it cannot be executed."""
        last = self._nodes(layers)[-1]
        most = self.encoding.network.nodes[last].shape.dims
        wanted = batch.group_tile(b, last)
        tile = GroupTile(min(wanted.N, most.N), min(wanted.P, most.P), min(wanted.Q, most.Q))
        group = FusionGroup(layers, tile)
        try:
            return self.problem.groups.most_resident(group, self.problem.groups.spaces.plan(group))
        except ScheduleError:
            return None

    def _rows(self, open_way: OpenWay, batch: Batch, b: int) -> list[Row]:
        nodes = [self.encoding.network.node_of[name] for name, _ in open_way.spaces]
        return [(*batch.extents[b, node].tolist(), int(batch.order[b, node])) for node in nodes]

    def _priced(self, open_way: OpenWay, rows: list[Row]) -> Priced | None:
        """A way at its members' tiles; None if one of them has no room."""
        members = [self._members[space][row] for (_, space), row in zip(open_way.spaces, rows, strict=True)]
        energy = open_way.host[0] + sum(member.energy for member in members)
        latency = open_way.host[1] + sum(member.latency for member in members)
        if not np.isfinite(energy):
            return None
        names = (name for name, _ in open_way.spaces)
        fronts = tuple((name, member.front) for name, member in zip(names, members, strict=True))
        return energy, latency, Way(open_way.group, fronts, (0,) * len(members))


class _Member(NamedTuple):
    """One way to run one member: a row of `points`."""

    energy: float
    latency: float
    points: Points | _Near
    at: int

    @property
    def front(self) -> Front:
        """This way only."""
        return Front(np.array([self.energy]), np.array([self.latency]), (self.points.mapping(self.at),))


def _price_rows(space: LayerSpace, rows: list[Row]) -> Iterator[_Member]:
    columns = np.array(rows, dtype=np.int64)
    points, energy, latency = price_legal(space, columns[:, :-1], columns[:, -1])
    return map(_Member, energy.tolist(), latency.tolist(), repeat(points), range(len(energy)))


class _Near(NamedTuple):
    """The mappings of loop units nearest to some points."""

    loops: LoopPoints
    places: Ints

    def mapping(self, at: int) -> Mapping:
        """That of one point."""
        return self.loops.mapping(int(self.places[at]))


def price_legal(space: LayerSpace, extents: Ints, order: Ints) -> tuple[Points | _Near, Floats, Floats]:
    """Legal points at extents [B, V] and orders [B], with energy and latency [B]: infinite where not even the
    smallest tiles fit, or the tiles leave partial sums or resident weights where they cannot be."""
    loops = loop_points(space)
    if loops is not None and space.site is not None:
        near = loops.nearest(space.site, extents[:, : len(_TILE)], _TILE)
        energy, latency = (
            np.where(near < 0, np.inf, column[near]) for column in (loops.energy, loops.latency)
        )
        return _Near(loops, near), energy, latency
    points, fits = legalise(space, {v: extents[:, j] for j, v in enumerate(VARIABLES)}, order)
    costs = price(points)
    if space.must_finish:
        fits = fits & ~costs.spills
    return points, np.where(fits, costs.energy, np.inf), np.where(fits, costs.latency, np.inf)


def joined_groups(problem: Problem, network: RelaxedNetwork, fused: Sequence[bool]) -> list[tuple[str, ...]]:
    """Groups that the fused edges join: of layers that may not run as one the first are left out."""
    found = []
    joined = network.joined(fused)
    waiting = network.components(joined)
    while waiting:
        layers = waiting.pop()
        if layers in problem.candidates:
            found.append(layers)
        elif len(layers) > 2:
            rest = layers[1:]
            is_leaf = joined.degree[layers[0]] == 1  # the others hang together without it
            joined.remove_node(layers[0])
            waiting += [rest] if is_leaf else network.components(joined.subgraph(rest))
    return sorted(found)


def deadlock(graph: Graph, groups: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    """A group that waits for itself through others, if any (convex groups can deadlock in pairs).

    Layers in none of the groups run alone.
    """
    if all(graph.index[layers[-1]] - graph.index[layers[0]] == len(layers) - 1 for layers in groups):
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
