"""Searches over max pools in the store path: prices, floors, and what they find."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fadiff.converter.ir.graph import Graph, HostLayer
from fadiff.costmodel.group.fusion import plan_group
from fadiff.costmodel.group.placement import pooled
from fadiff.costmodel.group.pooling import obstacle_in_tiles, pool_of
from fadiff.costmodel.schedule.evaluate import evaluate, layer_cost
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile
from fadiff.optimizer import optimize
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.group.candidates import candidate_groups
from fadiff.optimizer.group.spaces import GroupSpaces
from fadiff.optimizer.group.tiles import all_tiles, last_output
from fadiff.optimizer.layer.enumerate import enumerate_space
from fadiff.optimizer.layer.pricing import price
from fadiff.optimizer.layer.space import Rules
from tests.costmodel.networks import SIDE_4, stem

SMALL = SIDE_4.model_copy(update={"scratchpad_bytes": 1 << 13, "accumulator_bytes": 1 << 11})
"""128 accumulator rows: no tile of the networks below covers its region with all channels."""
GROUP = ("conv", "pool")


@st.composite
def networks(draw: st.DrawFn) -> Graph:
    kernel, stride = draw(st.sampled_from([(2, 2), (3, 2), (3, 3), (2, 1)]))
    pad = draw(st.integers(0, kernel - 1)) if draw(st.booleans()) else 0
    P, Q = draw(st.integers(kernel, 20)), draw(st.integers(kernel, 20))
    return stem(P, Q, kernel, stride, (pad,) * 4, K=draw(st.integers(1, 12)))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_prices_equal_the_exact_evaluator(data):
    network = data.draw(networks())
    _, p, q = last_size(network)
    group = FusionGroup(GROUP, GroupTile(1, data.draw(st.integers(1, p)), data.draw(st.integers(1, q))))
    plan = plan_group(network, group)
    rules = Rules(SMALL, tiling=data.draw(st.sampled_from(["ragged", "divisor"])))
    spaces = GroupSpaces(network, rules)
    conv = network.tensor_core_layers[0]
    space = spaces.space(conv, plan, group, data.draw(st.booleans()))
    points = enumerate_space(space)
    costs = price(points)
    done = pooled(network, plan, "conv")
    assert done is not None
    for i in range(0, len(points), 1 + len(points) // 5):
        mapping = points.mapping(i)
        exact = layer_cost(space.shape, mapping, SMALL, "hw", region=space.region, placement=space.placement)
        assert costs.energy[i] == pytest.approx(exact.energy_pj, rel=1e-12)
        assert abs(costs.latency[i] - exact.latency_cycles) <= 1
        if not costs.spills[i]:
            assert not obstacle_in_tiles(space.shape, mapping, space.region, done, SMALL)
    whole = FusionGroup(GROUP, GroupTile(*last_size(network)))
    energy, cycles = spaces.group_floor(whole, plan_group(network, whole))
    assert (costs.energy >= energy * (1 - 1e-12)).all()
    assert (costs.latency >= cycles - 1).all()


def last_size(network: Graph) -> tuple[int, int, int]:
    pool = network.by_name["pool"]
    assert isinstance(pool, HostLayer)
    found = pool_of(network, pool)
    assert found is not None
    return found.output_size


def test_pools_join_with_their_convolution_only():
    network = stem(after=True)
    assert set(candidate_groups(network, 3)) == {("conv", "pool"), ("conv", "pool", "last")}
    assert not set(candidate_groups(network, 3, pools=False))
    assert not set(candidate_groups(network, 3, adds=False))


@pytest.mark.parametrize("windows", [(3, 2, (1, 1, 1, 1)), (2, 2, (0, 0, 0, 0))])
def test_exact_is_the_best_of_all_tiles_and_descent_agrees(windows):
    """Every group and tile priced by itself; the search may not miss one, nor promise a better bound."""
    network = stem(14, 14, *windows, after=True)
    problem = Problem(network, Rules(SMALL))
    alone = {name: problem.groups.alone(name) for name in ("conv", "pool", "last")}
    best = float("inf")
    for layers in (("conv", "pool"), ("conv", "pool", "last")):
        rest = [hull for name, hull in alone.items() if name not in layers]
        size = last_output(network, layers)
        for tile in all_tiles(*size, "ragged"):
            if len(layers) > 2 and size == (tile.N, tile.P, tile.Q):
                continue  # "last" reads what is pooled from memory, or from where it stays on chip
            hulls = [problem.price_group(layers, [tile]), *rest]
            costs = product(*(zip(h.energy, h.latency, strict=True) for h in hulls))
            edps = [sum(e for e, _ in cost) * sum(c for _, c in cost) * 1e-6 for cost in costs]
            best = min([best, *edps])
    found = optimize(network, SMALL, method="exact", residency=False)
    assert found.cost.edp_uj_cycles == pytest.approx(best, rel=1e-9)
    assert found.bound == "proven" and found.lower_bound <= best * (1 + 1e-9)
    assert any("pool" in group.layers and len(group.layers) > 1 for group in found.schedule.groups)
    descent = optimize(network, SMALL, method="gradient", residency=False)
    assert descent.cost.edp_uj_cycles == pytest.approx(best, rel=1e-9)


def test_a_target_without_pooling_leaves_it_to_the_core():
    network = stem(14, 14, after=True)
    target = SMALL.model_copy(update={"has_max_pool": False})
    result = optimize(network, target, method="exact", residency=False)
    assert FusionGroup(("pool",)) in result.schedule.groups
    moved = evaluate(result.schedule).by_name["pool"].bytes_in("host")
    assert moved == {"y": (14 * 14 * 8, 0), "z": (0, 7 * 7 * 8)}
    better = optimize(network, SMALL, method="exact", residency=False)
    assert better.cost.edp_uj_cycles < result.cost.edp_uj_cycles
    assert optimize(network, SMALL, profile="dosa", method="exact").schedule.groups == tuple(
        group for group in optimize(network, target, profile="dosa", method="exact").schedule.groups
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_spaces_without_room_to_pool_are_empty(data):
    network = data.draw(networks())
    _, p, q = last_size(network)
    group = FusionGroup(GROUP, GroupTile(1, data.draw(st.integers(1, p)), data.draw(st.integers(1, q))))
    target = SMALL.model_copy(update={"accumulator_bytes": data.draw(st.sampled_from([1 << 8, 1 << 10]))})
    conv = network.tensor_core_layers[0]
    spaces = GroupSpaces(network, Rules(target, tiling=data.draw(st.sampled_from(["ragged", "divisor"]))))
    space = spaces.space(conv, plan_group(network, group), group, data.draw(st.booleans()))
    assert space.has_room_to_pool or not len(enumerate_space(space))
