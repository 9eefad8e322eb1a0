"""Group tiles that leave a member nothing to compute, because its reader sees padding only."""

import random

import pytest

from costmodel.schedule import FusionGroup, GroupTile, Schedule
from costmodel.target import load_target
from optimizer.problem import Problem
from optimizer.space import Rules
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
    mappings = problem.price_group(group.layers, [tile]).choices[0].mappings()
    check(Case(Schedule(graph, target, mappings, (group,))))
