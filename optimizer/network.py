"""The relaxed network: distinct layers as nodes, fusable pairs as edges.

Layers with the same shape and the same surroundings (a few fusable edges around them) get the same
best schedule, so they are one node with a repeat count: 96 decoder blocks cost what one costs.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from converter.graph import Graph, TensorCoreLayer
from costmodel.fusion import ScheduleError, plan_group
from costmodel.schedule import FusionGroup, GroupTile
from costmodel.shape import LayerShape, shape_of
from optimizer.groups import fusable_producers

RADIUS = 2
"""Fusable edges around a layer that must look alike for two layers to share a node."""


@dataclass(frozen=True)
class RelaxedNetwork:
    """Nodes (shape, repeat, whether the output is needed outside) and edges (producer, consumer)."""

    shapes: tuple[LayerShape, ...]
    repeats: tuple[int, ...]
    needed: tuple[bool, ...]
    edges: tuple[tuple[int, int], ...]
    node_of: dict[str, int]
    """Node of every tensor-core layer."""
    pairs: tuple[tuple[str, str], ...]
    """Fusable (producer, consumer) layers of the graph."""

    def edge_of(self) -> dict[tuple[str, str], int]:
        """Relaxed edge of every fusable pair of layers."""
        index = {edge: i for i, edge in enumerate(self.edges)}
        found = {}
        for producer, consumer in self.pairs:
            edge = (self.node_of[producer], self.node_of[consumer])
            if edge in index:
                found[(producer, consumer)] = index[edge]
        return found


def relaxed_network(graph: Graph, fusion: bool) -> RelaxedNetwork:
    """Merge identical layers of `graph`; without `fusion` there are no edges."""
    pairs = tuple(_fusable_pairs(graph)) if fusion else ()
    producer_of = {consumer: producer for producer, consumer in pairs}
    consumers_of: dict[str, list[str]] = {}
    for producer, consumer in pairs:
        consumers_of.setdefault(producer, []).append(consumer)

    colour: dict[str, Hashable] = {}
    needed: dict[str, bool] = {}
    for layer in graph.tensor_core_layers:
        tensor = layer.output.tensor
        readers = [c.name for c in graph.consumers(tensor)]
        inside = set(consumers_of.get(layer.name, ()))
        needed[layer.name] = tensor in graph.outputs or any(r not in inside for r in readers)
        colour[layer.name] = (shape_of(layer), needed[layer.name])
    for _ in range(RADIUS):
        colour = {
            name: (
                colour[name],
                colour.get(producer_of.get(name, "")),
                tuple(colour[c] for c in consumers_of.get(name, ())),
            )
            for name in colour
        }
        names: dict[Hashable, int] = {}
        colour = {name: names.setdefault(c, len(names)) for name, c in colour.items()}

    nodes: dict[Hashable, int] = {}
    node_of = {name: nodes.setdefault(c, len(nodes)) for name, c in colour.items()}
    first: dict[int, str] = {}
    for name, node in node_of.items():
        first.setdefault(node, name)
    edges = tuple((node_of[producer_of[name]], node) for node, name in first.items() if name in producer_of)
    return RelaxedNetwork(
        shapes=tuple(shape_of(_core(graph, first[i])) for i in range(len(nodes))),
        repeats=tuple(sum(n == i for n in node_of.values()) for i in range(len(nodes))),
        needed=tuple(needed[first[i]] for i in range(len(nodes))),
        edges=edges,
        node_of=node_of,
        pairs=pairs,
    )


def _core(graph: Graph, name: str) -> TensorCoreLayer:
    layer = graph.by_name[name]
    assert isinstance(layer, TensorCoreLayer)
    return layer


def _fusable_pairs(graph: Graph) -> list[tuple[str, str]]:
    """Pairs of tensor-core layers that costmodel accepts as a group."""
    pairs = []
    for layer in graph.tensor_core_layers:
        for producer in fusable_producers(graph, layer, adds=False):
            d = layer.dims
            group = FusionGroup((producer, layer.name), GroupTile(d.N, d.P, d.Q))
            try:
                plan_group(graph, group)
            except ScheduleError:
                continue
            pairs.append((producer, layer.name))
    return pairs
