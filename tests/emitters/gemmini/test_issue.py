"""Products issued as hardware loops: right numbers, predicted bytes."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations

import pytest

from fadiff.converter.ir.builder import GraphBuilder
from fadiff.converter.ir.graph import Graph, TensorCoreLayer, View
from fadiff.converter.ir.loops import Dim, Dims
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.mapping.mapping import STREAM_ORDER, Issue, Mapping, Order
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule, singleton_groups
from tests.emitters.gemmini.executed import Case, check
from tests.emitters.gemmini.gemmini_cases import TINY
from tests.emitters.gemmini.nets import Net, Shape

TILE = Dims(K=8, C=8, P=2, Q=3)


def dense(shape: Shape, *outputs: int, bias: bool = True) -> Graph:
    """A chain of 1 x 1 convolutions."""
    net = Net(random.Random(1))
    x = net.input(shape)
    for count in outputs:
        made = net.conv(x, shape, outputs=count, kernel=(1, 1), bias=bias)
        assert made
        x, shape = made
    return net.builder.build((x,))


def mapping(tile: Dims, inside: tuple[Dim, ...] = ("P", "K", "C"), issue: Issue = "loop_ws") -> Mapping:
    """Scratchpad tile `tile`; `inside` are the innermost DRAM loops."""
    rows, cols = Dims(C=min(TINY.side, tile.C)), Dims(K=min(TINY.side, tile.K))
    order: Order = (*(d for d in STREAM_ORDER if d not in inside), *inside)
    return Mapping(tile, tile, Dims(K=cols.K, C=rows.C), rows, cols, order, issue=issue)


def alone(graph: Graph, chosen: Mapping) -> Schedule:
    return Schedule(graph, TINY, {"l0": chosen}, singleton_groups(graph))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("inside", list(permutations(("P", "K", "C"))), ids="".join)
def test_ragged_tiles_in_every_order(inside: tuple[Dim, ...], bias: bool) -> None:
    graph = dense((1, 9, 3, 18), 10, bias=bias)
    if inside[-1] != "C":
        with pytest.raises(ScheduleError, match="l0: cannot be issued as loop_ws: it stores partial sums"):
            alone(graph, mapping(TILE, inside))
        return
    check(Case(alone(graph, mapping(TILE, inside))))


@pytest.mark.parametrize("inside", [("P", "K"), ("K", "P")], ids="".join)
def test_the_operand_of_the_innermost_loop_stays(inside: tuple[Dim, Dim]) -> None:
    schedule = alone(dense((1, 9, 3, 18), 10), mapping(TILE.replace({"C": 18}), inside))
    result = check(Case(schedule))
    loaded = {region.tensor: region.read for region in result.layers[0].traffic}
    assert loaded["x"] == 9 * 3 * 18 * (1 if inside == ("P", "K") else 2)
    assert loaded["w0"] == 18 * 10 * (5 if inside == ("P", "K") else 1)


@pytest.mark.parametrize(
    "tile, reason",
    [
        (TILE.replace({"K": 6}), "6 K is no multiple of 4"),
        (TILE.replace({"P": 3, "K": 10}), "36 of 32 rows of half"),
        (TILE.replace({"Q": 2}), "no rows of one matrix"),
    ],
)
def test_what_the_unit_cannot_do_is_said(tile: Dims, reason: str) -> None:
    target = TINY.model_copy(update={"scratchpad_bytes": 1024, "accumulator_bytes": 1024})
    with pytest.raises(ScheduleError, match=f"l0: cannot be issued as loop_ws: .*{reason}"):
        chosen = {"l0": mapping(tile)}
        graph = dense((1, 9, 3, 18), 10)
        Schedule(graph, target, chosen, singleton_groups(graph))


@pytest.mark.parametrize("wide", [5, 3])
def test_members_of_a_group_hand_over_boxes(wide: int) -> None:
    """With tiles narrower than the image pixels adjoin in the boxes, but not in the image."""
    graph = dense((2, 6, 5, 7), 9, 6)
    tiles = {"l0": Dims(K=8, C=7, P=2, Q=wide), "l1": Dims(K=6, C=9, P=1 if wide == 3 else 2, Q=wide)}
    if wide == 3:
        tiles["l0"] = tiles["l0"].replace({"P": 1})
    group = FusionGroup(("l0", "l1"), GroupTile(1, 2, wide))
    check(Case(Schedule(graph, TINY, {name: mapping(tile) for name, tile in tiles.items()}, (group,))))


def product(rows: int, depth: int, columns: int, *, transposed: bool) -> Graph:
    """y = x z, or x z^T."""
    b = GraphBuilder("product")
    x = b.input("x", (rows, depth), scale=0.1)
    z = b.input("z", (columns, depth) if transposed else (depth, columns), scale=0.1)
    y = b.tensor("y", (rows, columns), scale=0.1)
    b.tensor_core(
        TensorCoreLayer(
            "l0",
            "gemm",
            Dims(P=rows, C=depth, K=columns),
            View(x, 0, (0, 0, depth, 0, 1)),
            View(z, 0, (0, 0, 0, 1, depth) if transposed else (0, 0, 0, columns, 1)),
            View(y, 0, (0, 0, columns, 0, 1)),
            (rows, 1),
        )
    )
    layer = b.layers[-1]
    assert isinstance(layer, TensorCoreLayer)
    b.layers[-1] = replace(layer, scale=2.0**-9)
    return b.build((y,))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("tile", [Dims(K=8, C=8, P=4), Dims(K=8, C=22, P=8), Dims(K=14, C=22, P=4)], ids=str)
def test_products_with_weights_either_way_round(tile: Dims, transposed: bool) -> None:
    check(Case(alone(product(13, 22, 14, transposed=transposed), mapping(tile))))
