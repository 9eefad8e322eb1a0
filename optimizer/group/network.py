"""The relaxed network: distinct layers as nodes, fusable edges between them.

Tensor-core layers are nodes, and so are residual adds where they may join a group.  Layers with the same
shape and the same surroundings (a few fusable edges around them) get the same best schedule, so they
are one node with a repeat count: 96 decoder blocks cost what one costs.  Every fusable operand of a
node is one edge with a strength of its own; the fusable edges of the layers that share the node share it.
Host operators on rows (softmax, GELU) are no nodes: an edge across them takes them into the group.
Max pools are no nodes either, and no edge crosses them: the certificate tries them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

from fadiff.converter.ir.graph import Graph, Layer, TensorCoreLayer
from fadiff.costmodel.group.fusion import ScheduleError, plan_group
from fadiff.costmodel.group.nodes import Edge, Node, add_shape
from fadiff.costmodel.mapping.shape import LayerShape, shape_of
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile
from fadiff.optimizer.group.candidates import fusable_producers
from fadiff.optimizer.group.tiles import last_output

RADIUS = 2
"""Fusable edges around a layer that must look alike for two layers to share a node."""
Pair = tuple[str, str]
Group = tuple[str, ...]


@dataclass(frozen=True)
class RelaxedNetwork:
    """Nodes and edges of the relaxed model, and the layers and fusable pairs that they stand for."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    node_of: dict[str, int]
    """Node of every tensor-core layer and of every add that may be fused."""
    edge_of: dict[Pair, int]
    """Edge of every fusable (producer, consumer) pair of layers."""
    between: dict[Pair, Group]
    """Host operators that a fusable pair takes into its group."""
    position: Mapping[str, int]
    """Of every layer in the graph."""

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """Shape of every node."""
        return tuple(node.shape for node in self.nodes)

    @property
    def repeats(self) -> tuple[int, ...]:
        """Layers that every node stands for."""
        return tuple(int(node.repeat) for node in self.nodes)

    def joined(self, fused: Sequence[bool]) -> nx.Graph[str]:
        """Layers with the fused edges between them."""
        paths = (
            (pair[0], *self.between[pair], pair[1]) for pair, edge in self.edge_of.items() if fused[edge]
        )
        joined: nx.Graph[str] = nx.Graph()
        joined.add_edges_from(edge for path in paths for edge in pairwise(path))
        return joined

    def components(self, joined: nx.Graph[str]) -> list[tuple[str, ...]]:
        """Layers that hang together, two or more each, in the order of the graph."""
        position = self.position
        found = [tuple(sorted(c, key=position.__getitem__)) for c in nx.connected_components(joined)]
        return sorted((c for c in found if len(c) > 1), key=lambda layers: position[layers[0]])


def relaxed_network(graph: Graph, groups: Mapping[Group, Group] | None = None) -> RelaxedNetwork:
    """Merge identical layers of `graph`.

    `groups`: layers that may run together, with the first identical group of each (Problem.candidates);
    whatever is fused in one of them that can be executed is a fusable edge.
    """
    pairs, sizes = _fusable(graph, groups or {})
    joined = {name for pair in pairs for name in pair}
    layers = [x for x in graph.layers if x.name in joined or isinstance(x, TensorCoreLayer)]
    producers = {x.name: [p for p, _ in sources(graph, x) if (p, x.name) in pairs] for x in layers}
    consumers: dict[str, list[str]] = {layer.name: [] for layer in layers}
    for consumer, names in producers.items():
        for producer in names:
            consumers[producer].append(consumer)
    needed = {}
    for layer in layers:
        inside = set(consumers[layer.name])
        inside |= {name for reader in consumers[layer.name] for name in pairs[layer.name, reader]}
        written = {graph.by_name[name].outputs[0] for name in (inside - set(joined)) | {layer.name}}
        needed[layer.name] = any(
            tensor in graph.outputs or any(c.name not in inside for c in graph.consumers(tensor))
            for tensor in written
        )
    shapes = {layer.name: _shape(graph, layer, sizes) for layer in layers}
    colour: dict[str, Hashable] = {
        x.name: (shapes[x.name], needed[x.name], isinstance(x, TensorCoreLayer)) for x in layers
    }
    for _ in range(RADIUS):
        around: dict[str, Hashable] = {
            name: (
                colour[name],
                tuple(colour[p] for p in producers[name]),
                tuple(colour[c] for c in consumers[name]),
            )
            for name in colour
        }
        numbers: dict[Hashable, int] = {}
        colour = {name: numbers.setdefault(c, len(numbers)) for name, c in around.items()}

    numbers = {}
    node_of = {name: numbers.setdefault(c, len(numbers)) for name, c in colour.items()}
    first: dict[int, str] = {}
    repeats = [0] * len(numbers)
    for name, node in node_of.items():
        first.setdefault(node, name)
        repeats[node] += 1
    nodes = tuple(
        Node(shapes[name], repeats[i], needed[name], not isinstance(graph.by_name[name], TensorCoreLayer))
        for i, name in first.items()
    )
    # One edge per operand of a node, from the node of its first layer's producer.
    edges = [Edge(node_of[p], i) for i, name in first.items() for p in producers[name]]
    start: dict[int, int] = {}
    for index, edge in enumerate(edges):
        start.setdefault(edge.consumer, index)
    edge_of = {
        (producer, name): start[node_of[name]] + operand
        for name in node_of
        for operand, producer in enumerate(producers[name])
    }
    return RelaxedNetwork(nodes, tuple(edges), node_of, edge_of, pairs, graph.index)


def sources(graph: Graph, layer: Layer, adds: bool = True) -> list[tuple[str, Group]]:
    """Array layers and adds whose output a layer could read inside a group, and host operators in between."""
    found = []
    for name in fusable_producers(graph, layer, adds):
        between: Group = ()
        while not is_node(graph.by_name[name]):
            between = (name, *between)
            (name,) = fusable_producers(graph, graph.by_name[name], adds)
        found.append((name, between))
    return found


def is_node(layer: Layer) -> bool:
    """Whether tiles of a layer are chosen: it runs on the array or through the accumulator."""
    return isinstance(layer, TensorCoreLayer) or layer.op == "add"


def _fusable(
    graph: Graph, groups: Mapping[Group, Group]
) -> tuple[dict[Pair, Group], dict[str, tuple[int, int, int]]]:
    """Pairs inside groups that can be executed with what is between, and (N, P, Q) of the layers."""
    pairs: dict[Pair, Group] = {}
    sizes: dict[str, tuple[int, int, int]] = {}
    runs: dict[Group, bool] = {}
    for layers, first in groups.items():
        if first not in runs:
            runs[first] = _can_run(graph, first)
        if not runs[first]:
            continue
        for at, name in enumerate(layers):
            if not is_node(graph.by_name[name]):
                continue
            inside = [
                x
                for x in sources(graph, graph.by_name[name])
                if {x[0], *x[1]} <= set(layers) and all(graph.by_name[b].op != "max_pool" for b in x[1])
            ]
            pairs |= {(producer, name): between for producer, between in inside}
            if inside and name not in sizes:
                size = last_output(graph, layers[: at + 1])
                assert size is not None
                sizes[name] = size
    return pairs, sizes


def _can_run(graph: Graph, layers: Group) -> bool:
    size = last_output(graph, layers)
    try:
        return size is not None and bool(plan_group(graph, FusionGroup(layers, GroupTile(*size))))
    except ScheduleError:
        return False


def _shape(graph: Graph, layer: Layer, sizes: Mapping[str, tuple[int, int, int]]) -> LayerShape:
    """Shape of a tensor-core layer, or of an add."""
    if isinstance(layer, TensorCoreLayer):
        return shape_of(layer)
    n, p, q = sizes[layer.name]
    return add_shape(n, graph.tensors[layer.outputs[0]].size // (n * p * q), p, q)
