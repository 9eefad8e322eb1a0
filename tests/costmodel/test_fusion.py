"""Fusion groups: regions, placements and bytes, against brute force over taps and the interpreter."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.adversary.graphs import attention
from fadiff.converter.ir.builder import GraphBuilder, weight_view
from fadiff.converter.ir.graph import TensorCoreLayer, View
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.group.fusion import ScheduleError, paper_plan, plan_group
from fadiff.costmodel.group.tile_buffer import box_bytes
from fadiff.costmodel.mapping.shape import shape_of
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule
from fadiff.costmodel.target.target import load_target
from tests.costmodel.loop_nest import walk
from tests.costmodel.networks import add, conv, graph, pair, whole_tile

LARGE = load_target("gemmini-large")


def rows_read(layer, outputs):
    """Input rows inside the image that output rows `outputs` touch, by brute force over taps."""
    touched = {
        p * layer.stride[0] + r * layer.dilation[0] - layer.pads[0]
        for p in range(*outputs)
        for r in range(layer.dims.R)
    }
    return {row for row in touched if 0 <= row < layer.input_size[0]}


def schedule_of(network, group, mappings, profile="hw", model="sound"):
    rest = [FusionGroup((layer.name,)) for layer in network.layers if layer.name not in group.layers]
    return Schedule(network, LARGE, mappings, (group, *rest), profile, model)


@given(tile=st.integers(1, 8), R=st.sampled_from([1, 3, 5]))
def test_regions_are_what_the_consumer_reads(tile, R):
    network = pair(P=8, R=R)
    plan = plan_group(network, FusionGroup(("a", "b"), GroupTile(1, tile, 8)))
    b = network.by_name["b"]
    for outputs, computed in zip(plan["b"].computed.P, plan["a"].grid.P, strict=True):
        assert set(range(*computed)) == rows_read(b, outputs)
    assert plan["a"].fused_inputs == frozenset() and plan["b"].fused_inputs == {"y"}


@settings(max_examples=40, deadline=None)
@given(
    tile_p=st.integers(1, 8),
    tile_q=st.integers(1, 8),
    resident=st.sets(st.sampled_from(["a", "b"])),
)
def test_bytes_are_what_the_group_does(tile_p, tile_q, resident):
    network = pair(P=8)
    group = FusionGroup(("a", "b"), GroupTile(1, tile_p, tile_q), resident_weights=frozenset(resident))
    plan = plan_group(network, group)
    mappings = {}
    for name in ("a", "b"):
        largest = {
            d: max(y - x for x, y in axis) for d, axis in zip("GKNPQ", plan[name].computed, strict=True)
        }
        mappings[name] = whole_tile(network.by_name[name].dims.replace(largest), K=2)
    cost = evaluate(schedule_of(network, group, mappings))
    for name in ("a", "b"):
        layer = network.by_name[name]
        seen = walk(shape_of(layer), mappings[name], plan[name].computed, LARGE.side).counts
        dram, buffer = cost.by_name[name].bytes_in("dram"), cost.by_name[name].bytes_in("tile-buffer")
        weights = layer.dims.K * layer.dims.C * 9 if name in resident else seen["W dram"]
        assert dram[f"{name}.w"] == (weights, 0)
        if name == "a":
            assert dram["x"] == (seen["I dram"], 0)
            assert buffer == {"y": (0, seen["O final"])} and "y" not in dram
        else:
            assert dram["z"] == (0, seen["O final"]) == (0, 4 * 64)
            assert buffer == {"y": (seen["I dram"], 0)}


def residual():
    """x -> a -> y -> b -> z, z + y -> w: y is read inside and by the add."""
    a = conv("a", "x", "y", 4, 4, 8, 8, 3, 1, 1)
    b = conv("b", "y", "z", 4, 4, 8, 8, 3, 1, 1)
    return graph([a, b, add("sum", "z", "y", "w")], ("x",), ("w",))


def test_residual_block_stays_on_chip():
    network = residual()
    mappings = {name: whole_tile(network.by_name[name].dims.replace({"P": 4})) for name in ("a", "b")}
    group = FusionGroup(("a", "b", "sum"), GroupTile(1, 4, 8))
    cost = evaluate(schedule_of(network, group, mappings))
    # Each of the two tiles needs five rows of y (halo), of which the add reads four.
    assert cost.by_name["a"].bytes_in("tile-buffer") == {"y": (0, 2 * 5 * 8 * 4)}
    assert cost.by_name["b"].bytes_in("tile-buffer") == {"y": (2 * 5 * 8 * 4, 0), "z": (0, 256)}
    assert cost.by_name["sum"].bytes_in("tile-buffer") == {"z": (256, 0), "y": (256, 0)}
    assert cost.by_name["sum"].bytes_in("dram") == {"w": (0, 256)}


def test_intermediate_read_outside_is_stored_once():
    network = residual()
    mappings = {name: whole_tile(network.by_name[name].dims.replace({"P": 4})) for name in ("a", "b")}
    cost = evaluate(schedule_of(network, FusionGroup(("a", "b"), GroupTile(1, 4, 8)), mappings))
    assert cost.by_name["a"].bytes_in("dram")["y"] == (0, 256)
    assert cost.by_name["a"].bytes_in("tile-buffer")["y"] == (0, 2 * 5 * 8 * 4)
    assert cost.by_name["sum"].bytes_in("dram") == {"z": (256, 0), "y": (256, 0), "w": (0, 256)}


def test_dosa_keeps_the_intermediate_in_the_scratchpad():
    network = pair(P=8)
    mappings = {
        name: whole_tile(network.by_name[name].dims, P=5 if name == "a" else 4) for name in ("a", "b")
    }
    cost = evaluate(schedule_of(network, FusionGroup(("a", "b"), GroupTile(1, 4, 8)), mappings, "dosa"))
    assert "y" not in cost.by_name["a"].bytes_in("dram") and "y" not in cost.by_name["b"].bytes_in("dram")
    written = [
        move for tensor, move in cost.by_name["a"].moves if move.memory == "scratchpad" and tensor == "y"
    ]
    assert [(move.direction, move.bytes) for move in written] == [("write", 2 * 5 * 8 * 4)]


def test_paper_fusion_deletes_refetches():
    network = pair(P=8)
    order = ("G", "K", "C", "R", "S", "N", "P", "Q")
    tile = whole_tile(network.by_name["b"].dims, P=4, K=2)
    mappings = {name: replace(tile, order_l3=order) for name in ("a", "b")}
    group = FusionGroup(("a", "b"), GroupTile(1, 8, 8))
    alone = evaluate(Schedule(network, LARGE, mappings, (FusionGroup(("a",)), FusionGroup(("b",)))))
    fused = evaluate(schedule_of(network, group, mappings, model="paper"))
    assert alone.by_name["b"].bytes_in("dram")["y"] == (2 * 2 * 5 * 8 * 4, 0)
    assert "y" not in fused.by_name["b"].bytes_in("dram") and "y" not in fused.by_name["a"].bytes_in("dram")
    assert fused.by_name["a"].bytes_in("dram")["x"] == alone.by_name["a"].bytes_in("dram")["x"]


@pytest.mark.parametrize(
    "group, message",
    [
        (FusionGroup(("a", "b")), "a: a group of 2 layers needs a group tile"),
        (FusionGroup(("a", "b"), GroupTile(1, 9, 8)), "b: group tile P=9 is outside 1..8"),
        (FusionGroup(("b", "a"), GroupTile(1, 8, 8)), "not in graph order"),
        (FusionGroup(("a",), None, frozenset(("b",))), "b: weights are resident in a group"),
    ],
)
def test_illegal_groups(group, message):
    network = pair(P=8)
    mappings = {name: whole_tile(network.by_name[name].dims) for name in ("a", "b")}
    with pytest.raises(ScheduleError, match=message):
        schedule_of(network, group, mappings)


def test_members_must_feed_the_group():
    a, b = conv("a", "x", "y", 4, 4, 8, 8), conv("b", "x", "z", 4, 4, 8, 8)
    network = graph([a, b], ("x",), ("y", "z"))
    mappings = {name: whole_tile(network.by_name[name].dims) for name in ("a", "b")}
    with pytest.raises(ScheduleError, match="a: no later member of its fusion group reads its output"):
        schedule_of(network, FusionGroup(("a", "b"), GroupTile(1, 8, 8)), mappings)


def test_groups_run_in_an_order():
    """a -> b -> c and a -> c: fusing a with c would need b's output before it exists."""
    a, b = conv("a", "x", "y", 4, 4, 8, 8), conv("b", "y", "z", 4, 4, 8, 8)
    network = graph([a, b, add("c", "z", "y", "w")], ("x",), ("w",))
    mappings = {name: whole_tile(network.by_name[name].dims) for name in ("a", "b")}
    with pytest.raises(ScheduleError, match="its fusion group runs before"):
        schedule_of(network, FusionGroup(("a", "c"), GroupTile(1, 8, 8)), mappings)


def test_intermediates_must_fit_the_tile_buffer():
    network = pair(P=8, C=4, K=4)
    mappings = {name: whole_tile(network.by_name[name].dims) for name in ("a", "b")}
    small = LARGE.model_copy(update={"tile_buffer_bytes": 255})
    with pytest.raises(ScheduleError, match="need 256 of 255 tile-buffer bytes"):
        Schedule(network, small, mappings, (FusionGroup(("a", "b"), GroupTile(1, 8, 8)),))


def test_price_of_a_fused_tensor():
    """Two tiles of five rows of 8 x 4 bytes, of which the array takes every element once per tap."""
    network = pair(P=8)
    a, b = (network.by_name[name].dims for name in ("a", "b"))
    mappings = {"a": whole_tile(a, P=5), "b": whole_tile(b, P=4)}
    cost = evaluate(Schedule(network, LARGE, mappings, (FusionGroup(("a", "b"), GroupTile(1, 4, 8)),)))
    y = {
        name: [
            (move.memory, move.direction, move.bytes)
            for tensor, move in cost.by_name[name].moves
            if tensor == "y" and move.memory != "accumulator"
        ]
        for name in ("a", "b")
    }
    assert y["a"] == [("tile-buffer", "write", 320)]
    array = ("scratchpad", "read", 64 * 9 * 4)
    assert sorted(y["b"]) == [array, ("scratchpad", "write", 320), ("tile-buffer", "read", 320)]


def test_on_chip_copies_are_final():
    network = pair(P=8)
    tile = whole_tile(network.by_name["a"].dims, P=5)
    spilling = replace(
        tile,
        tile_l2=tile.tile_l2.replace({"C": 2, "P": 2}),
        tile_l1=tile.tile_l1.replace({"C": 2, "P": 2}),
        tile_l0=tile.tile_l0.replace({"C": 2, "P": 2}),
        rows=tile.rows.replace({"C": 2}),
        order_l3=("G", "K", "C", "R", "S", "N", "P", "Q"),
    )
    mappings = {"a": spilling, "b": whole_tile(network.by_name["b"].dims, P=4)}
    group = FusionGroup(("a", "b"), GroupTile(1, 4, 8))
    Schedule(network, LARGE, mappings, (group,))
    with pytest.raises(ScheduleError, match="a: its output is fused but leaves the accumulator unfinished"):
        Schedule(network, LARGE, mappings, (group,), "dosa")


def test_a_product_that_reads_channels_as_images_is_not_fused_with_their_producer():
    # Multi-query attention: the heads of q are images of the product with the only k.
    b = GraphBuilder("heads")
    heads, rows, depth = 3, 6, 5
    width = heads * depth
    x, q, k = (
        b.input("x", (rows, width), scale=0.1),
        *(b.tensor(name, shape, scale=0.1) for name, shape in (("q", (rows, width)), ("k", (rows, depth)))),
    )
    dense = (0, 0, width, 0, 1)
    for name, out, outputs in (("to_q", q, width), ("to_k", k, depth)):
        dims = Dims(P=rows, C=width, K=outputs)
        data = np.zeros((1, 1, 1, width, outputs), np.int8)
        weights = b.tensor(f"w_{name}", data.shape, scale=0.1, data=data)
        b.tensor_core(
            TensorCoreLayer(
                name,
                "gemm",
                dims,
                View(x, 0, dense),
                weight_view(weights, dims),
                View(out, 0, (0, 0, outputs, 0, 1)),
                (rows, 1),
            )
        )
    scores = b.tensor("s", (heads, rows, rows), scale=0.1)
    dims = Dims(N=heads, P=rows, C=depth, K=rows)
    b.tensor_core(
        TensorCoreLayer(
            "scores",
            "bmm",
            dims,
            View(q, 0, (0, depth, width, 0, 1)),
            View(k, 0, (0, 0, 0, 1, depth)),
            View(scores, 0, (0, rows * rows, rows, 0, 1)),
            (rows, 1),
        )
    )
    with pytest.raises(ScheduleError, match="address q differently"):
        plan_group(b.build((scores,)), FusionGroup(("to_q", "scores"), GroupTile(1, rows, 1)))


def test_a_layer_that_writes_beside_what_it_reads_is_not_fused_with_itself():
    """As where a Concat of input and output is written in place."""
    b = GraphBuilder("beside")
    x = b.input("x", (4, 3), scale=0.1)
    both = b.tensor("both", (4, 6), scale=0.1)
    dims = Dims(P=4, C=3, K=3)
    data = np.zeros((1, 1, 1, 3, 3), np.int8)
    for name, source, offset, out in (("a", View(x, 0, (0, 0, 3, 0, 1)), 0, 0), ("b", None, 0, 3)):
        weights = b.tensor(f"w_{name}", data.shape, scale=0.1, data=data)
        read = source or View(both, offset, (0, 0, 6, 0, 1))
        b.tensor_core(
            TensorCoreLayer(
                name, "gemm", dims, read, weight_view(weights, dims), View(both, out, (0, 0, 6, 0, 1)), (4, 1)
            )
        )
    member = paper_plan(b.build((both,)), FusionGroup(("b",)))["b"]
    assert member.fused_inputs == frozenset() and not member.writes_inside and member.writes_outside


def test_the_tiles_of_attention_may_have_some_of_its_heads():
    """Every member computes the heads of the tile; what they hand on is as large as these need."""
    network = attention(heads=4, rows=6, keys=5, depth=3)
    group = FusionGroup(("scores", "shares", "context"), GroupTile(1, 3, 1, G=2))
    plan = plan_group(network, group)
    for member in plan.values():
        assert member.computed.G == ((0, 2), (2, 4)) and member.computed.P == ((0, 3), (3, 6))
    assert box_bytes(network, plan["scores"], LARGE) == 2 * 3 * 5
    whole = plan_group(network, replace(group, tile=GroupTile(1, 3, 1)))
    assert box_bytes(network, whole["scores"], LARGE) == 4 * 3 * 5


def test_keys_and_values_of_a_head_are_loaded_once_for_all_of_its_rows():
    """By hand: weights that stay are loaded once per head, those that do not for every tile of rows."""
    heads, rows, keys, depth = 4, 6, 5, 3
    network = attention(heads=heads, rows=rows, keys=keys, depth=depth)
    names = ("scores", "shares", "context")
    mappings = {layer.name: whole_tile(layer.dims, G=1, P=2) for layer in network.tensor_core_layers}
    for tile, resident, loads in (
        (GroupTile(1, 2, 1, G=1), {"scores", "context"}, 1),
        (GroupTile(1, 2, 1, G=1), set(), rows // 2),
        (GroupTile(1, 2, 1), set(), rows // 2),
    ):
        run = schedule_of(network, FusionGroup(names, tile, frozenset(resident)), mappings)
        cost = evaluate(run)
        for name, tensor in (("scores", "k"), ("context", "v")):
            assert cost.by_name[name].bytes_in("dram")[tensor] == (loads * heads * keys * depth, 0)
        assert cost.by_name["scores"].bytes_in("dram")["q"] == (heads * rows * depth, 0)
        assert cost.by_name["context"].bytes_in("tile-buffer") == {"shares.out": (heads * rows * keys, 0)}


@pytest.mark.parametrize(
    ("groups", "tile", "message"),
    [
        (4, 3, "group tile G=3 does not divide 4 groups"),
        (4, 5, r"group tile G=5 is outside 1..4"),
        (1, 1, "hands on no groups one by one"),
    ],
)
def test_tiles_of_groups_that_do_not_suit_are_refused(groups, tile, message):
    network = attention(heads=groups, rows=6, keys=5, depth=3)
    with pytest.raises(ScheduleError, match=message):
        plan_group(network, FusionGroup(("scores", "shares", "context"), GroupTile(1, 3, 1, G=tile)))
