"""Weight tiles loaded in slices: the loads of one go out between the products of the slice before."""

from __future__ import annotations

import random

import pytest

from converter.dims import Dims
from costmodel.mapping import Mapping
from costmodel.schedule import FusionGroup, Schedule
from costmodel.target import load_target
from tests.emitters.gemmini.executed import Case, check
from tests.emitters.gemmini.nets import Net, Shape


@pytest.mark.parametrize("channels", [64, 60])  # 60: loads of 16 rows go across taps
def test_slices_load_while_products_run(channels: int) -> None:
    """A slice is 36 loads for a queue of eight: all at once, they would hold up the products behind them."""
    net = Net(random.Random(0))
    shape: Shape = (1, 6, 6, channels)
    built = net.conv(net.input(shape), shape, outputs=384, kernel=(3, 3), bias=False)
    assert built is not None
    graph, target = net.builder.build((built[0],)), load_target("gemmini-default")
    (layer,) = graph.tensor_core_layers
    assert layer.dims == Dims(K=384, C=channels, P=4, Q=4, R=3, S=3)
    block = layer.dims.replace({"K": 16, "C": 16, "R": 1, "S": 1})
    mapping = Mapping(layer.dims, layer.dims, block, Dims(C=16), Dims(K=16))
    counts = check(Case(Schedule(graph, target, {layer.name: mapping}, (FusionGroup((layer.name,)),)))).counts
    assert counts.load_busy > 10_000 and counts.execute_busy > 10_000
    assert counts.cycles < 0.75 * (counts.load_busy + counts.execute_busy)
