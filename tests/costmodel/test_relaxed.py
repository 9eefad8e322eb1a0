"""The differentiable twin equals the exact model wherever the relaxation is integral."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.group.fusion import plan_group
from fadiff.costmodel.group.legality import occupancy
from fadiff.costmodel.group.nodes import Edge, Node
from fadiff.costmodel.mapping.shape import shape_of
from fadiff.costmodel.relaxed.model import ORDERS, OS, RelaxedModel, RelaxedPoint
from fadiff.costmodel.schedule.evaluate import group_cost, layer_cost
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile
from fadiff.costmodel.target.target import load_target
from tests.costmodel.networks import pair, whole_tile
from tests.costmodel.relaxed_cases import looped, point_of
from tests.costmodel.strategies import layer_shapes, mappings

SMALL = load_target("gemmini-small")
LARGE = load_target("gemmini-large")


def assert_rounded(cycles, exact, profile):
    """To the nearest by the clock, up by the roofline."""
    if profile == "hw":
        assert exact == pytest.approx(cycles, abs=0.5 + 1e-6)
    else:
        assert exact == math.ceil(cycles - 1e-6)


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=75, deadline=None)
@given(data=st.data())
def test_unfused_layer_equals_exact(profile, data):
    shape = data.draw(layer_shapes())
    mapping = data.draw(mappings(shape, orders=ORDERS))
    exact = layer_cost(shape, looped(mapping, profile), SMALL, profile)
    model = RelaxedModel([Node(shape)], [], SMALL, profile, dtype=torch.float64)
    cost = model(point_of([mapping]))
    per_memory = {}
    for move in exact.moves:
        per_memory[move.memory] = per_memory.get(move.memory, 0) + move.bytes
    for memory, moved in cost.memory_bytes.items():
        assert moved.item() == pytest.approx(per_memory.get(memory, 0), rel=1e-9), memory
    assert cost.energy_pj.item() == pytest.approx(exact.energy_pj, rel=1e-9)
    assert_rounded(cost.latency_cycles.item(), exact.latency_cycles, profile)


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_packed_rows_equal_exact(profile, data):
    """Kernel columns beside all channels on the array rows."""
    shape = data.draw(layer_shapes(depthwise=False, groups=False, channels=6))
    mapping = data.draw(mappings(shape, orders=ORDERS))
    channels = shape.dims.C
    packed = data.draw(st.integers(1, min(shape.dims.S, 16 // channels)))
    l2 = data.draw(st.integers(packed, shape.dims.S))
    l1 = data.draw(st.integers(packed, l2))
    mapping = replace(
        mapping,
        tile_l2=mapping.tile_l2.replace({"C": channels, "S": l2}),
        tile_l1=mapping.tile_l1.replace({"C": channels, "S": l1}),
        tile_l0=mapping.tile_l0.replace({"C": channels, "S": packed}),
        rows=Dims(C=channels, S=packed),
    )
    exact = layer_cost(shape, looped(mapping, profile), SMALL, profile)
    cost = RelaxedModel([Node(shape)], [], SMALL, profile, dtype=torch.float64)(point_of([mapping]))
    assert cost.energy_pj.item() == pytest.approx(exact.energy_pj, rel=1e-9)
    assert_rounded(cost.latency_cycles.item(), exact.latency_cycles, profile)


@pytest.mark.parametrize("profile, tolerance", [("dosa", 1e-9), ("hw", 1e-9)])
@settings(max_examples=30, deadline=None)
@given(
    size=st.integers(8, 20),
    kernel=st.sampled_from([1, 3, 5]),
    tile=st.tuples(st.integers(1, 20), st.integers(1, 20)),
)
def test_fused_pair_equals_exact(profile, tolerance, size, kernel, tile):
    network = pair(P=size, R=kernel, K=32, C=32)
    tile_p, tile_q = (min(t, size) for t in tile)
    group = FusionGroup(("a", "b"), GroupTile(1, tile_p, tile_q), frozenset(("a", "b")))
    plan = plan_group(network, group)
    chosen = {}
    for name in ("a", "b"):
        largest = {
            d: max(b - a for a, b in axis) for d, axis in zip("GKNPQ", plan[name].computed, strict=True)
        }
        mapping = whole_tile(network.by_name[name].dims, side=32, **largest)
        chosen[name] = replace(mapping, order_l3=OS.l3, order_l2=OS.l2, order_l1=OS.l1)
    issued = {name: looped(mapping, profile) for name, mapping in chosen.items()}
    exact = group_cost(network, group, issued, LARGE, profile)
    nodes = [Node(shape_of(layer)) for layer in network.layers]
    model = RelaxedModel(nodes, [Edge(0, 1)], LARGE, profile, dtype=torch.float64)
    cost = model(point_of(list(chosen.values()), sigma=torch.ones(1, 1, dtype=torch.float64)))
    for index, tolerated in enumerate((tolerance, 1e-9)):
        assert cost.energy_pj[0, index].item() == pytest.approx(exact[index].energy_pj, rel=tolerated)
        assert cost.latency_cycles[0, index].item() == pytest.approx(
            exact[index].latency_cycles, rel=tolerated, abs=1
        )
    assert cost.penalties["memory"].item() == cost.penalties["mapping"].item() == 0


def test_unfused_edges_cost_nothing():
    network = pair(P=8)
    mapping = [whole_tile(layer.dims) for layer in network.layers]
    mapping = [replace(m, order_l3=OS.l3, order_l2=OS.l2, order_l1=OS.l1) for m in mapping]
    nodes = [Node(shape_of(layer)) for layer in network.layers]
    with_edge = RelaxedModel(nodes, [Edge(0, 1)], SMALL, dtype=torch.float64)(
        point_of(mapping, sigma=torch.zeros(1, 1, dtype=torch.float64))
    )
    without = RelaxedModel(nodes, [], SMALL, dtype=torch.float64)(point_of(mapping))
    assert torch.allclose(with_edge.energy_pj, without.energy_pj, rtol=1e-12)


def test_gradients_are_finite_and_reach_every_variable():
    network = pair(P=16, K=32, C=32)
    nodes = [Node(shape_of(layer)) for layer in network.layers]
    model = RelaxedModel(nodes, [Edge(0, 1)], SMALL)
    torch.manual_seed(0)
    raw = [torch.rand(4, 2, 8, requires_grad=True) for _ in range(3)]
    order = torch.rand(4, 2, 3, requires_grad=True)
    sigma = torch.rand(4, 1, requires_grad=True)
    log_bound = torch.log(model.bounds)
    shares = [raw[0], raw[0] * raw[1], raw[0] * raw[1] * raw[2]]
    l2, l1, l0 = (torch.exp(share * log_bound) for share in shares)
    ones = torch.ones_like(l0)
    cost = model(RelaxedPoint(l2, l1, l0, ones, ones, torch.softmax(order, -1), sigma), softness=5.0)
    loss = torch.log(cost.total_energy_pj * cost.total_latency_cycles) + sum(cost.penalties.values())
    loss.sum().backward()
    for leaf in (*raw, order, sigma):
        assert torch.isfinite(leaf.grad).all()
        assert leaf.grad.abs().sum() > 0


@pytest.mark.parametrize("profile", ["dosa", "hw"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_paper_fusion_equals_exact(profile, data):
    """Eq. 13-15 at sigma = 1: whole layers with any mappings, tile grids ignored."""
    network = pair(P=6, K=5, C=3)
    nodes = [Node(shape_of(layer)) for layer in network.layers]
    chosen = [data.draw(mappings(node.shape, orders=ORDERS)) for node in nodes]
    group = FusionGroup(("a", "b"), GroupTile(1, 6, 6))
    named = dict(zip(("a", "b"), chosen, strict=True))
    exact = group_cost(network, group, named, SMALL, profile, paper=True)
    model = RelaxedModel(nodes, [Edge(0, 1)], SMALL, profile, fusion_model="paper", dtype=torch.float64)
    cost = model(point_of(chosen, sigma=torch.ones(1, 1, dtype=torch.float64)))
    for index in range(2):
        assert cost.energy_pj[0, index].item() == pytest.approx(exact[index].energy_pj, rel=1e-9)


def test_sigma_scales_the_boundary():
    """Half fused: half the reads, and the write stays until every reader is fused."""
    network = pair(P=8)
    nodes = [Node(shape_of(layer)) for layer in network.layers]
    chosen = [whole_tile(layer.dims) for layer in network.layers]
    chosen = [replace(m, order_l3=OS.l3, order_l2=OS.l2, order_l1=OS.l1) for m in chosen]
    model = RelaxedModel(nodes, [Edge(0, 1)], SMALL, "dosa", dtype=torch.float64)

    def dram(sigma):
        point = point_of(chosen, sigma=torch.full((1, 1), sigma, dtype=torch.float64))
        return model(point).memory_bytes["dram"][0]

    none, half, full = dram(0.0), dram(0.5), dram(1.0)
    assert (none - full).tolist() == [4 * 64, 4 * 10 * 10]
    assert torch.allclose(half, (none + full) / 2)


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_memory_penalty_is_the_overflow(profile, data):
    shape = data.draw(layer_shapes())
    mapping = data.draw(mappings(shape, orders=ORDERS))
    tiny = SMALL.model_copy(update={"scratchpad_bytes": 16 * 64, "accumulator_bytes": 64 * 32})
    used, space = occupancy(shape, mapping, tiny, profile), 64 if profile == "hw" else 16 * 64
    over = [math.log(max(1, (used.weights + used.inputs) / space)), math.log(max(1, used.outputs / 32))]
    model = RelaxedModel([Node(shape)], [], tiny, profile, dtype=torch.float64)
    penalty = model(point_of([mapping])).penalties["memory"].item()
    assert penalty == pytest.approx(sum(o * o for o in over), rel=1e-6, abs=1e-12)
