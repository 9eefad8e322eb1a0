"""Closed-form prices equal the exact evaluator, and what is enumerated is legal."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fadiff.costmodel.count.capacity import occupancy
from fadiff.costmodel.count.traffic import Placement
from fadiff.costmodel.group.legality import Room, check_mapping
from fadiff.costmodel.mapping.shape import Region, shape_of, whole
from fadiff.costmodel.schedule.evaluate import layer_cost
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer.group.spaces import GroupSpaces
from fadiff.optimizer.layer.enumerate import enumerate_space
from fadiff.optimizer.layer.pricing import price
from fadiff.optimizer.layer.space import LayerSpace, Rules
from tests.costmodel.networks import conv, layer_of
from tests.costmodel.networks import graph as graph_of
from tests.costmodel.strategies import layer_shapes

SMALL = load_target("gemmini-small")


@st.composite
def regions(draw, shape):
    """Overlapping intervals along P and Q, as a group tile with halo makes them."""

    def axis(bound):
        step, halo = draw(st.integers(1, bound)), draw(st.integers(0, 2))
        return tuple((max(0, a - halo), min(bound, a + step + halo)) for a in range(0, bound, step))

    d = shape.dims
    return Region(((0, d.G),), ((0, d.K),), ((0, d.N),), axis(d.P), axis(d.Q))


@pytest.mark.parametrize("tiling", ["ragged", "divisor"])
@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_prices_equal_the_exact_evaluator(profile, tiling, data):
    shape = data.draw(layer_shapes())
    rules = Rules(SMALL, profile, tiling, data.draw(st.booleans()))
    space = LayerSpace(
        shape,
        data.draw(st.one_of(st.just(whole(shape.dims)), regions(shape))),
        rules,
        Placement(*(data.draw(st.booleans()) for _ in range(4))),
        reserved=data.draw(st.sampled_from([0, 40])),
    )
    points = enumerate_space(space)
    costs = price(points)
    for i in data.draw(st.lists(st.integers(0, max(0, len(points) - 1)), max_size=6)):
        if i >= len(points):
            continue
        mapping = points.mapping(i)
        exact = layer_cost(shape, mapping, SMALL, profile, region=space.region, placement=space.placement)
        assert costs.energy[i] == pytest.approx(exact.energy_pj, rel=1e-12)
        rounding = 0 if profile == "dosa" else 1  # powers in another order
        assert abs(costs.latency[i] - exact.latency_cycles) <= rounding
        resident = space.placement.weights_are_resident
        if resident and profile == "hw":
            continue  # never searched: weights stay for loop units (front_on_loops)
        own = occupancy(shape, mapping, SMALL, profile, space.region).resident_weights if resident else 0
        check_mapping(
            layer_of(shape),
            mapping,
            SMALL,
            profile,
            space.region,
            Room(
                resident,
                space.reserved - own,  # `reserved` of a space includes the layer's own
                profile == "dosa" and space.placement.input_is_fused,
            ),
        )


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_nothing_is_below_the_floor(profile, data):
    shape = data.draw(layer_shapes())
    region = data.draw(st.one_of(st.just(whole(shape.dims)), regions(shape)))
    fused = Placement(*(data.draw(st.booleans()) for _ in range(3)))
    rules = Rules(SMALL, profile)
    space = LayerSpace(shape, region, rules, fused)
    resident = replace(space, placement=fused._replace(weights_are_resident=True))
    network = graph_of([conv("a", "x", "y", 4, 4, 4, 4)], ("x",), ("y",))
    energy, cycles = GroupSpaces(network, rules).floor(resident)
    costs = price(enumerate_space(space))
    assert (costs.energy >= energy * (1 - 1e-12)).all()
    assert (costs.latency >= cycles - 1).all()


def test_floor_lets_weights_stay_in_the_array_while_accumulator_tiles_pass():
    """Found by the test above: one array block of 17 columns, pixels in two accumulator tiles."""
    shape = shape_of(conv("a", "x", "y", 17, 1, 15, 9))
    space = LayerSpace(shape, whole(shape.dims), Rules(SMALL, "dosa"), Placement(True, False, False))
    network = graph_of([conv("a", "x", "y", 4, 4, 4, 4)], ("x",), ("y",))
    energy, _ = GroupSpaces(network, space.rules).floor(space)
    assert price(enumerate_space(space)).energy.min() >= energy * (1 - 1e-12)
