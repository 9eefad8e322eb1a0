"""Descent over Gemminis and schedules of several networks at once.

Per restart one more row of variables beside tiles, orders and fusion strengths
(optimizer.gradient.relaxation): the sizes of a Gemmini, each a straight-through choice among the values of
the design space.  The relaxed model reads them as tensors, so that capacities are soft limits of trainable
sizes, energies per access follow from capacities (the target's fitted curves, else DOSA's closed form), and
gradients of every layer of every network meet in them.  Loss per restart: sum over the networks of log E +
log L, plus lambda times the penalties of the relaxed model and how far the area is above its limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor

from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.group.nodes import Edge, Node
from fadiff.costmodel.relaxed.model import RelaxedModel
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.codesign.designs import Gemminis, Sizes
from fadiff.optimizer.codesign.hardware import Hardware
from fadiff.optimizer.cut.decode import VARIABLES
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.cut.settings import Settings
from fadiff.optimizer.gradient.choices import Choices
from fadiff.optimizer.gradient.descent import PENALTIES, SIGMA_START, point_of
from fadiff.optimizer.gradient.relaxation import Relaxation, Variables
from fadiff.optimizer.layer.space import LayerSpace


class _Network(NamedTuple):
    """One model in the merged network: its nodes are `first` to `last`."""

    problem: Problem
    first: int
    last: int
    rest: tuple[float, float]
    """Energy and latency of what has no node."""


class Codesign:
    """Loss of batches of hardware and schedules; of the array sizes of `graphs` the largest counts."""

    def __init__(
        self,
        graphs: Mapping[str, Mapping[int, Graph]],
        space: Gemminis,
        settings: Settings,
    ) -> None:
        self.space, self.settings = space, settings
        targets = list(space.by_side().values())
        self.graphs = [forms[targets[0].side] for forms in graphs.values()]
        nodes: list[Node] = []
        edges: list[Edge] = []
        self.networks: list[_Network] = []
        for graph in self.graphs:
            problem = Problem.of(settings, graph, targets[0])
            network, first = problem.network, len(nodes)
            nodes += network.nodes
            edges += [Edge(e.producer + first, e.consumer + first) for e in network.edges]
            self.networks.append(_Network(problem, first, len(nodes), problem.beside(network)))
        self.at = targets[0]
        # The clock knows sizes of targets that exist: designs that descend have a roofline in either profile.
        self.model = RelaxedModel(nodes, edges, self.at, settings.profile, latency="roofline")
        rules = [replace(self.networks[0].problem.rules, target=target) for target in targets]
        spaces = [[LayerSpace.alone(node.shape, each) for node in nodes] for each in rules]
        pairs = [(edge.producer, edge.consumer) for edge in edges]
        self.relaxation = Relaxation(nodes, spaces[0], pairs, settings.relaxation, others=spaces[1:])
        self.sizes = Choices(list(space.values.values()))
        self.names = list(space.values)
        self.rules = PENALTIES + (() if settings.profile == "hw" else ("final",))

    def start(self, designs: Sequence[Sizes], generator: torch.Generator) -> tuple[Variables, Tensor]:
        """A restart at each of the designs, at the layers' own best mappings there; restart r fuses a share
        r/B of the edges, chosen at random."""
        variables = self.relaxation.start(len(designs), generator)
        share = torch.linspace(0, 1, len(designs)).unsqueeze(1)
        fused = torch.rand(variables.sigma.shape, generator=generator) < share
        with torch.no_grad():
            variables.sigma.copy_(torch.where(fused, SIGMA_START, -SIGMA_START))
            for r, design in enumerate(designs):
                self._place(variables, r, design)
        values = [[float(v) for v in self.space.changes(design).values()] for design in designs]
        return variables, torch.tensor(values).log().requires_grad_()

    def moved(self, variables: Variables) -> tuple[Tensor, ...]:
        """What descends from the first step on."""
        return variables.x, variables.order

    def late(self, variables: Variables) -> tuple[Tensor, ...]:
        """What descends from halfway on."""
        return (variables.sigma,)

    def _place(self, variables: Variables, r: int, design: Sizes) -> None:
        target = self.space.hardware(design)
        assert target is not None
        for network in self.networks:
            problem = Problem.of(self.settings, network.problem.graph, target)
            known = point_of(network.problem.network, problem.layerwise[0].argmin)
            at = slice(network.first, network.last)
            variables.x[r, at, : len(VARIABLES)] = known.extents[:, : len(VARIABLES)].log()
            variables.order[r, at] = self.relaxation.order_of(known)

    def __call__(
        self,
        variables: Variables,
        sizes: Tensor,
        progress: tuple[float, float, float],
        generator: torch.Generator | None,
    ) -> Tensor:
        """Loss [B] at (tau, beta, lambda)."""
        tau, beta, weight = progress
        values = self.sizes.draw(sizes, tau, generator)
        hardware = Hardware(self.at, dict(zip(self.names, values.unsqueeze(-1).unbind(1), strict=True)))
        self.model.target = cast(Target, hardware)
        sample = self.relaxation.sample(variables, tau, generator)
        side = torch.as_tensor(hardware.side, dtype=torch.float32).reshape(-1, 1)
        cost = self.model(self.relaxation.point(sample, side), beta)
        energy, latency = cost.energy_pj * self.model.repeat, cost.latency_cycles * self.model.repeat
        loss = torch.zeros(len(sizes))
        for network in self.networks:
            at = slice(network.first, network.last)
            slower = self.at.bandwidth.dram_bytes / torch.as_tensor(hardware.bandwidth.dram_bytes).reshape(-1)
            joules = energy[:, at].sum(dim=-1) + network.rest[0]
            cycles = latency[:, at].sum(dim=-1) + network.rest[1] * slower
            if self.settings.objective != "latency":
                loss = loss + joules.log()
            if self.settings.objective != "energy":
                loss = loss + cycles.log()
        over = torch.relu(
            torch.log(torch.as_tensor(self.space.area(hardware)).reshape(-1) / self.space.limit)
        )
        penalty = sum((cost.penalties[name] for name in self.rules), over + over.square())
        return loss + weight * penalty
