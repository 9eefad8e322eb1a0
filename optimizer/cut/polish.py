"""Discrete polish of a partition: exact mappings at the fusion at hand, and local moves on the fusion.

Each move touches one group (merge with a neighbour, cut in two, next tiles up or down); only that
group is priced again, at the best mappings of its members, and the cuts of the whole graph are
decided again by dynamic programming.  Every layer alone is always among the ways, so the result
is never worse than layer-wise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fadiff.costmodel.schedule.schedule import GroupTile
from fadiff.optimizer.cut.partition import Partition, value
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.group.hull import EMPTY, GroupHull, merge
from fadiff.optimizer.group.network import is_node, sources
from fadiff.optimizer.group.residency import OFF_CHIP, PlacedGroup
from fadiff.optimizer.group.tiles import groups_per_tile, last_output
from fadiff.optimizer.layer import candidates
from fadiff.optimizer.layer.hull import Solution

Layers = tuple[str, ...]


class Polish:
    """Prices groups and tiles on demand and keeps the best of each group."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.candidates = problem.candidates
        self.hulls: dict[Layers, GroupHull] = {}
        self.tried: set[tuple[Layers, GroupTile]] = set()
        self.joins = {
            (producer, between, layer.name)
            for layer in problem.graph.layers
            if is_node(layer) or layer.op == "max_pool"
            for producer, between in sources(problem.graph, layer, adds=problem.fuses_adds)
        }

    def propose(self, layers: Layers, tiles: Iterable[GroupTile]) -> bool:
        """Price a group at some tiles; True if something new was tried."""
        first = self.candidates.get(layers)
        if first is None:
            return False
        if self.problem.fusion_model == "paper" and first in self.hulls:
            return False  # no group tiles there: once is all
        size = last_output(self.problem.graph, first)
        if size is None:
            return False
        fresh = []
        for tile in tiles:
            n, p, q = (min(a, b) for a, b in zip((tile.N, tile.P, tile.Q), size, strict=True))
            clipped = replace(tile, N=n, P=p, Q=q)
            if (first, clipped) not in self.tried:
                self.tried.add((first, clipped))
                fresh.append(clipped)
        if not fresh:
            return False
        found = self.problem.price_group(first, fresh)
        self.hulls[first] = merge((self.hulls.get(first, EMPTY), found))
        return True

    def offer(self, hulls: Mapping[PlacedGroup, GroupHull]) -> None:
        """Ways found elsewhere, of groups with nothing on chip before and after."""
        for (layers, surroundings), hull in hulls.items():
            if len(layers) > 1 and surroundings == OFF_CHIP and len(hull):
                self.hulls[layers] = merge((self.hulls.get(layers, EMPTY), hull))

    @property
    def placed_groups(self) -> dict[PlacedGroup, GroupHull]:
        """What is priced."""
        return {PlacedGroup(first): hull for first, hull in self.hulls.items()}

    def best(self) -> Solution[Partition]:
        """Cut the graph again."""
        hulls = {**self.problem.alone, **self.placed_groups}
        return self.problem.off_chip.optimum(hulls, self.problem.objective)

    def run(self, rounds: int = 12) -> Solution[Partition]:
        """Moves until none helps (or time is up)."""
        problem = self.problem
        self._propose_pools()
        best = self.best()
        for _ in range(rounds):
            if problem.out_of_time():
                break
            problem.record(value("edp", best.energy, best.latency))
            new = False
            for layers, tiles in self._moves(best.argmin):
                if problem.out_of_time():
                    break
                new |= self.propose(layers, tiles)
                if len(layers) == 2 or not len(self.hulls.get(layers, EMPTY)):
                    new |= self.propose(layers, self._blocks(layers))
                problem.steps += 1
            if not new:
                break
            best = self.best()
        problem.record(value("edp", best.energy, best.latency))
        return best

    def _propose_pools(self) -> None:
        """Every max pool with its convolution: descent knows none, and they cost next to nothing to price."""
        for producer, _, consumer in sorted(self.joins):
            if self.problem.out_of_time():
                break
            pair = (producer, consumer)
            if self.problem.graph.by_name[consumer].op == "max_pool":
                self.propose(pair, [*self._coarse(pair), *self._blocks(pair)])

    def _moves(self, partition: Partition) -> list[tuple[Layers, list[GroupTile]]]:
        """Distinct neighbours of a partition: (group, tiles to try)."""
        graph = self.problem.graph
        group_of = {name: way.group.layers for way in partition for name in way.group.layers}
        moves: dict[Layers, list[GroupTile]] = {}
        for way in partition:
            layers, tile = way.group.layers, way.group.tile
            if tile is None:
                continue
            first = self.candidates.get(layers, layers)
            moves.setdefault(first, []).extend(self._nearby(first, tile))
            cuts = range(1, len(layers))
            for shorter in [layers[i:] for i in cuts] + [layers[:i] for i in cuts]:
                if len(shorter) > 1 and shorter in self.candidates:
                    moves.setdefault(self.candidates[shorter], []).extend(self._coarse(shorter))
        for producer, between, consumer in sorted(self.joins):
            a, b = group_of[producer], group_of[consumer]
            if a == b:
                continue
            for joined in dict.fromkeys((a + b, (*a, consumer), (producer, *b))):
                members = tuple(sorted({*joined, *between}, key=graph.index.__getitem__))
                if members in self.candidates:
                    moves.setdefault(self.candidates[members], []).extend(self._coarse(members))
        return list(moves.items())

    def _nearby(self, layers: Layers, tile: GroupTile) -> list[GroupTile]:
        """Two candidates up and down in height and width."""
        size = last_output(self.problem.graph, layers)
        if size is None:
            return []
        tiling = self.problem.rules.tiling
        heights = _around(candidates.extents(size[1], tiling), tile.P)
        widths = _around(candidates.extents(size[2], tiling), tile.Q)
        return [replace(tile, P=p, Q=q) for p in heights for q in widths]

    def _coarse(self, layers: Layers) -> list[GroupTile]:
        """The whole output, and full-width tiles of halved heights, of all groups and channels or parts."""
        size = last_output(self.problem.graph, layers)
        if size is None:
            return []
        n, p, q = size
        return [
            *(
                GroupTile(batch, h, q, groups)
                for groups in groups_per_tile(self.problem.graph, layers)
                for batch in dict.fromkeys((1, n))
                for h in self._halved(p)
            ),
            *self.problem.groups.channel_tiles(layers),
        ]

    def _blocks(self, layers: Layers) -> list[GroupTile]:
        """Blocks of halved heights and widths, for scratchpads that hold no full-width row."""
        size = last_output(self.problem.graph, layers)
        if size is None:
            return []
        n, p, q = size
        return [
            GroupTile(b, h, w)
            for b in dict.fromkeys((1, n))
            for h in self._halved(p)
            for w in self._halved(q)[1:]
        ]

    def _halved(self, size: int) -> list[int]:
        """`size` and the candidates nearest to its half, quarter, ..., descending."""
        return candidates.halved(size, candidates.extents(size, self.problem.rules.tiling))


def _around(extents: tuple[int, ...], at: int) -> list[int]:
    nearest = min(range(len(extents)), key=lambda i: abs(extents[i] - at))
    return list(extents[max(0, nearest - 2) : nearest + 3])
