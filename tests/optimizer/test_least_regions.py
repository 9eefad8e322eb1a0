"""Floors of fusion groups, whose members may skip pixels: strides larger than windows."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.group.tile_buffer import box_bytes
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer.cut.exact import Floors
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.group.hull import EMPTY
from fadiff.optimizer.group.residency import PlacedGroup
from fadiff.optimizer.group.tiles import all_tiles, channel_tiles, groups_per_tile, last_output
from fadiff.optimizer.layer.space import Rules
from tests.optimizer.graphs import Net, random_dags

TARGET = load_target("gemmini-small")


@st.composite
def skipping_chains(draw):
    """Convolutions, then one whose windows leave out rows and columns, sometimes with more around them."""
    net = Net(draw(st.sampled_from([7, 9, 12])), 8)
    y = net.x
    for i in range(draw(st.integers(1, 2))):
        y = net.conv(f"before{i}", y, 8, draw(st.sampled_from([1, 3])), draw(st.sampled_from([1, 2])))
    y = net.conv("skip", y, 16, 1, draw(st.sampled_from([2, 3])))
    if draw(st.booleans()):
        y = net.conv("after", y, 8, draw(st.sampled_from([1, 3])), draw(st.sampled_from([1, 2])))
    return net.build(y)


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graph=skipping_chains())
def test_no_group_is_below_its_floor(profile, graph):
    problem = Problem(graph, Rules(TARGET, profile))
    floors = Floors(problem)
    priced = 0
    for layers in problem.candidates:
        hull = problem.price(PlacedGroup(layers))
        if len(hull):
            floor = floors.of(PlacedGroup(layers))
            assert floor.energy[0] <= hull.energy.min() * (1 + 1e-9), layers
            assert floor.latency[0] <= hull.latency.min() * (1 + 1e-9), layers
            priced += 1
    assert priced


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graph=skipping_chains() | random_dags(), data=st.data())
def test_no_group_tile_is_below_its_floor(profile, graph, data):
    problem = Problem(graph, Rules(TARGET, profile))
    groups = problem.groups
    for layers in problem.candidates:
        some = channel_tiles(graph, layers, problem.rules)
        size = last_output(graph, layers)
        tiles = [*all_tiles(*size, "ragged", groups_per_tile(graph, layers)), *some]
        chosen = data.draw(st.lists(st.sampled_from(tiles), max_size=3, unique=True))
        try:
            walks = groups.spaces.walks(layers, chosen)
        except ScheduleError:
            continue
        floors = groups.spaces.tile_floors(walks, layers, frozenset())
        for run, energy, latency, nbytes in zip(*floors, strict=True):
            hull = groups.solve(groups.tile_floors(layers, tiles=[run.tile]), EMPTY.costs)
            boxes = [m for m in groups.spaces.plan(run).values() if m.writes_inside and not m.in_place]
            assert nbytes <= sum(box_bytes(graph, box, TARGET) for box in boxes), (layers, run)
            if len(hull):
                assert energy <= hull.energy.min() * (1 + 1e-9), (layers, run)
                assert latency <= hull.latency.min() * (1 + 1e-9), (layers, run)
