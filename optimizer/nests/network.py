"""All products of a network on one machine, layer by layer; identical layers are searched once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.costmodel.nests.machine import Machine
from fadiff.costmodel.nests.workload import Workload
from fadiff.optimizer.cut.partition import Objective
from fadiff.optimizer.nests.auto import auto
from fadiff.optimizer.nests.layer import Found, LayerSearch, Method


@dataclass(frozen=True)
class MappedLayer:
    """A layer with its mapping."""

    layer: TensorCoreLayer
    workload: Workload
    found: Found


@dataclass(frozen=True)
class MappedNetwork:
    """Layers in graph order; those without a loop nest by name."""

    machine: Machine
    layers: tuple[MappedLayer, ...]
    others: tuple[str, ...]

    @property
    def energy(self) -> float:
        """pJ."""
        return sum(mapped.found.energy for mapped in self.layers)

    @property
    def cycles(self) -> int:
        """One layer after the other."""
        return sum(mapped.found.cycles for mapped in self.layers)

    @property
    def edp(self) -> float:
        """uJ x cycles of the whole network."""
        return self.energy * 1e-6 * self.cycles


def map_network(
    graph: Graph,
    machine: Machine,
    objective: Objective = "edp",
    seconds: float | None = None,
    seed: int = 0,
    method: Method = auto,
    progress: Callable[[str], None] = lambda text: None,
) -> MappedNetwork:
    """The best mapping found of every distinct layer; `seconds` for all of them together.

    Raises:
        MachineError: a layer that fits at no tile size.
    """
    workloads = {layer.name: Workload.of(layer) for layer in graph.tensor_core_layers}
    distinct = list(dict.fromkeys(workloads.values()))
    share = None if seconds is None else seconds / max(len(distinct), 1)
    found: dict[Workload, Found] = {}
    for number, workload in enumerate(distinct, 1):
        progress(f"layer {number} of {len(distinct)}: {workload.dims}")
        search = LayerSearch(machine, workload, objective, share, seed)
        method(search)
        found[workload] = search.found()
    layers = [
        MappedLayer(layer, workloads[layer.name], found[workloads[layer.name]])
        for layer in graph.tensor_core_layers
    ]
    others = [layer.name for layer in graph.layers if layer.name not in workloads]
    return MappedNetwork(machine, tuple(layers), tuple(others))
