"""Convolutions issued as hardware loops and as calls of gemmini.h: right numbers, predicted bytes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings

from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.converter.ir.loops import DIMS, Dim, Dims
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.mapping.mapping import OUTPUT_STATIONARY, STREAM_ORDER, Mapping, Order
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule, singleton_groups
from fadiff.costmodel.target.target import Target, load_target
from fadiff.optimizer.search import optimize
from tests.emitters.gemmini.executed import Case, check
from tests.emitters.gemmini.gemmini_cases import SEEDS, SETTINGS, TARGETS, TINY
from tests.emitters.gemmini.nets import Net, Shape


def loops(
    layer: TensorCoreLayer, target: Target, order: Order = STREAM_ORDER, packed: int = 1, **tile: int
) -> Mapping:
    """Scratchpad tile `tile` (the whole layer where it says nothing), `packed` pixels in a row."""
    extents: dict[Dim, int] = {d: tile.get(d, layer.dims[d]) for d in DIMS}
    extents["G"] = min(layer.dims.G, target.side) if layer.op == "depthwise" else 1
    depthwise = layer.op == "depthwise"
    rows = Dims() if depthwise else Dims(C=min(target.side, extents["C"]), S=packed)
    cols = Dims(G=extents["G"]) if depthwise else Dims(K=min(target.side, extents["K"]))
    block = Dims(*(r * c for r, c in zip(rows, cols, strict=True)))
    whole = Dims(**extents)
    return Mapping(whole, whole, block, rows, cols, order, issue="loop_conv_ws")


def random_case(rng: random.Random) -> Case | None:
    """One dense, grouped, depthwise or first-layer convolution; None if what it should do is not legal."""
    target, net = rng.choice(TARGETS), Net(rng)
    kind = rng.choice(["dense", "dense", "depthwise", "grouped", "few channels"])
    groups = rng.randint(2, 3) if kind == "grouped" else 1
    c = rng.randint(1, target.side // 2) if kind == "few channels" else groups * rng.randint(1, 40)
    k = c if kind == "depthwise" else groups * rng.randint(1, 40)
    stride, dilation = rng.randint(1, 3), rng.randint(1, 2)
    shape = (rng.choice([1, 1, 2]), rng.randint(1, 11), rng.randint(1, 11), c)
    built = net.conv(
        net.input(shape),
        shape,
        outputs=k,
        kernel=(rng.randint(1, 3), rng.randint(1, 5)),
        stride=(stride, stride),
        dilation=(dilation, dilation),
        pads=(rng.randint(0, 2), rng.randint(0, 2), rng.randint(0, 2), rng.randint(0, 2)),
        groups=c if kind == "depthwise" else groups,
    )
    if built is None:
        return None
    graph = net.builder.build(("y0",))
    layer = graph.tensor_core_layers[0]
    tile = {d: rng.choice([extent, rng.randint(1, extent)]) for d, extent in layer.dims.as_dict().items()}
    packs = kind == "few channels" and tile["C"] == c and dilation == 1
    packed = rng.randint(1, min(tile["S"], target.side // c)) if packs else 1
    mapping = loops(layer, target, tuple(rng.sample(DIMS, len(DIMS))), packed, **tile)
    try:
        return Case(Schedule(graph, target, {layer.name: mapping}, singleton_groups(graph)))
    except ScheduleError:
        return None


@settings(SETTINGS, max_examples=12)
@given(SEEDS)
def test_any_convolution(seed: int) -> None:
    rng = random.Random(seed)
    case = next((case for _ in range(30) if (case := random_case(rng)) is not None), None)
    assume(case is not None)
    assert case is not None
    check(case)


def chain(shape: Shape, *layers: tuple[int, int, int, int], stride: int = 1) -> Graph:
    """Convolutions of (outputs, kernel, padding, groups)."""
    net = Net(random.Random(2))
    x = net.input(shape)
    for outputs, kernel, pad, groups in layers:
        made = net.conv(
            x,
            shape,
            outputs=outputs,
            kernel=(kernel, kernel),
            stride=(stride, stride),
            pads=(pad, pad, pad, pad),
            groups=groups,
            bias=True,
        )
        assert made
        x, shape = made
    return net.builder.build((x,))


def alone(graph: Graph, **tile: int) -> Schedule:
    layer = graph.tensor_core_layers[0]
    mapping = loops(layer, TINY, OUTPUT_STATIONARY, **tile)
    return Schedule(graph, TINY, {"l0": mapping}, singleton_groups(graph))


@pytest.mark.parametrize("order", [("P", "K"), ("K", "P"), ("K", "P", "C"), ("P", "K", "C")], ids="".join)
def test_an_operand_stays_where_its_loops_are_outside(order: tuple[Dim, ...]) -> None:
    """What is fetched less often than there are calls is pinned to a half of the scratchpad."""
    graph = chain((1, 7, 5, 6), (10, 3, 1, 1))
    whole: Order = (*(d for d in STREAM_ORDER if d not in order), *order)
    tile = {"K": 4, "P": 3} if order[-1] != "C" else {"K": 8, "P": 2, "C": 4}
    mapping = loops(graph.tensor_core_layers[0], TINY, whole, **tile)
    result = check(Case(Schedule(graph, TINY, {"l0": mapping}, singleton_groups(graph))))
    assert result.counts.instructions["loop_conv_ws"] == (9 if "C" not in tile else 16)


def test_members_of_a_group_hand_over_boxes() -> None:
    graph = chain((2, 9, 7, 5), (6, 3, 1, 1), (6, 3, 1, 6), (9, 3, 0, 1))
    group = FusionGroup(("l0", "l1", "l2"), GroupTile(1, 3, 4))
    tiles = {"l0": {"P": 2, "Q": 8, "N": 1}, "l1": {"P": 3, "Q": 4, "N": 1}, "l2": {"P": 2, "Q": 4, "N": 1}}
    tiles["l0"]["Q"] = 5
    mappings = {layer.name: loops(layer, TINY, **tiles[layer.name]) for layer in graph.tensor_core_layers}
    check(Case(Schedule(graph, TINY, mappings, (group,))))


@pytest.mark.parametrize("channels, tile", [(8, {"P": 3}), (12, {"P": 2, "C": 4})])
def test_small_tiles_of_a_whole_layer(channels: int, tile: dict[str, int]) -> None:
    check(Case(alone(chain((1, 5, 5, channels), (8, 3, 1, 1)), **tile)))


def test_weights_that_do_not_move_on_are_in_no_loop() -> None:
    """As no converter writes them: found in a schedule.json that was changed by hand."""
    schedule = alone(chain((1, 5, 5, 8), (8, 3, 1, 1)), P=3)
    layer = schedule.graph.tensor_core_layers[0]
    stuck = replace(layer, weight=replace(layer.weight, strides=(0, 0, 0, 0, 1)))
    with pytest.raises(ScheduleError, match="its weight does not lie in memory in equal steps"):
        replace(schedule, graph=replace(schedule.graph, layers=(stuck,)))


def test_finished_schedules_choose_loops_for_convolutions() -> None:
    """Dense with stride, depthwise and first-layer convolutions."""
    graph, target = chain((1, 9, 9, 2), (8, 3, 1, 1), (8, 3, 1, 8), (5, 3, 1, 1), stride=2), TARGETS[1]
    issued = optimize(graph, target, method="layerwise", fusion=False).schedule
    assert {mapping.issue for mapping in issued.mappings.values()} == {"loop_conv_ws"}
    assert issued.mappings["l0"].rows.S == 3
    check(Case(issued))


@pytest.mark.parametrize(
    "shape, kernel, name, rows, most",
    [((1, 9, 9, 40), 5, "gemmini-small", 2, 8_500), ((1, 14, 14, 32), 3, "gemmini-default", 3, 4_700)],
)
def test_a_depthwise_kernel_goes_in_parts_where_memories_are_small(
    shape: Shape, kernel: int, name: str, rows: int, most: int
) -> None:
    graph = chain(shape, (shape[-1], kernel, kernel // 2, shape[-1]))
    found = optimize(graph, load_target(name), method="layerwise")
    [mapping] = found.schedule.mappings.values()
    assert mapping.issue == "loop_conv_ws" and rows == mapping.tile_l2.R
    assert found.cost.latency_cycles <= most
    check(Case(found.schedule))


def test_fewer_lanes_of_a_depthwise_layer_move_fewer_zeros() -> None:
    graph, target = chain((1, 4, 4, 64), (64, 3, 1, 64)), load_target("gemmini-large")
    found = optimize(graph, target, method="layerwise")
    mapping = loops(graph.tensor_core_layers[0], target, OUTPUT_STATIONARY)
    all_lanes = Schedule(graph, target, {"l0": mapping}, singleton_groups(graph))
    assert target.side // 2 == found.schedule.mappings["l0"].tile_l2.G
    assert found.cost.edp_uj_cycles < evaluate(all_lanes).edp_uj_cycles
    check(Case(found.schedule))
