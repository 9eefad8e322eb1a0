"""Which layers to fuse on any machine by descent: the paper's sigma per edge, jointly with tiles and orders.

An edge joins two products that can hand a tensor over (optimizer.nests.fusion).  Its sigma in [0, 1] is a
Gumbel-softmax choice of two with straight-through gradients.  As far as an edge is fused, what it hands over
moves to and from the shared memory only, weights of both layers come anew with every tile, and it is a
penalty to cut the tensor by anything but heights, images and heads, or the two layers into unlike tiles.  The
shared memory's room for it is a limit like any other's.  Identical edges have one sigma, identical layers
with identical edges one mapping.  What restarts come to are proposals: they are searched and counted exactly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.converter.ir.loops import DIMS, G, N, P
from fadiff.costmodel.mapping.decision import GroupTile
from fadiff.costmodel.nests.machine import OPERANDS, Machine, Operand
from fadiff.costmodel.nests.workload import Workload
from fadiff.costmodel.relaxed.nests import RelaxedNests
from fadiff.optimizer.cut.partition import Objective
from fadiff.optimizer.gradient.adam import Adam, one_thread
from fadiff.optimizer.gradient.choices import gumbel_softmax
from fadiff.optimizer.gradient.descent import HELD, RATE, SIGMA_START, schedule_at
from fadiff.optimizer.gradient.nests import NestVariables
from fadiff.optimizer.group.residency import Layers
from fadiff.optimizer.nests.fusion import FusedGroup
from fadiff.optimizer.nests.space import Space, keeps_of

RESTARTS, STEPS = 16, 120
GRID = (G, N, P)
"""Places in DIMS of the loops over the tiles of a group."""


class _Edge(NamedTuple):
    """Kinds of the two layers, and whether nobody else reads what is handed over."""

    producer: int
    consumer: int
    inside: bool


@one_thread()
def propose(
    graph: Graph,
    machine: Machine,
    objective: Objective,
    options: Mapping[Layers, Sequence[FusedGroup]],
    groups: Mapping[Layers, Layers],
    seed: int,
    share: Callable[[], float],
) -> list[tuple[Layers, GroupTile]]:
    """Groups that restarts agree on, each at a tile, most frequent first.

    Args:
        graph: Of the layers.
        machine: With a shared memory.
        objective: What is minimised.
        options: Of the first of identical groups, tiles that there is room for.
        groups: The first of identical groups, for all of them.
        seed: Of the draws.
        share: Of the time for it that is used so far.
    """
    loss_of = FusedNests(graph, machine, objective, options, groups)
    if not loss_of.edges:
        return []
    generator = torch.Generator().manual_seed(seed)
    spaces, drawn = loss_of.spaces, np.random.default_rng(seed)
    variables = NestVariables(spaces, [space.random(RESTARTS, drawn) for space in spaces], generator)
    amounts = torch.linspace(0, 1, RESTARTS)[:, None]
    begun = torch.rand((RESTARTS, len(loss_of.edges)), generator=generator) < amounts
    sigma = torch.where(begun, SIGMA_START, -SIGMA_START).requires_grad_()
    adam = Adam([variables.logs, variables.logits, sigma], RATE)
    for step in range(STEPS):
        f = max(step / STEPS, share())
        if f >= 1:
            break
        tau, _, weight = schedule_at(f)
        adam.rates[-1] = 0.0 if f < HELD else RATE / 2
        adam.step(loss_of(variables, drawn_sigma(sigma, tau, generator), tau, weight, generator).sum())
    return loss_of.proposals(variables, sigma.detach() > 0)


def drawn_sigma(logits: Tensor, tau: float, generator: torch.Generator | None) -> Tensor:
    """Zeros and ones with the gradients of the softmax of fusing and not fusing."""
    soft = gumbel_softmax(torch.stack([logits, torch.zeros_like(logits)], dim=-1), tau, generator)[..., 0]
    return (soft > 0.5).float() + soft - soft.detach()


class FusedNests:
    """Loss of batches of mappings and fused edges of a network."""

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        objective: Objective,
        options: Mapping[Layers, Sequence[FusedGroup]],
        groups: Mapping[Layers, Layers],
    ) -> None:
        """Arguments are those of `propose`."""
        assert machine.shared is not None
        self.graph, self.objective, self.options = graph, objective, options
        self.shared = machine.shared
        self._anew = torch.zeros(len(machine.memories), len(OPERANDS))
        self._anew[: machine.places.index(self.shared), OPERANDS.index("W")] = 1
        pairs: dict[tuple[str, str], Layers] = {}
        for layers, first in groups.items():
            products = self._products(layers)
            if len(products) == 2 and options[first]:
                pairs[products[0], products[1]] = first
        around: dict[str, list[tuple[bool, Layers]]] = {}
        for (producer, consumer), first in pairs.items():
            around.setdefault(producer, []).append((True, first))
            around.setdefault(consumer, []).append((False, first))
        kinds: dict[object, int] = {}
        self.kind: dict[str, int] = {}
        """Of every layer: those alike in themselves and their edges have one mapping."""
        for layer in graph.tensor_core_layers:
            key = Workload.of(layer), frozenset(around.get(layer.name, []))
            self.kind[layer.name] = kinds.setdefault(key, len(kinds))
        edges: dict[Layers, _Edge] = {}
        for (producer, consumer), first in pairs.items():
            inside = "O" in options[first][0].runs[self._products(first)[0]].inside
            edges.setdefault(first, _Edge(self.kind[producer], self.kind[consumer], inside))
        self.edges = tuple(edges.values())
        self._edge_of = {pair: list(edges).index(first) for pair, first in pairs.items()}
        workloads = {self.kind[layer.name]: Workload.of(layer) for layer in graph.tensor_core_layers}
        self.times = torch.tensor([float(Counter(self.kind.values())[kind]) for kind in workloads])
        keeps = keeps_of(machine)[0]
        self.spaces = [Space(machine, workload, keeps) for workload in workloads.values()]
        self.model = RelaxedNests(machine, list(workloads.values()), keeps)
        self._cut = {
            operand: relevant & torch.tensor([d not in GRID for d in range(len(DIMS))])
            for operand, relevant in self.model.relevant.items()
        }

    def _products(self, layers: Layers) -> list[str]:
        return [name for name in layers if isinstance(self.graph.by_name[name], TensorCoreLayer)]

    def __call__(
        self,
        variables: NestVariables,
        sigma: Tensor,
        tau: float,
        weight: float,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Loss [B] at sigma [B, E]; `weight` is that of penalties."""
        factors, stays = variables.sample(tau, generator)
        energy, cycles = self.costs(factors, stays, sigma)
        loss = weight * (self.model.excess(factors).sum(dim=1) + self.unlike(factors, sigma))
        for cost, alone in ((energy, "energy"), (cycles, "latency")):
            if self.objective in ("edp", alone):
                loss = loss + (cost * self.times).sum(dim=1).log()
        return loss

    def costs(self, factors: Tensor, stays: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """pJ and cycles [B, kinds of layers] where edges are fused by sigma [B, E]."""
        made, given = self._held(sigma)
        fused = torch.maximum(self._held(sigma, all_readers=False)[0], given)
        held: dict[Operand, Tensor] = {"I": given, "O": made}
        return self.model(factors, stays * (1 - fused[..., None, None] * self._anew), held)

    def _held(self, sigma: Tensor, *, all_readers: bool = True) -> tuple[Tensor, Tensor]:
        """How much of every layer's output and input [B, kinds] is handed over."""
        nothing = torch.zeros(len(sigma))
        made, given = ([nothing] * len(self.spaces) for _ in range(2))
        for edge, strength in zip(self.edges, sigma.unbind(1), strict=True):
            given[edge.consumer] = torch.maximum(given[edge.consumer], strength)
            if edge.inside or not all_readers:
                made[edge.producer] = torch.maximum(made[edge.producer], strength)
        return torch.stack(made, dim=1), torch.stack(given, dim=1)

    def unlike(self, factors: Tensor, sigma: Tensor) -> Tensor:
        """How far fused layers are from walking the same tiles of whole rows [B]: squares of logs."""
        logs = factors[:, :, : self.shared].prod(dim=2).log()
        cut = {operand: logs[..., dims].square().sum(dim=-1) for operand, dims in self._cut.items()}
        found = torch.zeros(len(factors))
        for edge, strength in zip(self.edges, sigma.unbind(1), strict=True):
            apart = logs[:, edge.producer, list(GRID)] - logs[:, edge.consumer, list(GRID)]
            found = found + strength * (
                cut["O"][:, edge.producer] + cut["I"][:, edge.consumer] + apart.square().sum(dim=-1)
            )
        return found

    def proposals(self, variables: NestVariables, fused: Tensor) -> list[tuple[Layers, GroupTile]]:
        """Groups all of whose edges are fused [B, E], at the tile nearest to their last layer's."""
        with torch.no_grad():
            tiles = variables.sample(0.1, None)[0][:, :, : self.shared].prod(dim=2)
        votes: Counter[tuple[Layers, GroupTile]] = Counter()
        for layers, options in self.options.items():
            products = self._products(layers)
            edges = [e for (a, b), e in self._edge_of.items() if {a, b} <= set(products)]
            if not options or len(edges) < len(products) - 1:
                continue
            last = self.kind[products[-1]]
            for row in torch.nonzero(fused[:, edges].all(dim=1)).ravel().tolist():
                times = float(tiles[row, last, list(GRID)].prod())
                apart = [abs(math.log(option.runs[products[-1]].times / times)) for option in options]
                votes[layers, options[apart.index(min(apart))].tile] += 1
        return [proposal for proposal, _ in votes.most_common()]
