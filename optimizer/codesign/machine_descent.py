"""Descent over machines that need not be Gemminis, and mappings of several networks, every layer alone.

Per restart one more row of variables beside those of every distinct layer (optimizer.gradient.nests): the
sizes of the machine, each a straight-through choice among the values of the design space.  The relaxed
counts read them as tensors: capacities and fan-outs are soft limits, energies follow from entries.  Loss per
restart: sum over the networks of log E + log L (or one of them), plus lambda times what does not fit and how
far the area is above its limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.nests.sizes import Sized
from fadiff.costmodel.nests.workload import Workload
from fadiff.costmodel.relaxed.nests import RelaxedNests
from fadiff.optimizer.codesign.designs import Machines, Sizes
from fadiff.optimizer.cut.partition import Objective
from fadiff.optimizer.gradient.choices import Choices
from fadiff.optimizer.gradient.nests import NestVariables
from fadiff.optimizer.nests.space import Space, keeps_of


class MachineCodesign:
    """Loss of batches of machines and mappings; memories keep as much as they may."""

    def __init__(self, graphs: Mapping[str, Graph], space: Machines, objective: Objective) -> None:
        self.space, self.objective = space, objective
        networks = [
            Counter(Workload.of(layer) for layer in graph.tensor_core_layers) for graph in graphs.values()
        ]
        self.layers = list(dict.fromkeys(layer for network in networks for layer in network))
        self.times = [torch.tensor([float(network[x]) for x in self.layers]) for network in networks]
        """How often each network runs each distinct layer."""
        self.keeps = keeps_of(space.base)[0]
        self.names = list(space.values)
        self.choices = Choices(list(space.values.values()))

    def start(self, designs: Sequence[Sizes], generator: torch.Generator) -> tuple[NestVariables, Tensor]:
        """Every layer at random mappings of the base machine."""
        spaces = [Space(self.space.base, layer, self.keeps) for layer in self.layers]
        drawn = np.random.default_rng(generator.initial_seed())
        starts = [space.random(len(designs), drawn) for space in spaces]
        sizes = [[float(n) for n in self.space.changes(design).values()] for design in designs]
        return NestVariables(spaces, starts, generator), torch.tensor(sizes).log().requires_grad_()

    def __call__(
        self,
        variables: NestVariables,
        sizes: Tensor,
        progress: tuple[float, float, float],
        generator: torch.Generator | None,
    ) -> Tensor:
        """Loss [B] at (tau, beta, lambda)."""
        tau, _, weight = progress
        values = self.choices.draw(sizes, tau, generator)
        chosen = dict(zip(self.names, values.unbind(1), strict=True))
        area = self.space.area.of_machine(Sized(self.space.base, chosen)) / self.space.limit
        over = torch.relu(torch.as_tensor(area, dtype=torch.float32).log())
        model = RelaxedNests(self.space.base, self.layers, self.keeps)
        model.sized = Sized(self.space.base, {name: size[:, None] for name, size in chosen.items()})
        factors, stays = variables.sample(tau, generator)
        costs = model(factors, stays)
        excess = over + over.square() + model.excess(factors).sum(dim=1)
        loss = torch.zeros(len(sizes))
        for times in self.times:
            for cost, alone in zip(costs, ("energy", "latency"), strict=True):
                if self.objective in ("edp", alone):
                    loss = loss + (cost * times).sum(dim=1).log()
        return loss + weight * excess
