"""Residual adds in the differentiable twin: traffic, regions and liveness equal the exact model's."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fadiff.costmodel.group.fusion import ScheduleError, plan_group
from fadiff.costmodel.group.nodes import Edge, Node, add_shape
from fadiff.costmodel.mapping.shape import shape_of
from fadiff.costmodel.relaxed.groups import Companions, LiveTensors
from fadiff.costmodel.relaxed.model import OS, RelaxedModel
from fadiff.costmodel.schedule.evaluate import group_cost
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule
from fadiff.costmodel.target.target import load_target
from tests.costmodel.networks import add, conv, graph, whole_tile
from tests.costmodel.relaxed_cases import looped, point_of

LARGE = load_target("gemmini-large")
EDGES = [Edge(0, 1), Edge(1, 2), Edge(0, 2), Edge(2, 3)]
NAMES = ("a", "b", "sum", "c")


def block(size, kernel, channels=16):
    """x -> a -> y -> b -> z; z + y -> w; w -> c -> v: a residual block with a layer before and after."""
    a = conv("a", "x", "y", channels, channels, size, size, kernel, pad=kernel // 2)
    b = conv("b", "y", "z", channels, channels, size, size, kernel, pad=kernel // 2)
    c = conv("c", "w", "v", channels, channels, size, size, kernel, pad=kernel // 2)
    return graph([a, b, add("sum", "z", "y", "w"), c], ("x",), ("v",))


def nodes_of(network, size, channels=16):
    nodes = {layer.name: Node(shape_of(layer)) for layer in network.tensor_core_layers}
    nodes["sum"] = Node(add_shape(1, channels, size, size), is_add=True)
    return [nodes[name] for name in NAMES]


def scheduled(network, fused, tile, size, residents=True):
    """Groups (the fused layers, the others alone), every layer with one tile per group tile."""
    groups = []
    for name in NAMES:
        if name not in fused:
            groups.append(FusionGroup((name,), None))
        elif name == fused[0]:
            kept = frozenset(n for n in fused if n != "sum") if residents else frozenset()
            groups.append(FusionGroup(fused, GroupTile(1, *tile), kept))
    mappings = {}
    for group in groups:
        plan = plan_group(network, group)
        for name in group.layers:
            dims = add_shape(1, 16, size, size).dims if name == "sum" else network.by_name[name].dims
            largest = {}
            if len(group.layers) > 1:
                region = plan[name].computed
                largest = {d: max(stop - start for start, stop in getattr(region, d)) for d in "GNPQ"}
            mapping = whole_tile(dims, side=16, **largest)
            mappings[name] = replace(mapping, order_l3=OS.l3, order_l2=OS.l2, order_l1=OS.l1)
    return groups, mappings


def strengths(fused):
    inside = [NAMES[p] in fused and NAMES[c] in fused for p, c in EDGES]
    return torch.tensor([[float(i) for i in inside]], dtype=torch.float64)


GROUPS = [(), ("a", "b"), ("b", "sum"), ("a", "b", "sum"), ("b", "sum", "c")]


@pytest.mark.parametrize("model", ["sound", "paper"])
@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(6, 16),
    kernel=st.sampled_from([1, 3, 5]),
    fused=st.sampled_from(GROUPS),
    tile=st.tuples(st.integers(1, 16), st.integers(1, 16)),
)
def test_residual_block_equals_exact(profile, model, size, kernel, fused, tile):
    network = block(size, kernel)
    tile = tuple(min(t, size) for t in tile)
    groups, mappings = scheduled(network, fused, tile, size)
    paper = model == "paper"
    exact = {}
    for group in groups:
        issued = {name: looped(mapping, profile) for name, mapping in mappings.items()}
        for cost in group_cost(network, group, issued, LARGE, profile, paper=paper):
            exact[cost.name] = cost
    relaxed = RelaxedModel(
        nodes_of(network, size), EDGES, LARGE, profile, fusion_model=model, dtype=torch.float64
    )
    cost = relaxed(point_of([mappings[name] for name in NAMES], sigma=strengths(fused)))
    for index, name in enumerate(NAMES):
        energy, cycles = cost.energy_pj[0, index].item(), cost.latency_cycles[0, index].item()
        assert energy == pytest.approx(exact[name].energy_pj, rel=1e-9), name
        if name == "sum" and profile == "hw" and not paper:  # without waits between its operands
            assert 0 < cycles <= exact[name].latency_cycles + 1, name
        else:
            assert cycles == pytest.approx(exact[name].latency_cycles, rel=1e-9, abs=1), name
        moved = {}
        for _, move in exact[name].moves:
            moved[move.memory] = moved.get(move.memory, 0) + move.bytes
        for memory, total in cost.memory_bytes.items():
            assert total[0, index].item() == pytest.approx(moved.get(memory, 0), rel=1e-9), (
                name,
                memory,
            )


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@pytest.mark.parametrize("fused", [("a", "b"), ("a", "b", "sum"), ("b", "sum", "c")])
@pytest.mark.parametrize("tile", [(3, 12), (4, 4), (12, 12)])
def test_penalties_find_the_capacity_of_the_exact_model(profile, fused, tile):
    """The least memory that the exact model accepts is the least without a penalty: y counts once,
    from a through b to the add."""
    network = block(12, 3)
    groups, mappings = scheduled(network, fused, tile, 12)
    memory = "tile_buffer_bytes" if profile == "hw" else "scratchpad_bytes"

    def target(size):
        return LARGE.model_copy(update={memory: size})

    def legal(size):
        mapped = {name: mapping for name, mapping in mappings.items() if name != "sum"}
        try:
            Schedule(network, target(size), mapped, tuple(groups), profile)
        except ScheduleError:
            return False
        return True

    def penalty(size):
        relaxed = RelaxedModel(nodes_of(network, 12), EDGES, target(size), profile, dtype=torch.float64)
        cost = relaxed(point_of([mappings[name] for name in NAMES], sigma=strengths(fused)))
        return (cost.penalties["memory"] + cost.penalties["buffer"]).item()

    low, high = 1, 1 << 20
    assert legal(high)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if legal(middle) else (middle + 1, high)
    assert penalty(low + 1) == 0
    assert penalty(low - 1) > 0


BRANCH = [(0, 1), (1, 2), (2, 3), (0, 3)]
"""Three convolutions and the add (node 3) of the last and the first."""


def test_a_skip_tensor_lives_as_long_as_its_branch():
    companions = Companions(BRANCH, 4)
    live = LiveTensors(BRANCH, companions)

    def alive(sigma, space):
        return live(torch.tensor([space]), companions.strength(torch.tensor([sigma])), 4).tolist()

    assert alive([1.0, 1.0, 1.0, 1.0], [5.0, 2.0, 4.0, 8.0]) == [[8, 8 + 2, 8 + 2 + 4, 8 + 4]]
    assert alive([1.0, 1.0, 1.0, 0.0], [5.0, 2.0, 4.0, 0.0]) == [[5, 5 + 2, 2 + 4, 4]]


def test_an_operand_of_an_add_waits_while_the_other_one_is_computed():
    """Nodes 0 and 1 read the network's input, node 2 adds them: 0's output is alive while 1 runs."""
    edges = [(0, 2), (1, 2)]
    companions = Companions(edges, 3)
    strength = companions.strength(torch.ones(1, 2))
    assert LiveTensors(edges, companions)(torch.tensor([[3.0, 4.0]]), strength, 3).tolist() == [[3, 7, 7]]


def test_weights_of_a_member_count_once_however_many_edges_lead_to_it():
    companions = Companions(BRANCH, 4)
    held = torch.tensor([[1.0, 10.0, 100.0, 0.0]])

    def carried(*sigma):
        return companions.sum(companions.strength(torch.tensor([sigma])), held).tolist()[0][:3]

    assert carried(1.0, 1.0, 1.0, 1.0) == [110, 101, 11]
    assert carried(1.0, 0.0, 1.0, 1.0) == [110, 101, 11]
    assert carried(1.0, 0.0, 1.0, 0.0) == [10, 1, 0]


@pytest.mark.parametrize("profile", ["hw", "dosa"])
def test_gradients_reach_every_strength(profile):
    network = block(12, 3)
    _, mappings = scheduled(network, ("a", "b", "sum"), (4, 4), 12)
    sigma = torch.full((2, len(EDGES)), 0.5, dtype=torch.float64, requires_grad=True)
    model = RelaxedModel(nodes_of(network, 12), EDGES, LARGE, profile, dtype=torch.float64)
    point = point_of([mappings[name] for name in NAMES], sigma=sigma)
    repeated = {f: getattr(point, f).expand(2, -1, -1) for f in ("l2", "l1", "l0", "rows", "cols", "order")}
    cost = model(replace(point, **repeated), softness=5.0)
    loss = torch.log(cost.total_energy_pj * cost.total_latency_cycles) + sum(cost.penalties.values())
    loss.sum().backward()
    assert torch.isfinite(sigma.grad).all()
    assert (sigma.grad != 0).all()
