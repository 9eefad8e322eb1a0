"""Soft fusion groups: which nodes run together, and which fused tensors are alive while they do.

Edges have strengths sigma in [0, 1].  All index lists are built once per network; evaluation is
gathers and scatters over [B, paths], so that it stays cheap for large networks.
"""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import torch
from torch import Tensor

REACH = 5
"""Fused edges between two members of a group that know of each other: groups of up to six in a row."""


class Companions:
    """Which nodes run in one group: every ordered pair within reach of each other."""

    def __init__(self, edges: Sequence[tuple[int, int]], nodes: int) -> None:
        around: list[list[tuple[int, int]]] = [[] for _ in range(nodes)]
        for index, (producer, consumer) in enumerate(edges):
            around[producer].append((index, consumer))
            around[consumer].append((index, producer))
        pairs: dict[tuple[int, int], int] = {}
        paths: list[list[int]] = []
        pair_of: list[int] = []

        def walk(start: int, at: int, taken: list[int], seen: set[int]) -> None:
            for edge, other in around[at]:
                if other in seen:
                    continue
                path = [*taken, edge]
                pair_of.append(pairs.setdefault((start, other), len(pairs)))
                paths.append(path + [len(edges)] * (REACH - len(path)))
                if len(path) < REACH:
                    walk(start, other, path, seen | {other})

        for start in range(nodes):
            walk(start, start, [], {start})
        self.paths = torch.tensor(paths, dtype=torch.long).reshape(-1, REACH).unbind(-1)
        self.pair_of = torch.tensor(pair_of, dtype=torch.long)
        self.owner, self.other = torch.tensor(list(pairs), dtype=torch.long).reshape(-1, 2).unbind(-1)
        self.index = pairs

    def strength(self, sigma: Tensor) -> Tensor:
        """How much two nodes are in one group, [B, pairs]: their strongest path of sigma [B, E]."""
        padded = torch.cat([sigma, torch.ones_like(sigma[:, :1])], dim=1)
        strength = padded[:, self.paths[0]]
        for edges in self.paths[1:]:
            strength = strength * padded[:, edges]
        if len(self.owner) < len(self.pair_of):
            strongest = strength.new_zeros(len(strength), len(self.owner))
            index = self.pair_of.expand_as(strength)
            strength = strongest.scatter_reduce(1, index, strength, "amax", include_self=False)
        return strength

    def sum(self, strength: Tensor, held: Tensor) -> Tensor:
        """Sum over the other members of every node's group, [B, L], of what they hold [B, L]."""
        return torch.zeros_like(held).index_add(1, self.owner, strength * held[:, self.other])


class LiveTensors:
    """Fused tensors live from their producer to their last reader: a skip lasts as long as its branch."""

    def __init__(self, edges: Sequence[tuple[int, int]], companions: Companions) -> None:
        """Nodes are numbered in the order in which they run."""
        keys: dict[tuple[int, int], int] = {}
        spans: list[tuple[int, int, int]] = []
        always = len(companions.index)
        for index, (producer, consumer) in enumerate(edges):
            between = {node: companions.index.get((producer, node)) for node in range(producer + 1, consumer)}
            alive = {producer: always, **between, consumer: always}
            for node, pair in alive.items():
                if pair is not None:
                    spans.append((index, keys.setdefault((producer, node), len(keys)), pair))
        self.edge, self.key, self.pair = torch.tensor(spans, dtype=torch.long).reshape(-1, 3).unbind(-1)
        self.at = torch.tensor([node for _, node in keys], dtype=torch.long)

    def __call__(self, space: Tensor, strength: Tensor, nodes: int) -> Tensor:
        """Space alive at every node [B, L], of `space` [B, E] that every fused edge needs on chip.

        `strength` [B, pairs] (Companions): what runs in between counts as far as it is in the group.
        """
        here = torch.cat([strength, torch.ones_like(strength[:, :1])], dim=1)[:, self.pair]
        value = space[:, self.edge] * here
        # Several readers inside: one copy, as large as the largest of their needs.
        live = value.new_zeros(len(value), len(self.at))
        live = live.scatter_reduce(1, self.key.expand_as(value), value, "amax", include_self=False)
        return value.new_zeros(len(value), nodes).index_add(1, self.at, live)


class GroupShape:
    """Which strong edges make no group that a program can walk (fadiff.costmodel.group.fusion.plan_group)."""

    def __init__(
        self, edges: Sequence[tuple[int, int]], companions: Companions, is_add: Sequence[bool]
    ) -> None:
        self.companions = companions
        self.adds = torch.tensor([float(add) for add in is_add])
        index = companions.index
        graph: nx.DiGraph[int] = nx.DiGraph(list(edges))
        inner = [(e, index[edge]) for e, edge in enumerate(edges) if edge in index]
        self.edge, self.direct = torch.tensor(inner, dtype=torch.long).reshape(-1, 2).unbind(-1)
        detours = [
            (pair, index[(first, via)])
            for (first, last), pair in index.items()
            for via in (graph.successors(first) if first in graph else ())
            if via not in (first, last) and (first, via) in index and nx.has_path(graph, via, last)
        ]
        self.around, self.through = torch.tensor(detours, dtype=torch.long).reshape(-1, 2).unbind(-1)

    def consistent(self, sigma: Tensor, strength: Tensor) -> Tensor:
        """Zero where no edge is left open inside a group and no path leaves one and comes back, [B]."""
        open_ = (strength[:, self.direct] * (1 - sigma[:, self.edge])).sum(dim=-1)
        detours = (strength[:, self.around] * (1 - strength[:, self.through])).sum(dim=-1)
        return open_ + detours

    def walkable(self, strength: Tensor, operands: Tensor, unread: Tensor) -> Tensor:
        """Zero where every group has one last node, whose tiles it walks, and is not led by an add, [B].

        `operands` [B, L, inputs] are strengths of incoming edges, `unread` [B, L] is 1 where no outgoing
        edge is fused.
        """
        alone = torch.prod(1 - operands, dim=-1)
        last = (1 - alone) * unread
        pairs = self.companions
        sinks = 0.5 * (strength * last[:, pairs.owner] * last[:, pairs.other]).sum(dim=-1)
        led = ((1 - unread) * alone * self.adds.to(strength)).sum(dim=-1)
        return sinks + led
