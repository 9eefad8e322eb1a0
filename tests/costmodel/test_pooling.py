"""Max pools in the store path: when, on which regions and tiles, and which bytes; against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fadiff.converter.ir.graph import Graph, HostLayer
from fadiff.converter.ir.host import MaxPool
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.group.fusion import ScheduleError, plan_group
from fadiff.costmodel.group.pooling import obstacle_to_pooling
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule
from fadiff.costmodel.schedule.serialize import schedule_from_document, to_document
from tests.costmodel.networks import SIDE_4, stem


def mapping(height: int, width: int, **l1: int) -> Mapping:
    """One scratchpad tile; the accumulator tile is as large but for `l1`."""
    tile = Dims(K=8, C=4, P=height, Q=width)
    return Mapping(tile, tile.replace(l1), Dims(K=4, C=4), Dims(C=4), Dims(K=4))  # type: ignore[arg-type]


def pooled(network: Graph, tile: GroupTile, mappings: dict[str, Mapping], **changes: object) -> Schedule:
    group = FusionGroup(tuple(layer.name for layer in network.layers), tile)
    return Schedule(network, SIDE_4, mappings, (group,), **changes)  # type: ignore[arg-type]


def test_bytes_of_a_vgg_pool():
    """16 x 16 pixels of 8 channels leave as 8 x 8: the pooled tensor is the convolution's O."""
    network = stem(16, 16, 2, 2, (0, 0, 0, 0))
    schedule = pooled(network, GroupTile(1, 8, 8), {"conv": mapping(16, 16, P=4, Q=16, K=4)})
    cost = evaluate(schedule)
    assert cost.by_name["conv"].bytes_in("dram") == {
        "x": (16 * 16 * 4, 0),
        "conv.w": (4 * 8, 0),
        "z": (0, 8 * 8 * 8),
    }
    assert cost.by_name["pool"].moves == () and cost.by_name["pool"].latency_cycles == 0
    drained = [m.bytes for _, m in cost.by_name["conv"].moves if (m.memory, m.role) == ("accumulator", "O")]
    assert drained == [8 * 8 * 8 * 4 * 4]  # four taps of four bytes for each pooled element


def test_bytes_of_overlapping_windows():
    """Tiles of 2 x 4 windows, 3 by stride 2 with padding 1, over 8 x 8 pixels, 4 x 4 of them pooled."""
    network = stem()
    schedule = pooled(network, GroupTile(1, 2, 4), {"conv": mapping(5, 8)})
    plan = plan_group(network, schedule.groups[0])
    assert plan["conv"].computed.P == ((0, 4), (3, 8))  # row -1 is padding; row 3 is computed twice
    assert plan["conv"].computed.Q == ((0, 8),)
    cost = evaluate(schedule)
    assert cost.by_name["conv"].bytes_in("dram") == {
        "x": (9 * 8 * 4, 0),
        "conv.w": (2 * 4 * 8, 0),
        "z": (0, 4 * 4 * 8),
    }


def test_bytes_when_the_pooled_tensor_stays_in_the_group():
    """conv, pool, 3x3 conv: pooled rows go to the tile buffer, recomputed with the windows that need them."""
    network = stem(8, 8, 2, 2, (0, 0, 0, 0), after=True)
    last = Mapping(
        Dims(K=4, C=8, P=2, Q=4, R=3, S=3), Dims(K=4, C=8, P=2, Q=4, R=3, S=3), Dims(K=4, C=4), Dims(C=4),
        Dims(K=4),
    )  # fmt: skip
    group = FusionGroup(("conv", "pool", "last"), GroupTile(1, 2, 4))
    schedule = Schedule(network, SIDE_4, {"conv": mapping(6, 8), "last": last}, (group,))
    cost = evaluate(schedule)
    assert cost.by_name["conv"].bytes_in("tile-buffer") == {"z": (0, 6 * 4 * 8)}
    assert cost.by_name["last"].bytes_in("tile-buffer") == {"z": (6 * 4 * 8, 0)}
    assert cost.by_name["conv"].bytes_in("dram")["x"] == (2 * 6 * 8 * 4, 0)
    document = to_document(schedule, cost, generator="test")
    assert [edge.path for edge in document.fusion.edges] == ["store", "tile-buffer"]
    assert schedule_from_document(document, network).groups == schedule.groups


@given(
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    top=st.integers(0, 2),
    bottom=st.integers(0, 2),
    P=st.integers(3, 12),
    tile=st.integers(1, 6),
)
def test_regions_are_whole_windows(kernel, stride, top, bottom, P, tile):
    network = stem(P, P, kernel, stride, (top, top, bottom, bottom))
    pool = network.by_name["pool"]
    assume(not obstacle_to_pooling(network, pool))
    p = network.tensors["z"].shape[1]
    assume(tile <= p)
    plan = plan_group(network, FusionGroup(("conv", "pool"), GroupTile(1, tile, p)))
    for windows, rows in zip(plan["pool"].grid.P, plan["conv"].grid.P, strict=True):
        taps = {w * stride + k - top for w in range(*windows) for k in range(kernel)}
        inside = sorted(taps & set(range(P)))
        assert rows == (inside[0], inside[-1] + 1)
    assert plan["conv"].pooled_by == "pool" and not plan["conv"].writes_outside


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (stem(kernel=4), "exceeds 3"),
        (stem(kernel=2, stride=3, pads=(0, 0, 0, 0)), "leaves pixels out"),
        (stem(dilation=(2, 2)), "dilated"),
        (stem(8, 8, 2, 2, (2, 0, 0, 0)), "nothing but padding"),
    ],
)
def test_windows_that_stay_on_the_core(network, words):
    assert words in obstacle_to_pooling(network, network.by_name["pool"])


def test_tensors_that_stay_on_the_core():
    network = stem()
    pool = pool_of_name(network)
    oblong = replace(pool, operator=MaxPool(replace(pool.operator.window, kernel=(3, 2))))
    assert "not square" in obstacle_to_pooling(network, oblong)
    plain = tuple(
        replace(layer, activation="none") if layer.name == "conv" else layer for layer in network.layers
    )
    assert "values may be negative" in obstacle_to_pooling(replace(network, layers=plain), pool)
    assert "unpooled" in obstacle_to_pooling(replace(network, outputs=("y", "z")), pool)
    no_padding = stem(9, 9, 3, 2, (0, 0, 0, 0))
    plain = tuple(
        replace(layer, activation="none") if layer.name == "conv" else layer for layer in no_padding.layers
    )
    assert not obstacle_to_pooling(replace(no_padding, layers=plain), pool_of_name(no_padding))
    # Rounded up, the last window reaches one pixel beyond the image.
    ceil = stem(8, 8, 3, 2, (0, 0, 1, 1))
    plain = tuple(
        replace(layer, activation="none") if layer.name == "conv" else layer for layer in ceil.layers
    )
    assert "values may be negative" in obstacle_to_pooling(replace(ceil, layers=plain), pool_of_name(ceil))


def pool_of_name(network: Graph) -> HostLayer:
    layer = network.by_name["pool"]
    assert isinstance(layer, HostLayer)
    return layer


def test_tiles_hold_whole_windows():
    overlapping, apart = stem(), stem(16, 16, 2, 2, (0, 0, 0, 0))
    with pytest.raises(
        ScheduleError, match="conv: its stores cannot do pool: accumulator tile P=4 of 8 cuts"
    ):
        pooled(overlapping, GroupTile(1, 4, 4), {"conv": mapping(8, 8, P=4)})
    with pytest.raises(ScheduleError, match="tile Q=3 cuts windows, which start every 2"):
        pooled(apart, GroupTile(1, 8, 8), {"conv": mapping(16, 16, P=2, Q=3)})
    pooled(apart, GroupTile(1, 8, 8), {"conv": mapping(16, 16, P=2, Q=6)})
    padded = stem(8, 8, 2, 2, (1, 0, 1, 0))
    with pytest.raises(ScheduleError, match="reach into padding"):
        pooled(padded, GroupTile(1, 5, 4), {"conv": mapping(8, 8, P=2)})
    unfinished = replace(mapping(8, 8), tile_l2=Dims(K=4, C=2, P=8, Q=8), tile_l1=Dims(K=4, C=2, P=8, Q=8),
                         tile_l0=Dims(K=4, C=2), rows=Dims(C=2),
                         order_l3=("C", "G", "N", "P", "Q", "R", "S", "K"))  # fmt: skip
    with pytest.raises(ScheduleError, match="leaves the accumulator unfinished"):
        pooled(overlapping, GroupTile(1, 4, 4), {"conv": unfinished})
    wide = stem(2, 512, 2, 2, (0, 0, 0, 0))
    with pytest.raises(ScheduleError, match="accumulator tile Q=256 exceeds 253"):
        pooled(wide, GroupTile(1, 1, 128), {"conv": mapping(2, 256)})


def test_refusals():
    network = stem()
    for changes, words in (
        ({"target": SIDE_4.model_copy(update={"has_max_pool": False})}, "has_max_pool"),
        ({"profile": "dosa"}, "profile dosa"),
        ({"fusion_model": "paper"}, "host operator max_pool cannot be a member"),
    ):
        with pytest.raises(ScheduleError, match=words):
            replace(pooled(network, GroupTile(1, 4, 4), {"conv": mapping(8, 8)}), **changes)
    also = stem(after=True)
    also = replace(also, outputs=("z", "out"))
    with pytest.raises(ScheduleError, match="full-width group tiles"):
        plan_group(also, FusionGroup(("conv", "pool", "last"), GroupTile(1, 4, 2)))
    with pytest.raises(ScheduleError, match="joins the fusion group of its convolution"):
        plan_group(stem(after=True), FusionGroup(("pool", "last"), GroupTile(1, 4, 4)))
