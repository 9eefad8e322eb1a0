"""Group tiles that leave a member nothing to compute, because its reader sees padding only."""

import random

import pytest

from fadiff.costmodel.group.fusion import ScheduleError, plan_group
from fadiff.costmodel.mapping.mapping import as_single_instructions
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer import optimize
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.layer.space import Rules
from tests.emitters.gemmini.executed import Case, check
from tests.emitters.gemmini.nets import Net


@pytest.mark.parametrize("axis", ["P", "Q"])
@pytest.mark.parametrize("resident", [set(), {"l0"}, {"l0", "l1"}])
def test_weights_stay_from_the_first_tile_that_computes(axis, resident):
    """The first row (column) of the last output is padding: l0 runs for the second group tile first."""
    net = Net(random.Random(1))
    shape = (1, 12, 12, 8)
    y, shape = net.conv(net.input(shape), shape, outputs=8, kernel=(1, 1), bias=True)
    pads, stride = ((1, 0, 1, 0), (3, 1)) if axis == "P" else ((0, 1, 0, 1), (1, 3))
    z, (_, p, q, _) = net.conv(y, shape, outputs=8, kernel=(1, 1), stride=stride, pads=pads, bias=False)
    graph = net.builder.build([z])
    target = load_target("gemmini-small")
    tile = GroupTile(1, 1, q) if axis == "P" else GroupTile(1, p, 1)
    group = FusionGroup(("l0", "l1"), tile, resident_weights=frozenset(resident))
    problem = Problem(graph, Rules(target))
    mappings = as_single_instructions(problem.price_group(group.layers, [tile]).ways[0].mappings())
    check(Case(Schedule(graph, target, mappings, (group,))))


@pytest.mark.parametrize("padding", [1, 2])
def test_a_layer_that_sees_padding_only(padding: int):
    """Nothing of l0 is needed, so l1 cannot be fused with it."""
    net = Net(random.Random(1))
    y, shape = net.conv(net.input((1, 6, 1, 8)), (1, 6, 1, 8), outputs=8, kernel=(1, 1))
    z, _ = net.conv(y, shape, outputs=8, kernel=(1, 1), stride=(1, padding + 1), pads=(0, padding, 0, 0))
    graph = net.builder.build([z])
    with pytest.raises(ScheduleError, match=r"l0: .* nothing but padding"):
        plan_group(graph, FusionGroup(("l0", "l1"), GroupTile(1, 6, 1)))
    found = optimize(graph, load_target("gemmini-small"), method="exact")
    assert 0 < found.lower_bound <= found.value
    check(Case(found.schedule))
