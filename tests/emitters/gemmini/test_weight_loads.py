"""Weights load between products: a slice of a tile during the slice before, a tile during the one before."""

from __future__ import annotations

import random

import pytest

from converter.dims import Dims
from costmodel.mapping import Mapping
from costmodel.schedule import FusionGroup, Schedule
from costmodel.target import load_target
from emulator.machine import Counts
from tests.emitters.gemmini.executed import Case, check
from tests.emitters.gemmini.nets import Net, Shape


def executed(channels: int, tile: dict[str, int]) -> Counts:
    """A 3 x 3 convolution to 4 x 4 pixels of 384 channels; `tile`: what is in the scratchpad of it."""
    net = Net(random.Random(0))
    shape: Shape = (1, 6, 6, channels)
    built = net.conv(net.input(shape), shape, outputs=384, kernel=(3, 3), bias=False)
    assert built is not None
    graph, target = net.builder.build((built[0],)), load_target("gemmini-default")
    (layer,) = graph.tensor_core_layers
    assert layer.dims == Dims(K=384, C=channels, P=4, Q=4, R=3, S=3)
    scratchpad = layer.dims.replace(tile)
    block = scratchpad.replace({"K": 16, "C": 16, "R": 1, "S": 1})
    mapping = Mapping(scratchpad, scratchpad, block, Dims(C=16), Dims(K=16))
    return check(Case(Schedule(graph, target, {layer.name: mapping}, (FusionGroup((layer.name,)),)))).counts


@pytest.mark.parametrize("channels", [64, 60])  # 60: loads of 16 rows go across taps
@pytest.mark.parametrize("tile", [{}, {"K": 64}, {"K": 32}, {"K": 128}, {"K": 80}, {"R": 1}], ids=str)
def test_weights_load_while_products_run(channels: int, tile: dict[str, int]) -> None:
    """A slice is 36 loads for a queue of eight: all at once, they would hold up the products behind them."""
    counts = executed(channels, tile)
    assert counts.load_busy > 10_000 and counts.execute_busy > 10_000
    assert counts.cycles < 0.78 * (counts.load_busy + counts.execute_busy)
