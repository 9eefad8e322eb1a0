"""Groups of one tile come apart only where that costs nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer import optimize
from fadiff.optimizer.finish.whole_groups import taken_apart
from tests.optimizer.graphs import Net


@pytest.mark.parametrize(
    ("target", "kernel", "channels"), [("gemmini-small", 1, 32), ("gemmini-default", 3, 16)]
)
def test_layers_by_themselves_are_no_dearer(target: str, kernel: int, channels: int) -> None:
    """Two tiles of weights that stay in the group on the small target would be loaded again and again."""
    net = Net(14, channels)
    graph = net.build(net.add("sum", net.conv("a", net.x, channels, kernel), net.x))
    found = optimize(graph, load_target(target), method="exact")
    assert evaluate(taken_apart(found.schedule)).edp_uj_cycles <= found.cost.edp_uj_cycles * (1 + 1e-9)


def test_a_group_of_one_tile_without_weights_that_stay_comes_apart() -> None:
    net = Net(14, 16)
    graph = net.build(net.add("sum", net.conv("a", net.x, 16, 3), net.x))
    found = optimize(graph, load_target("gemmini-default"), method="exact").schedule
    assert [group.layers for group in found.groups] == [("a", "sum")]
    assert [group.layers for group in taken_apart(found).groups] == [("a",), ("sum",)]


def test_a_layer_alone_keeps_two_tiles_of_its_weights() -> None:
    """Both halves of the scratchpad have one, which no tile of pixels loads again."""
    net = Net(32, 16)
    graph = net.build(net.conv("a", net.x, 64, 3))
    found = optimize(graph, load_target("gemmini-default"), method="exact")
    [group] = found.schedule.groups
    assert group.resident_weights == {"a"} and found.bound == "proven"
    [weights] = [
        move
        for cost in found.cost.layers
        for tensor, move in cost.moves
        if move.role == "W" and move.memory == "dram"
    ]
    assert weights.bytes == 64 * 16 * 9
    again = replace(found.schedule, groups=(replace(group, resident_weights=frozenset()),))
    assert evaluate(again).edp_uj_cycles > found.cost.edp_uj_cycles
