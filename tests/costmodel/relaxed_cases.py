"""Random networks with fusion groups and mappings, and the points of the relaxed model that they are."""

from dataclasses import dataclass, replace
from typing import Any

import networkx as nx
import torch
from hypothesis import assume
from hypothesis import strategies as st

from fadiff.converter.ir.graph import HostLayer, TensorCoreLayer
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.group.fusion import ScheduleError, paper_plan, plan_group
from fadiff.costmodel.group.nodes import Edge, Node, add_shape
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.shape import shape_of
from fadiff.costmodel.relaxed.model import ORDERS, RelaxedModel, RelaxedPoint
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule
from fadiff.costmodel.target.target import load_target
from tests.costmodel.networks import add, conv, depthwise, graph

SIDE = 16
TARGET = load_target("gemmini-large").model_copy(update={"side": SIDE})


def looped(mapping, profile):
    """The mapping as the twin counts it: in profile hw a loop unit runs every tile."""
    return replace(mapping, issue="loop_ws") if profile == "hw" else mapping


def point_of(mappings_, orders=ORDERS, sigma=None, dtype=torch.float64):
    """One restart at the given integer mappings."""

    def stack(name):
        return torch.tensor([[list(getattr(m, name)) for m in mappings_]], dtype=dtype)

    index = [
        next(i for i, o in enumerate(orders) if (o.l3, o.l2, o.l1) == (m.order_l3, m.order_l2, m.order_l1))
        for m in mappings_
    ]
    order = torch.nn.functional.one_hot(torch.tensor([index]), len(orders)).to(dtype)
    return RelaxedPoint(
        stack("tile_l2"), stack("tile_l1"), stack("tile_l0"), stack("rows"), stack("cols"), order, sigma
    )


@dataclass
class Case:
    """A network with fusion groups and mappings, and the point of the relaxed model that it is."""

    network: Any
    groups: list
    mappings: dict
    nodes: list
    edges: list
    sigma: torch.Tensor
    tiles: dict | None = None
    """What one group tile makes every layer compute along P and Q; None: its scratchpad tile."""

    def index_of(self, name):
        return [layer.name for layer in self.network.layers].index(name)

    def relaxed(self, target=TARGET, profile="hw", **options):
        model = RelaxedModel(self.nodes, self.edges, target, profile, dtype=torch.float64, **options)
        order = [self.mappings[layer.name] for layer in self.network.layers]
        point = point_of(order, sigma=self.sigma)
        if self.tiles is not None:
            tiles = [self.tiles[layer.name] for layer in self.network.layers]
            point.group = torch.tensor([tiles], dtype=torch.float64)
        return model(point)

    def schedule(self, target=TARGET, profile="hw", fusion_model="sound"):
        mapped = {
            layer.name: self.mappings[layer.name]
            for layer in self.network.layers
            if isinstance(layer, TensorCoreLayer)
        }
        return Schedule(self.network, target, mapped, tuple(self.groups), profile, fusion_model)


@st.composite
def chains(draw):
    """Two to five layers; kernels, strides and padding as they come."""
    count = draw(st.integers(2, 5))
    p, q, batch = draw(st.integers(2, 12)), draw(st.integers(2, 12)), draw(st.integers(1, 2))
    layers = []
    channels = draw(st.integers(1, 20))
    for index in reversed(range(count)):
        kernel, strided = draw(st.sampled_from([1, 2, 3, 5])), draw(st.booleans())
        pad = draw(st.integers(0, kernel // 2))
        bias = f"b{index}" if draw(st.booleans()) else None
        names = (f"l{index}", f"t{index}", f"t{index + 1}")
        if index and draw(st.integers(0, 3)) == 0:
            layer = depthwise(*names, channels, p, q, kernel, pad, bias, batch)
        else:
            before = draw(st.integers(1, 20))
            stride = 2 if strided and max(p, q) < 16 else 1
            layer = conv(*names, channels, before, p, q, kernel, stride, pad, bias, batch)
            channels = before
        p, q = layer.input_size
        assume(min(p, q) > 0)
        layers.insert(0, layer)
    return graph(layers, ("t0",), (f"t{count}",))


@st.composite
def branching(draw):
    """Convolutions and residual adds of any earlier tensors, all of one size."""
    size, channels = draw(st.integers(3, 14)), draw(st.integers(1, 20))
    layers = []
    tensors = ["t0"]
    for index in range(draw(st.integers(3, 5))):
        out = f"t{index + 1}"
        source = draw(st.sampled_from(tensors[-2:]))
        others = [t for t in tensors[1:] if t != source]
        if others and source != "t0" and draw(st.booleans()):
            layers.append(add(f"l{index}", source, draw(st.sampled_from(others)), out))
        else:
            kernel = draw(st.sampled_from([1, 3, 5]))
            layers.append(
                conv(f"l{index}", source, out, channels, channels, size, size, kernel, 1, kernel // 2)
            )
        tensors.append(out)
    read = {name for layer in layers for name in layer.inputs}
    outputs = [t for t in tensors[1:] if t not in read or draw(st.integers(0, 4)) == 0]
    return graph(layers, ("t0",), tuple(outputs))


def fusable_edges(network):
    """(producer, consumer) indices, operands of an add separately."""
    position = {layer.name: i for i, layer in enumerate(network.layers)}
    edges = []
    for layer in network.layers:
        inputs = (layer.input.tensor,) if isinstance(layer, TensorCoreLayer) else layer.inputs
        for tensor in inputs:
            for producer in network.producers(tensor):
                edges.append(Edge(position[producer.name], position[layer.name]))
    return edges


@st.composite
def cases(draw, network, paper=False):
    """Random strengths of the edges and random tiles, and whether a schedule could look like that.

    Half of the cases walk every member's part of a group tile in smaller scratchpad tiles.
    """
    two_levels = draw(st.booleans()) and not paper
    tiles = {}
    edges = fusable_edges(network)
    fused = [draw(st.booleans()) for _ in edges]
    names = [layer.name for layer in network.layers]
    joined = nx.Graph()
    joined.add_nodes_from(range(len(names)))
    joined.add_edges_from(edge for edge, inside in zip(edges, fused, strict=True) if inside)
    members = [sorted(component) for component in nx.connected_components(joined)]
    group_of = {node: index for index, nodes in enumerate(members) for node in nodes}
    order = nx.DiGraph()
    order.add_nodes_from(range(len(members)))
    order.add_edges_from((group_of[a], group_of[b]) for a, b in edges if group_of[a] != group_of[b])
    executable = nx.is_directed_acyclic_graph(order) and all(
        inside or group_of[a] != group_of[b] for (a, b), inside in zip(edges, fused, strict=True)
    )
    groups, mappings = [], {}
    for index in nx.topological_sort(order) if executable else range(len(members)):
        layers = tuple(names[node] for node in members[index])
        size = dims_of(network, network.by_name[layers[-1]])
        tile = {d: draw(st.integers(1, size[d])) for d in "NPQ"}
        group = FusionGroup(layers, GroupTile(**tile) if len(layers) > 1 else None)
        try:
            plan = (paper_plan if paper else plan_group)(network, group)
        except ScheduleError:
            plan, executable = {}, False
        kept = set()
        for name in layers:
            layer = network.by_name[name]
            dims = dims_of(network, layer)
            limits = {}
            if plan and len(layers) > 1 and not paper:
                region = plan[name].computed
                limits = {d: max((b - a for a, b in getattr(region, d)), default=1) for d in "GNPQ"}
            tiles[name] = [float(limits.get(d, dims[d])) for d in "PQ"]
            if two_levels and limits:
                limits |= {d: draw(st.integers(1, limits[d])) for d in "PQ"}
            mappings[name] = draw(nested(dims, limits))
            whole = all(mappings[name].tile_l2[d] == dims[d] for d in "GKCRS")
            if whole and isinstance(layer, TensorCoreLayer) and len(layers) > 1 and not paper:
                kept.add(name)
        groups.append(replace(group, resident_weights=frozenset(kept)))
    needed = [layer.outputs[0] in network.outputs for layer in network.layers]
    nodes = [
        Node(shape_of(layer), 1.0, output)
        if isinstance(layer, TensorCoreLayer)
        else Node(add_shape_of(network, layer), 1.0, output, is_add=True)
        for layer, output in zip(network.layers, needed, strict=True)
    ]
    sigma = torch.tensor([[float(inside) for inside in fused]], dtype=torch.float64)
    case = Case(network, groups, mappings, nodes, edges, sigma, tiles if two_levels else None)
    return case, executable


def dims_of(network, layer):
    if isinstance(layer, TensorCoreLayer):
        return layer.dims
    return add_shape_of(network, layer).dims


def add_shape_of(network, layer):
    assert isinstance(layer, HostLayer)
    n, p, q, k = network.tensors[layer.outputs[0]].shape
    return add_shape(n, k, p, q)


@st.composite
def nested(draw, dims, fixed):
    """Tiles as legality wants them: blocks of the array whole, image tiles as the group says."""

    def pick(limit):
        return draw(st.one_of(st.just(limit), st.integers(1, limit)))

    column = "K" if dims.G == 1 else "G"
    l2 = {d: fixed.get(d) or pick(dims[d]) for d in ("N", "P", "Q", "K", "C", "R", "S", "G")}
    l1 = {**l2, **{d: pick(l2[d]) for d in ("N", "P", "Q", "R", "S")}}
    rows = {"C": min(l2["C"], SIDE)} if column == "K" else {}
    cols = {column: min(l2[column], SIDE)}
    l0 = {**rows, **cols, **{d: pick(l1[d]) for d in ("N", "P", "Q")}}
    order = draw(st.sampled_from(ORDERS))
    return Mapping(
        Dims(**l2), Dims(**l1), Dims(**l0), Dims(**rows), Dims(**cols), order.l3, order.l2, order.l1
    )
