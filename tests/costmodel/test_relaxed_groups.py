"""Random chains and branching graphs: whatever is fused, the differentiable twin equals the exact model."""

import math
from dataclasses import dataclass, replace
from typing import Any

import networkx as nx
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from converter.dims import Dims
from converter.graph import HostLayer, TensorCoreLayer
from costmodel.evaluate import evaluate, group_cost
from costmodel.fusion import ScheduleError, boundary, plan_group
from costmodel.group_overlap import prefetch_weights, resource_latency
from costmodel.mapping import Mapping
from costmodel.relaxed import ORDERS, OS, Edge, Node, RelaxedModel, add_shape
from costmodel.schedule import FusionGroup, GroupTile, Schedule
from costmodel.shape import shape_of
from costmodel.target import load_target
from tests.costmodel.networks import add, conv, depthwise, graph, whole_tile
from tests.costmodel.test_relaxed import point_of

LARGE = load_target("gemmini-large")
SIDE = 16
TARGET = LARGE.model_copy(update={"side": SIDE})


@dataclass
class Case:
    """A network with fusion groups and mappings, and the point of the relaxed model that it is."""

    network: Any
    groups: list
    mappings: dict
    nodes: list
    edges: list
    sigma: torch.Tensor
    sequence: list
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
def cases(draw, network, halo="recompute", paper=False):
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
        if halo == "retain" and len(layers) > 1:
            tile["Q"] = size.Q
        group = FusionGroup(layers, GroupTile(**tile) if len(layers) > 1 else None, halo)
        try:
            plan = (boundary if paper else plan_group)(network, group)
        except ScheduleError:
            plan, executable = {}, False
        kept = set()
        for name in layers:
            layer = network.by_name[name]
            dims = dims_of(network, layer)
            limits = {}
            if plan and len(layers) > 1 and not paper:
                region = plan[name].computed
                limits = {
                    d: max((b - a for a, b in axis), default=1) for d, axis in zip("NPQ", region, strict=True)
                }
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
    sequence = [names.index(name) for group in groups for name in group.layers]
    sigma = torch.tensor([[float(inside) for inside in fused]], dtype=torch.float64)
    case = Case(network, groups, mappings, nodes, edges, sigma, sequence, tiles if two_levels else None)
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


def assert_equal(case, profile, *, paper=False, halo="recompute", target=TARGET):
    options = {"fusion_model": "paper"} if paper else {"halo": halo}
    cost = case.relaxed(target, profile, **options)
    assert cost.penalties["shape"].item() == pytest.approx(0, abs=1e-12)
    exact = {}
    for group in case.groups:
        for one in group_cost(case.network, group, case.mappings, target, profile, paper=paper):
            exact[one.name] = one
    for index, layer in enumerate(case.network.layers):
        one = exact[layer.name]
        moved = {}
        for _, move in one.moves:
            moved[move.memory] = moved.get(move.memory, 0) + move.bytes
        for memory, total in cost.memory_bytes.items():
            assert total[0, index].item() == pytest.approx(moved.get(memory, 0), rel=1e-9), (
                layer.name,
                memory,
            )
        assert cost.energy_pj[0, index].item() == pytest.approx(one.energy_pj, rel=1e-9), layer.name
        cycles = cost.latency_cycles[0, index].item()
        assert cycles == pytest.approx(one.latency_cycles, rel=1e-9, abs=1), layer.name
    if not paper:
        measured = case.relaxed(target, profile, latency="rtl", **options).latency_cycles[0]
        for group in case.groups:
            for one in group_cost(case.network, group, case.mappings, target, profile, "rtl"):
                cycles = measured[case.index_of(one.name)].item()
                assert cycles == pytest.approx(one.latency_cycles, rel=1e-9, abs=1), one.name


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@pytest.mark.parametrize("halo", ["recompute", "retain"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_chain_equals_exact(profile, halo, data):
    case, executable = data.draw(cases(data.draw(chains()), halo))
    assume(executable)
    assert_equal(case, profile, halo=halo)


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_branching_graph_equals_exact(profile, data):
    case, executable = data.draw(cases(data.draw(branching())))
    assume(executable)
    assert_equal(case, profile)


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_paper_model_equals_exact(profile, data):
    case, executable = data.draw(cases(data.draw(st.one_of(chains(), branching())), paper=True))
    assume(executable)
    assert_equal(case, profile, paper=True)


@pytest.mark.parametrize("path, kept", [("spad", "in_scratchpad"), ("acc", "in_accumulator")])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_chain_through_local_memory_equals_exact(path, kept, data):
    """The target's fusion path for every fused tensor."""
    case, executable = data.draw(cases(data.draw(chains())))
    assume(executable)
    case.groups = [replace(group, **{kept: frozenset(group.layers[:-1])}) for group in case.groups]
    assert_equal(case, "hw", target=TARGET.model_copy(update={"fusion_path": path}))


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_shape_penalty_is_zero_exactly_for_groups_that_run(data):
    case, executable = data.draw(cases(data.draw(st.one_of(chains(), branching()))))
    assume(executable or not deadlocked(case))  # decoding takes such groups apart
    assert (case.relaxed().penalties["shape"].item() < 1e-12) == executable


def deadlocked(case):
    """Whether groups that could run one by one wait for each other."""
    dag = nx.DiGraph(case.edges)
    dag.add_nodes_from(range(len(case.nodes)))
    members = [[case.index_of(name) for name in group.layers] for group in case.groups]

    def acyclic(joined):
        quotient = dag
        for group in joined:
            for other in group[1:]:
                quotient = nx.contracted_nodes(quotient, group[0], other, self_loops=False)
        return nx.is_directed_acyclic_graph(quotient)

    return all(acyclic([group]) for group in members) and not acyclic(members)


RULES = ("mapping", "array", "memory", "buffer", "final", "shape")


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_penalties_are_zero_exactly_for_legal_schedules(profile, data):
    """Memories of random sizes: legality and penalties draw the same line, group by group."""
    case, executable = data.draw(cases(data.draw(st.one_of(chains(), branching()))))
    assume(executable)
    target = TARGET.model_copy(
        update={
            "scratchpad_bytes": SIDE * 2 ** data.draw(st.integers(3, 12)),
            "accumulator_bytes": 4 * SIDE * 2 ** data.draw(st.integers(2, 9)),
            "tile_buffer_bytes": 2 ** data.draw(st.integers(3, 16)),
        }
    )
    try:
        case.schedule(target, profile)
    except ScheduleError as error:
        legal, why = False, str(error)
    else:
        legal, why = True, ""
    found = case.relaxed(target, profile).penalties
    broken = {name: found[name].item() for name in RULES if found[name].item() > 1e-9}
    assert (not broken) == legal, (broken, why)


def test_tile_buffer_is_free_for_every_group_anew():
    """Two pairs of layers, each with room for its own intermediate only."""
    layers = [conv(f"l{i}", f"t{i}", f"t{i + 1}", 16, 16, 8, 8, 3, 1, 1) for i in range(4)]
    network = graph(layers, ("t0",), ("t4",))
    groups = [
        FusionGroup(
            (f"l{i}", f"l{i + 1}"), GroupTile(1, 8, 8), "recompute", frozenset((f"l{i}", f"l{i + 1}"))
        )
        for i in (0, 2)
    ]
    whole = Mapping(
        Dims(K=16, C=16, P=8, Q=8, R=3, S=3),
        Dims(K=16, C=16, P=8, Q=8, R=3, S=3),
        Dims(K=16, C=16, P=8, Q=8),
        Dims(C=16),
        Dims(K=16),
        *ORDERS[0],
    )
    sigma = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
    nodes = [Node(shape_of(layer)) for layer in layers]
    case = Case(
        network, groups, {layer.name: whole for layer in layers}, nodes, fusable_edges(network), sigma, []
    )
    one = 8 * 8 * 16
    fits = TARGET.model_copy(update={"tile_buffer_bytes": one})
    case.schedule(fits)
    assert case.relaxed(fits).penalties["buffer"].item() == 0
    short = TARGET.model_copy(update={"tile_buffer_bytes": one // 2})
    with pytest.raises(ScheduleError, match="tile-buffer"):
        case.schedule(short)
    assert case.relaxed(short).penalties["buffer"].item() == pytest.approx(2 * math.log(2) ** 2)


def test_nodes_that_stand_for_several_layers_prefetch_as_often():
    """Compute-bound and weight-bound layers in turn: one transition each way, counted as it occurs."""
    network = graph(
        [conv("a", "t0", "t1", 64, 64, 12, 12, 5, 1, 2), conv("b", "t1", "t2", 64, 64, 12, 12)],
        ("t0",),
        ("t2",),
    )
    chosen = {layer.name: whole_tile(layer.dims, 16) for layer in network.layers}
    chosen = {name: replace(m, order_l3=OS.l3, order_l2=OS.l2, order_l1=OS.l1) for name, m in chosen.items()}

    slow = TARGET.model_copy(update={"bandwidth": TARGET.bandwidth.model_copy(update={"dram_bytes": 4.0})})

    def saved(repeat, sequence):
        nodes = [Node(shape_of(layer), repeat) for layer in network.layers]
        totals = []
        for how in ("sum", "prefetch"):
            model = RelaxedModel(nodes, [], slow, group_latency=how, sequence=sequence, dtype=torch.float64)
            totals.append(model(point_of(list(chosen.values()))).total_latency_cycles.item())
        return totals[0] - totals[1]

    once = saved(1.0, [0, 1])
    assert once > 0
    assert saved(3.0, [0, 1, 0, 1, 0, 1]) == pytest.approx(3 * once)
    assert 0 < saved(2.0, [0, -1, 1, 0, 1]) <= once


def test_rtl_latency_has_nothing_to_prefetch():
    with pytest.raises(ValueError, match="sum"):
        RelaxedModel([], [], TARGET, latency="rtl", group_latency="prefetch")


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@pytest.mark.parametrize("fusion_model", ["sound", "paper"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_group_latency_equals_exact(profile, fusion_model, data):
    """The next group's weights under compute, and the busiest resource: cycles round up layer by layer."""
    paper = fusion_model == "paper"
    case, executable = data.draw(cases(data.draw(st.one_of(chains(), branching())), paper=paper))
    assume(executable)
    slow = TARGET.bandwidth.model_copy(update={"dram_bytes": data.draw(st.sampled_from([0.5, 2.0, 8.0]))})
    target = TARGET.model_copy(update={"bandwidth": slow})
    try:
        schedule = case.schedule(target, profile, fusion_model)
    except ScheduleError:
        assume(False)
    cost = evaluate(schedule)
    rounding = 3 * len(case.nodes)
    for how, expected in (
        ("sum", cost.latency_cycles),
        ("prefetch", prefetch_weights(schedule, cost).latency_cycles),
        ("overlap", resource_latency(schedule, cost)),
    ):
        relaxed = case.relaxed(
            target, profile, fusion_model=fusion_model, group_latency=how, sequence=case.sequence
        )
        assert relaxed.total_latency_cycles.item() == pytest.approx(expected, abs=rounding), how
