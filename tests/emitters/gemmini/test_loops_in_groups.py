"""Members of fusion groups on hardware loops: weights that stay in the halves, stores that pool."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings

from fadiff.converter.ir.graph import Graph, HostLayer, TensorCoreLayer
from fadiff.converter.ir.loops import DIMS, Dim, Dims
from fadiff.costmodel.group.fusion import ScheduleError, plan_group
from fadiff.costmodel.group.pooling import pool_of
from fadiff.costmodel.mapping.mapping import STREAM_ORDER, Mapping, Order
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule
from fadiff.costmodel.schedule.serialize import to_document
from fadiff.costmodel.target.target import Target
from tests.emitters.gemmini.executed import Case, check
from tests.emitters.gemmini.gemmini_cases import SEEDS, SETTINGS, TARGETS, TINY, largest_region
from tests.emitters.gemmini.nets import Net, Shape
from tests.emitters.gemmini.test_convolution_loops import loops


def random_group(rng: random.Random) -> Case | None:
    """Two or three convolutions, pools after some; some weights stay.  None if that is not legal."""
    target, net = rng.choice(TARGETS), Net(rng)
    shape: Shape = (rng.choice([1, 1, 2]), rng.randint(4, 12), rng.randint(4, 12), rng.randint(1, 12))
    x = net.input(shape)
    for i in range(rng.randint(1, 3)):
        kernel, pad = rng.choice([(1, 0), (2, 0), (3, 1)])
        depthwise = i > 0 and rng.random() < 0.2
        built = net.conv(
            x,
            shape,
            outputs=shape[3] if depthwise else rng.randint(1, 20),
            kernel=(kernel, kernel),
            stride=(rng.choice([1, 1, 2]),) * 2,
            pads=(pad,) * 4,
            groups=shape[3] if depthwise else 1,
        )
        if built is None:
            return None
        x, shape = built
        if min(shape[1:3]) > 3 and rng.random() < 0.5:
            layer = net.builder.layers[-1]
            assert isinstance(layer, TensorCoreLayer)
            net.builder.layers[-1] = replace(layer, activation="relu")  # padding counts as zero
            kernel, stride = rng.choice([(2, 2), (3, 2), (3, 3), (3, 1)])
            pads = (rng.randint(0, 1), rng.randint(0, 1), rng.randint(0, 1), rng.randint(0, 1))
            x, shape = net.max_pool(x, shape, kernel, stride, pads)
    if len(net.names) < 2:
        return None
    graph = net.builder.build((x,))
    tile = GroupTile(*(rng.randint(1, extent) for extent in shape[:3]))
    resident = frozenset(layer.name for layer in graph.tensor_core_layers if rng.random() < 0.5)
    group = FusionGroup(tuple(net.names), tile, resident)
    try:
        plan = plan_group(graph, group)
        mappings = {}
        for layer in graph.tensor_core_layers:
            full = largest_region(layer, plan[layer.name])
            mappings[layer.name] = _mapping(rng, graph, layer, full, plan[layer.name].pooled_by, target)
        return Case(Schedule(graph, target, mappings, (group,)))
    except (ScheduleError, ValueError):
        return None


def _mapping(
    rng: random.Random, graph: Graph, layer: TensorCoreLayer, full: Dims, after: str | None, target: Target
) -> Mapping:
    """Few tiles of weights, so that they may stay; tiles of whole windows where the stores pool."""
    steps = (1, 1)
    if after is not None:
        host = graph.by_name[after]
        assert isinstance(host, HostLayer)
        pool = pool_of(graph, host)
        assert pool is not None
        steps = pool.steps
    tile: dict[Dim, int] = {d: full[d] if rng.random() < 0.7 else rng.randint(1, full[d]) for d in DIMS}
    axes: tuple[Dim, Dim] = ("P", "Q")
    for d, step in zip(axes, steps, strict=True):
        tile[d] = min(full[d], -(-tile[d] // step) * step) if step else full[d]
    return loops(layer, target, tuple(rng.sample(DIMS, len(DIMS))), **tile)


@settings(SETTINGS, max_examples=12)
@given(SEEDS)
def test_any_group(seed: int) -> None:
    rng = random.Random(seed)
    case = next((case for _ in range(60) if (case := random_group(rng)) is not None), None)
    assume(case is not None)
    assert case is not None
    check(case)


def chain(shape: Shape, *layers: tuple[int, int], pool: tuple[int, int] | None = None) -> Graph:
    """Padded convolutions of (outputs, kernel), a max pool of (kernel, stride) after the last."""
    net = Net(random.Random(3))
    x = net.input(shape)
    for outputs, kernel in layers:
        made = net.conv(x, shape, outputs=outputs, kernel=(kernel, kernel), pads=(kernel // 2,) * 4)
        assert made
        x, shape = made
    if pool:
        x, _ = net.max_pool(x, shape, *pool, (0, 0, 0, 0))
    return net.builder.build((x,))


def grouped(graph: Graph, tile: GroupTile, resident: tuple[str, ...], **tiles: dict[str, int]) -> Schedule:
    group = FusionGroup(tuple(layer.name for layer in graph.layers), tile, frozenset(resident))
    order: Order = (*(d for d in STREAM_ORDER if d != "K"), "K")
    plan = plan_group(graph, group)
    mappings = {}
    for layer in graph.tensor_core_layers:
        full = largest_region(layer, plan[layer.name]).as_dict()
        mappings[layer.name] = loops(layer, TINY, order, **(full | tiles.get(layer.name, {})))
    return Schedule(graph, TINY, mappings, (group,))


def loaded(result: object, tensor: str) -> int:
    return sum(
        region.read
        for layer in result.layers
        for region in layer.traffic
        if region.tensor == tensor  # type: ignore[attr-defined]
    )


def test_two_members_keep_their_weights_in_a_half_each() -> None:
    graph = chain((1, 8, 8, 4), (4, 3), (4, 3))
    result = check(Case(grouped(graph, GroupTile(1, 4, 4), ("l0", "l1"))))
    assert [loaded(result, f"w{i}") for i in (0, 1)] == [4 * 4 * 9, 4 * 4 * 9]


def test_one_member_keeps_two_tiles_in_both_halves() -> None:
    graph = chain((1, 8, 8, 4), (8, 3), pool=(2, 2))
    result = check(Case(grouped(graph, GroupTile(1, 2, 4), ("l0",), l0={"K": 4})))
    assert loaded(result, "w0") == 4 * 8 * 9
    assert result.counts.instructions["loop_conv_ws"] == 2 * 2


def test_weights_beside_those_that_stay_come_to_the_other_half() -> None:
    graph = chain((1, 8, 8, 4), (4, 3), (8, 3))
    result = check(Case(grouped(graph, GroupTile(1, 2, 4), ("l0",), l1={"K": 4})))
    assert [loaded(result, f"w{i}") for i in (0, 1)] == [4 * 4 * 9, 8 * 4 * 8 * 9]


def test_there_is_room_for_two_tiles_that_stay() -> None:
    graph = chain((1, 8, 8, 4), (4, 1), (4, 1), (4, 1))
    with pytest.raises(ScheduleError, match="weights that stay are 3 tiles"):
        grouped(graph, GroupTile(1, 4, 4), ("l0", "l1", "l2"))
    with pytest.raises(ScheduleError, match="places of its own in both halves"):
        grouped(graph, GroupTile(1, 4, 4), ("l0", "l1"))


def test_single_instructions_leave_no_half_alone() -> None:
    schedule = grouped(chain((1, 8, 8, 4), (4, 1), (4, 1)), GroupTile(1, 4, 4), ("l0",))
    slow = schedule.mappings | {"l1": replace(schedule.mappings["l1"], issue="instructions")}
    with pytest.raises(ScheduleError, match=r"l0: .* for members that no loop unit runs"):
        replace(schedule, mappings=slow)


def why(schedule: Schedule) -> dict[str, str]:
    document = to_document(schedule, evaluate(schedule), generator="test")
    return {layer.name: layer.mapping.by_core for layer in document.layers if layer.mapping}


def test_of_single_instructions_it_is_said_why() -> None:
    graph = chain((1, 8, 8, 4), (4, 1), (4, 3))
    schedule = grouped(graph, GroupTile(1, 4, 4), ())
    mappings = {name: replace(mapping, issue="instructions") for name, mapping in schedule.mappings.items()}
    cut = mappings | {"l1": replace(mappings["l1"], tile_l1=mappings["l1"].tile_l1.replace({"P": 2}))}
    assert why(replace(schedule, mappings=cut)) == {
        "l0": "the core is as fast",
        "l1": "its accumulator tile is not its scratchpad tile",
    }
