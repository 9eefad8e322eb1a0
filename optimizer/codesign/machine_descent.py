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
from fadiff.costmodel.nests.mapping import Mappings
from fadiff.costmodel.nests.sizes import Sized
from fadiff.costmodel.nests.workload import Workload
from fadiff.costmodel.relaxed.nests import RelaxedNests
from fadiff.optimizer.codesign.designs import Machines, Sizes
from fadiff.optimizer.cut.partition import Objective
from fadiff.optimizer.gradient.choices import Choices
from fadiff.optimizer.gradient.nests import NestVariables
from fadiff.optimizer.nests.layer import LayerSearch


class MachineCodesign:
    """Loss of batches of machines and mappings; memories keep as much as they may."""

    def __init__(self, graphs: Mapping[str, Graph], space: Machines, objective: Objective) -> None:
        self.space, self.objective = space, objective
        self.networks = [
            Counter(Workload.of(layer) for layer in graph.tensor_core_layers) for graph in graphs.values()
        ]
        """How often each distinct layer runs."""
        self.layers = list(dict.fromkeys(layer for network in self.networks for layer in network))
        self.names = list(space.values)
        self.choices = Choices(list(space.values.values()))

    def start(
        self, designs: Sequence[Sizes], generator: torch.Generator
    ) -> tuple[list[NestVariables], Tensor]:
        """Every layer at a random mapping that fits the restart's design."""
        machines = [self.space.hardware(design) for design in designs]
        found = []
        for layer in self.layers:
            rows = []
            for at, machine in enumerate(machines):
                assert machine is not None
                space = LayerSearch(machine, layer).spaces[0]
                rows.append(space.random(1, np.random.default_rng(at)))
            found.append(NestVariables(space, Mappings.joined(rows), generator))
        sizes = [[float(n) for n in self.space.changes(design).values()] for design in designs]
        return found, torch.tensor(sizes).log().requires_grad_()

    def moved(self, variables: list[NestVariables]) -> list[Tensor]:
        """Factors and what stays in place, of every layer."""
        return [tensor for layer in variables for tensor in (layer.free, layer.logits)]

    def late(self, variables: list[NestVariables]) -> tuple[Tensor, ...]:
        """Nothing: layers are alone."""
        return ()

    def __call__(
        self,
        variables: list[NestVariables],
        sizes: Tensor,
        progress: tuple[float, float, float],
        generator: torch.Generator | None,
    ) -> Tensor:
        """Loss [B] at (tau, beta, lambda)."""
        tau, _, weight = progress
        values = self.choices.draw(sizes, tau, generator)
        sized = Sized(self.space.base, dict(zip(self.names, values.unbind(1), strict=True)))
        area = self.space.area.of_machine(sized) / self.space.limit
        over = torch.relu(torch.as_tensor(area, dtype=torch.float32).log())
        excess = over + over.square()
        costs: dict[Workload, tuple[Tensor, Tensor]] = {}
        for layer, own in zip(self.layers, variables, strict=True):
            model = RelaxedNests(self.space.base, layer, own.space.keeps)
            model.sized = sized
            factors, stays = own.sample(tau, generator)
            costs[layer] = model(factors, stays)
            excess = excess + model.excess(factors)
        loss = torch.zeros(len(sizes))
        for network in self.networks:
            for at, alone in enumerate(("energy", "latency")):
                if self.objective in ("edp", alone):
                    total = torch.stack([times * costs[layer][at] for layer, times in network.items()])
                    loss = loss + total.sum(dim=0).log()
        return loss + weight * excess
