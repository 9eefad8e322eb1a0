"""Soft fusion groups: which nodes run together, and which fused tensors are alive while they do.

Edges have strengths sigma in [0, 1].  All index lists are built once per network; evaluation is
gathers and scatters over [B, paths], so that it stays cheap for large networks.
"""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import torch
from torch import Tensor

REACH = 4
"""Fused edges between two members of a group that know of each other's weights."""


class Companions:
    """What the rest of its group keeps on chip while a node runs."""

    def __init__(self, edges: Sequence[tuple[int, int]], holds: Sequence[bool]) -> None:
        """`holds`: nodes that keep anything (an add has no weights)."""
        around: list[list[tuple[int, int]]] = [[] for _ in holds]
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
                if holds[start] and holds[other]:
                    pair_of.append(pairs.setdefault((start, other), len(pairs)))
                    paths.append(path + [len(edges)] * (REACH - len(path)))
                if len(path) < REACH:
                    walk(start, other, path, seen | {other})

        for start in range(len(holds)):
            walk(start, start, [], {start})
        self.paths = torch.tensor(paths, dtype=torch.long).reshape(-1, REACH).unbind(-1)
        self.pair_of = torch.tensor(pair_of, dtype=torch.long)
        self.owner, self.other = torch.tensor(list(pairs), dtype=torch.long).reshape(-1, 2).unbind(-1)

    def carried(self, sigma: Tensor, held: Tensor) -> Tensor:
        """Sum over other nodes of what they hold [B, L], times the strongest path of sigma [B, E] to them."""
        padded = torch.cat([sigma, torch.ones_like(sigma[:, :1])], dim=1)
        strength = padded[:, self.paths[0]]
        for edges in self.paths[1:]:
            strength = strength * padded[:, edges]
        if len(self.owner) < len(self.pair_of):
            strongest = strength.new_zeros(len(strength), len(self.owner))
            index = self.pair_of.expand_as(strength)
            strength = strongest.scatter_reduce(1, index, strength, "amax", include_self=False)
        return torch.zeros_like(held).index_add(1, self.owner, strength * held[:, self.other])


class LiveTensors:
    """Fused tensors live from their producer to their last reader: a skip lasts as long as its branch."""

    def __init__(self, edges: Sequence[tuple[int, int]]) -> None:
        graph: nx.DiGraph[object] = nx.DiGraph(list(edges))
        keys: dict[tuple[int, int], int] = {}
        spans: list[tuple[int, int, int, bool]] = []
        for index, (producer, consumer) in enumerate(edges):
            branch = nx.descendants(graph, producer) & nx.ancestors(graph, consumer)
            inner = [node for node in range(producer + 1, consumer) if node in branch]
            for node in (producer, *inner, consumer):
                key = keys.setdefault((producer, node), len(keys))
                spans.append((index, node, key, node in inner))
        columns = torch.tensor(spans, dtype=torch.long).reshape(-1, 4).unbind(-1)
        self.edge, self.node, self.key, self.passing = (*columns[:3], columns[3].bool())
        self.at = torch.tensor([node for _, node in keys], dtype=torch.long)

    def __call__(self, space: Tensor, member: Tensor) -> Tensor:
        """Space alive at every node [B, L], of `space` [B, E] that every fused edge needs on chip.

        `member` [B, L] is the strength with which nodes between the two ends belong to the group.
        """
        value = space[:, self.edge] * torch.where(self.passing, member[:, self.node], 1.0)
        # Several readers inside: one copy, as large as the largest of their needs.
        live = value.new_zeros(len(value), len(self.at))
        live = live.scatter_reduce(1, self.key.expand_as(value), value, "amax", include_self=False)
        return torch.zeros_like(member).index_add(1, self.at, live)
