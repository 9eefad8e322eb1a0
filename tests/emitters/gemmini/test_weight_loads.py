"""Moves go on between products: a slice of a weight tile loads during the slice before, a tile of weights or
inputs during the tile before, and a tile of results leaves during the next one."""

from __future__ import annotations

import random

import pytest

from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.schedule.schedule import FusionGroup, Schedule
from fadiff.costmodel.target.core import Core
from fadiff.costmodel.target.target import load_target
from fadiff.emulator.machine import Counts
from tests.emitters.gemmini.executed import Case, check
from tests.emitters.gemmini.nets import Net, Shape


def executed(dims: Dims, tile: dict[str, int], order: str = "GNPQKCRS") -> Counts:
    """A 3 x 3 convolution without padding; `tile`: what is in the scratchpad of it, DRAM loops in `order`."""
    net = Net(random.Random(0))
    shape: Shape = (1, dims.P + 2, dims.Q + 2, dims.C)
    built = net.conv(net.input(shape), shape, outputs=dims.K, kernel=(3, 3), bias=False)
    assert built is not None
    graph, target = net.builder.build((built[0],)), load_target("gemmini-default")
    target = target.model_copy(update={"core": Core(command=4)})  # a core that keeps up
    (layer,) = graph.tensor_core_layers
    assert layer.dims == dims
    scratchpad = layer.dims.replace(tile)
    block = scratchpad.replace({"K": 16, "C": 16, "R": 1, "S": 1})
    mapping = Mapping(scratchpad, scratchpad, block, Dims(C=16), Dims(K=16), order_l3=tuple(order))
    return check(Case(Schedule(graph, target, {layer.name: mapping}, (FusionGroup((layer.name,)),)))).counts


@pytest.mark.parametrize("channels", [64, 60])  # 60: loads of 16 rows go across taps
@pytest.mark.parametrize("tile", [{}, {"K": 64}, {"K": 32}, {"K": 128}, {"K": 80}, {"R": 1}], ids=str)
def test_weights_load_while_products_run(channels: int, tile: dict[str, int]) -> None:
    """A slice is 36 loads for a queue of eight: all at once, they would hold up the products behind them."""
    counts = executed(Dims(K=384, C=channels, P=4, Q=4, R=3, S=3), tile)
    assert counts.load_busy > 10_000 and counts.execute_busy > 10_000
    assert counts.cycles < counts.execute_busy + 0.5 * counts.load_busy


@pytest.mark.parametrize(
    ("tile", "order"),
    [
        ({"K": 16}, "GNPQKCRS"),  # results
        ({"P": 5}, "GNPQKCRS"),  # inputs and results, the last tile smaller
        ({"P": 8, "Q": 16, "K": 32}, "GKNPQCRS"),  # inputs again for the next weights
        (
            {"C": 16, "K": 32},
            "GNPQKCRS",
        ),  # inputs and weights, the first of one loop after the last of another
        ({"C": 32, "P": 8, "K": 32}, "GPKQNCRS"),
        ({"R": 1, "K": 32}, "GNPQKCRS"),
    ],
    ids=str,
)
def test_inputs_load_and_results_leave_while_products_run(tile: dict[str, int], order: str) -> None:
    """What cannot overlap: the first tile's loads and the last one's stores."""
    counts = executed(Dims(K=96, C=48, P=16, Q=16, R=3, S=3), tile, order)
    assert counts.cycles < 1.14 * counts.execute_busy
