"""From free choices (extents, orders, fused edges) to legal schedules and their exact cost.

Used by every method that proposes whole schedules: descent's restarts, genetic, Bayesian and random
search.  Illegal tiles are shrunk until they fit (`legalise`); of layers joined by fused edges the first
ones are left out until the rest may run as one group, which falls apart into its layers if its tiles
cannot be executed, or if groups would wait for each other.  So every point decodes to a legal schedule.

Shapes: B points, L nodes, V variables (relaxation.VARIABLES), E fusable edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from converter.dims import Dim
from costmodel.fusion import ScheduleError, plan_group
from costmodel.relaxed import Node
from costmodel.schedule import FusionGroup, GroupTile
from optimizer.candidates import divisors
from optimizer.enumerate import Points
from optimizer.footprint import Lanes, accumulator_need, scratchpad_fits
from optimizer.fronts import Front
from optimizer.group_hull import Choice, GroupHull, merge
from optimizer.hull import Solution, lower_hull
from optimizer.network import RelaxedNetwork, relaxed_network
from optimizer.options import Option, group_runs
from optimizer.partition import Partition, deadlock
from optimizer.pricing import price
from optimizer.problem import Problem
from optimizer.residency import Variant
from optimizer.space import Ints, LayerSpace, tile_count

VARIABLES: tuple[str, ...] = ("N", "K", "C", "P", "Q", "R", "S", "n", "k", "p", "q")
"""Scratchpad-tile extents (capitals) and accumulator-tile extents; C R S of the latter follow the former."""
SHRINK = 0.6
MOST_PASSES = 1.05
"""Array passes of K and C extents that fill the array, over the fewest."""
Tile = dict[str, Ints]
Priced = tuple[float, float, Choice]
"""Energy, latency and how to run a group."""


def legalise(space: LayerSpace, tile: Tile, order: Ints) -> tuple[Points, NDArray[np.bool_]]:
    """Snap extents to candidates that nest and shrink the largest until the tiles fit.

    Returns the points and which of them fit now (all, unless a single element is too much).
    """
    t = {name: column.copy() for name, column in tile.items()}
    steps = {d: np.array(space.tiles(d), dtype=np.int64) for d in ("N", "K", "C", "P", "Q", "R", "S")}
    for d, options in steps.items():
        t[d] = _snap(options, t[d])
    for d in ("K", "C"):
        steps[d] = steps[d][fills_array(space, d, steps[d]) | (steps[d] < space.side)]
    outer = ("P", "Q", "K", "C", "N", "R", "S")
    while True:
        bad = ~scratchpad_fits(space, _with_foot(space, t), _lanes(space, t, t["K"]))
        if not _shrink(t, bad, outer, steps):
            break
    lanes = _lanes(space, t, t["K"])
    for small in "npqk":
        t[small] = np.minimum(t[small], t[small.upper()])
    _whole_blocks(space, t, lanes.columns)
    limit = space.rules.target.accumulator_rows
    t["k"] = np.where(accumulator_need(space, t, lanes) > limit, lanes.columns, t["k"])
    while _shrink(t, accumulator_need(space, t, lanes) > limit, ("p", "q", "n"), None):
        if space.rules.tiling == "divisor":
            for small in "npq":
                t[small] = _divisor_below(t[small], t[small.upper()])
    fits = scratchpad_fits(space, _with_foot(space, t), lanes)
    fits &= accumulator_need(space, t, lanes) <= limit
    return Points(space, t, order), np.asarray(fits)


def fills_array(space: LayerSpace, dim: str, extents: Ints) -> NDArray[np.bool_]:
    """Whether tiles along K or C take hardly more array passes than tiles of whole blocks."""
    if space.shape.is_depthwise:
        return np.ones(len(extents), dtype=np.bool_)
    bound = space.bounds.K if dim == "K" else space.bounds.C
    passes = tile_count(((bound, 1),), extents, space.blocks(extents))
    return np.asarray(passes <= MOST_PASSES * passes.min())


def _snap(options: Ints, values: Ints) -> Ints:
    """The largest candidate that is not larger."""
    return np.asarray(options[np.maximum(np.searchsorted(options, values, side="right") - 1, 0)])


def _shrink(t: Tile, bad: NDArray[np.bool_], names: tuple[str, ...], steps: dict[str, Ints] | None) -> bool:
    """Reduce the largest extent of every bad row; False when nothing is bad or can shrink."""
    least = {name: 1 if steps is None else int(steps[name][0]) for name in names}
    stacked = np.stack([np.where(t[name] > least[name], t[name], 0) for name in names])
    largest = stacked.argmax(axis=0)
    movable = bad & (stacked.max(axis=0) > 0)
    for i, name in enumerate(names):
        rows = movable & (largest == i)
        if rows.any():
            smaller = np.maximum((t[name][rows] * SHRINK).astype(np.int64), 1)
            t[name][rows] = smaller if steps is None else _snap(steps[name], smaller)
    return bool(movable.any())


def _whole_blocks(space: LayerSpace, t: Tile, columns: Ints) -> None:
    """Accumulator tiles of whole column blocks (a narrower one saves nothing); divisors if asked."""
    blocks = np.maximum(t["k"] // columns, 1)
    if space.rules.tiling == "divisor":
        blocks = _divisor_below(blocks, t["K"] // columns)
        for small in "npq":
            t[small] = _divisor_below(t[small], t[small.upper()])
    t["k"] = np.where(t["k"] >= t["K"], t["K"], np.minimum(blocks * columns, t["K"]))


def _divisor_below(values: Ints, of: Ints) -> Ints:
    """The largest divisors of `of` that are at most `values`."""
    found = [max(d for d in divisors(int(n)) if d <= v) for v, n in zip(values, of, strict=True)]
    return np.array(found, dtype=np.int64)


def _lanes(space: LayerSpace, t: Tile, columns: Ints) -> Lanes:
    if space.shape.is_depthwise:
        return Lanes(np.ones_like(columns), np.ones_like(columns))
    return Lanes(space.blocks(t["C"]), space.blocks(columns))


def _with_foot(space: LayerSpace, t: Tile) -> Tile:
    height = _boxes(space, "P", t["P"], t["R"])
    width = _boxes(space, "Q", t["Q"], t["S"])
    return {**t, "foot": t["N"] * height * width}


def _boxes(space: LayerSpace, dim: str, out: Ints, taps: Ints) -> Ints:
    window = space.shape.height if dim == "P" else space.shape.width
    if space.rules.hw and window.kernel == 1:
        return out
    return (out - 1) * window.stride + (taps - 1) * window.dilation + 1


def _lays_out_residents(points: Points) -> bool:
    """Resident weights are kept in full-width column blocks (see legality.occupancy)."""
    space = points.space
    if not space.placement.weights_are_resident or space.shape.is_depthwise:
        return True
    return bool(space.fills_resident_rows(points.tile["C"], points.tile["k"]).all())


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
        network = relaxed_network(problem.graph, problem.candidates)
        spaces = tuple(LayerSpace.alone(shape, problem.rules) for shape in network.shapes)
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
        self._partings: dict[bytes, list[tuple[str, ...]]] = {}
        node_of = encoding.network.node_of
        self._repeats = np.array(encoding.network.repeats)
        self._adds = {
            i: problem.groups.alone(name) for name, i in node_of.items() if encoding.network.nodes[i].is_add
        }
        host = [
            problem.groups.alone(layer.name) for layer in problem.graph.layers if layer.name not in node_of
        ]
        self._host = sum(float(h.energy[0]) for h in host), sum(float(h.latency[0]) for h in host)

    def alone(self, batch: Batch) -> tuple[NDArray[np.float64], NDArray[np.float64], list[Points | None]]:
        """Energy and latency [B, L] of every node unfused, and its legalised points (an add has none)."""
        energy = np.zeros((len(batch), self.encoding.nodes))
        latency = np.zeros_like(energy)
        points: list[Points | None] = []
        for i, space in enumerate(self.encoding.spaces):
            if i in self._adds:
                energy[:, i], latency[:, i] = self._adds[i].energy[0], self._adds[i].latency[0]
                points.append(None)
                continue
            tile = {v: batch.extents[:, i, j] for j, v in enumerate(VARIABLES)}
            legal, fits = legalise(space, tile, batch.order[:, i])
            costs = price(legal)
            if space.must_finish:
                fits = fits & ~costs.spills
            energy[:, i] = np.where(fits, costs.energy, np.inf)
            latency[:, i] = np.where(fits, costs.latency, np.inf)
            points.append(legal)
        return energy, latency, points

    def cost(self, batch: Batch) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Network energy and latency [B]."""
        node_energy, node_latency, _ = self.alone(batch)
        energy = node_energy @ self._repeats + self._host[0]
        latency = node_latency @ self._repeats + self._host[1]
        for b in np.flatnonzero(batch.fused.any(axis=1)):
            for layers, found in self._groups_of(batch, int(b)):
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
        found: dict[Variant, dict[int, GroupHull]] = {}
        energy, latency, points = self.alone(batch)
        for name, node in self.encoding.network.node_of.items():
            first, legal = problem.layers[name,], points[node]
            if legal is not None and node not in found.setdefault(Variant(first), {}):
                fits = np.flatnonzero(np.isfinite(energy[:, node]))
                keep = fits[lower_hull(energy[fits, node], latency[fits, node])]
                mappings = tuple(legal.mapping(int(b)) for b in keep)
                front = Front(energy[keep, node], latency[keep, node], mappings)
                group = FusionGroup(first)
                choices = tuple(Choice(group, ((first[0], front),), (at,)) for at in range(len(front)))
                found[Variant(first)][node] = GroupHull(front.energy, front.latency, choices)
        for b in range(len(batch)):
            for layers in self._joined(batch.fused[b]):
                priced = self._group(layers, batch, b)
                if priced is not None:
                    e, lat, choice = priced
                    same = found.setdefault(Variant(problem.candidates[layers]), {})
                    same[id(choice)] = GroupHull(np.array([e]), np.array([lat]), (choice,))
        hulls = problem.alone | {variant: merge(same.values()) for variant, same in found.items() if same}
        return problem.off_chip.optimum(hulls, problem.objective)

    def partition(self, batch: Batch, b: int) -> Partition:
        """The schedule of one point."""
        one = batch.select(b)
        energy, latency, points = self.alone(one)
        parts = [found[2].renamed(layers) for layers, found in self._groups_of(one, 0)]
        fused = {name for choice in parts for name in choice.group.layers}
        for layer in self.problem.graph.layers:
            if layer.name in fused:
                continue
            i = self.encoding.network.node_of.get(layer.name)
            found = None if i is None else points[i]
            if i is None or found is None:
                parts.append(self.problem.groups.alone(layer.name).choices[0])
                continue
            front = Front(energy[0, i : i + 1], latency[0, i : i + 1], (found.mapping(0),))
            parts.append(Choice(FusionGroup((layer.name,)), ((layer.name, front),), (0,)))
        return tuple(parts)

    def _groups_of(self, batch: Batch, b: int) -> list[tuple[tuple[str, ...], Priced]]:
        """The groups of one point that can be executed."""
        groups = []
        for layers in self._joined(batch.fused[b]):
            found = self._group(layers, batch, b)
            if found is not None:
                groups.append((layers, found))
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

    def _group(self, layers: tuple[str, ...], batch: Batch, b: int) -> Priced | None:
        """Cost of a group at its members' tiles, its layers named as in the first identical group; None if it
        cannot be executed."""
        nodes = self._nodes(layers)
        first = self.problem.candidates.get(layers, layers)
        tile = batch.group_tile(b, nodes[-1])
        key = (first, tuple(nodes), batch.extents[b, nodes].tobytes(), batch.order[b, nodes].tobytes(), tile)
        if key not in self._groups:
            self._groups[key] = self._price_group(layers, nodes, batch, b)
        return self._groups[key]

    def _price_group(self, layers: tuple[str, ...], nodes: list[int], batch: Batch, b: int) -> Priced | None:
        most = self.encoding.network.nodes[nodes[-1]].shape.dims
        wanted = batch.group_tile(b, nodes[-1])
        tile = GroupTile(min(wanted.N, most.N), min(wanted.P, most.P), min(wanted.Q, most.Q))
        best: Priced | None = None
        for group in group_runs(self.problem.graph, layers, self.problem.rules.tiling, [tile]):
            try:
                plan = plan_group(self.problem.graph, group)
            except ScheduleError:
                continue
            for option in self.problem.groups.extremes(group, plan):
                found = self._price_option(option, batch, b)
                if found is not None and (best is None or found[0] * found[1] < best[0] * best[1]):
                    best = found
        return best

    def _price_option(self, option: Option, batch: Batch, b: int) -> Priced | None:
        energy, latency = option.host
        fronts = []
        for name, space in option.spaces:
            node = self.encoding.network.node_of[name]
            columns = {v: batch.extents[b : b + 1, node, j] for j, v in enumerate(VARIABLES)}
            points, fits = legalise(space, columns, batch.order[b : b + 1, node])
            costs = price(points)
            final = space.must_finish or (option.plan[name].writes_inside and not self.problem.rules.hw)
            if not fits[0] or (final and costs.spills[0]) or not _lays_out_residents(points):
                return None
            energy += float(costs.energy[0])
            latency += float(costs.latency[0])
            fronts.append((name, Front.of(points, costs)))
        return energy, latency, Choice(option.group, tuple(fronts), (0,) * len(fronts))


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
