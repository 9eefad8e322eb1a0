"""What `check_schedule` accepts in profile hw is emitted; what it refuses names the rule."""

from __future__ import annotations

import random
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.converter.ir.loops import DIMS, Dim, Dims
from fadiff.costmodel.group.fusion import ScheduleError, plan_group
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.shape import extents
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule, singleton_groups
from fadiff.costmodel.target.target import Target
from fadiff.emitters.gemmini import emit
from tests.emitters.gemmini.nets import Net

TINY = Target(name="tiny", side=4, scratchpad_bytes=1024, accumulator_bytes=2048)
RULES = (
    "scratchpad overflows",
    "accumulator overflows",
    r"accumulator tile [GKC]=\d+ splits an array block",
    "resident weights need scratchpad tiles of whole array blocks",
    "row-packed input tiles of .* cross the middle of the scratchpad",
    r"row packing \(S=\d+ on rows\) needs",
    r"\d+ array rows of 4",
    "holds one group at a time",
    "of its fusion group need",
)


def any_mapping(rng: random.Random, bounds: Dims, layer: TensorCoreLayer, side: int) -> Mapping:
    """Tiles that nest, with no thought for array blocks, halves, dilation or memories."""
    rows: dict[Dim, int] = {}
    cols: dict[Dim, int] = {}
    if layer.op == "depthwise":
        cols["G"] = rng.randint(1, min(side, bounds.G))
    else:
        cols["K"], rows["C"] = rng.randint(1, min(side, bounds.K)), rng.randint(1, min(side, bounds.C))
        if side > bounds.C and rng.random() < 0.8:
            rows["C"], rows["S"] = bounds.C, rng.randint(1, min(bounds.S, side // bounds.C))
    tiles: tuple[dict[Dim, int], ...] = ({}, {}, {})
    for d in DIMS:
        block = rows.get(d, 1) * cols.get(d, 1)
        l2 = rng.choice([bounds[d], rng.randint(block, bounds[d])])
        l1 = rng.choice([l2, rng.randint(block, l2)])
        if d == "G" and layer.op != "depthwise" and rng.random() < 0.9:
            l2 = l1 = 1
        for tile, extent in zip(tiles, (l2, l1, block), strict=True):
            tile[d] = extent
    orders = [tuple(rng.sample(DIMS, len(DIMS))) for _ in range(4)]
    return Mapping(*(Dims(**tile) for tile in tiles), Dims(**rows), Dims(**cols), *orders)


def emitted(schedule: Schedule) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        emit(schedule, model_name="net", out_dir=Path(scratch) / "firmware")


def accepted(graph: Graph, mappings: dict[str, Mapping], groups: tuple[FusionGroup, ...]) -> Schedule | None:
    """The schedule, or None when it is refused for a rule that we know."""
    try:
        return Schedule(graph, TINY, mappings, groups)
    except ScheduleError as error:
        assert re.search("|".join(RULES), str(error)), error
        return None


def random_chain(rng: random.Random) -> tuple[Net, Graph, tuple[int, ...]]:
    """One to three convolutions, often with few channels and wide kernels."""
    net = Net(rng)
    shape = (1, rng.randint(4, 13), rng.randint(4, 13), rng.choice([1, 2, 2, 3, 5, 9]))
    x, last = net.input(shape), shape
    for _ in range(rng.randint(1, 3)):
        depthwise = last[3] > 1 and rng.random() < 0.3
        kernel = rng.choice([(1, 1), (3, 3), (3, 3), (2, 4)])
        built = net.conv(
            x,
            last,
            outputs=last[3] if depthwise else rng.randint(1, 10),
            groups=last[3] if depthwise else 1,
            kernel=kernel,
            dilation=(1, rng.choice([1, 1, 1, 2])),
            pads=(kernel[0] // 2, kernel[1] // 2) * 2,
            stride=(1, rng.choice([1, 1, 2])),
        )
        assume(built is not None)  # wider than what is left of the image
        assert built is not None
        x, last = built
    return net, net.builder.build((x,)), last


@settings(
    max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much]
)
@given(st.integers(0, 1 << 32))
def test_accepted_schedules_are_emitted(seed: int) -> None:
    rng = random.Random(seed)
    net, graph, (n, p, q, _) = random_chain(rng)
    tile = GroupTile(n, rng.randint(1, p), rng.randint(1, q))
    resident = frozenset(name for name in net.names if rng.random() < 0.6)
    group = FusionGroup(tuple(net.names), tile, resident)
    groups = (group,) if len(net.names) > 1 or resident else singleton_groups(graph)
    plan = plan_group(graph, group)
    legal = None
    for _ in range(20):
        mappings = {}
        for layer in graph.tensor_core_layers:
            computed = plan[layer.name].computed if groups == (group,) else None
            full = (
                {}
                if computed is None
                else dict(zip("GKNPQ", (max(extents(a)) for a in computed), strict=True))
            )
            mappings[layer.name] = any_mapping(rng, layer.dims.replace(full), layer, TINY.side)  # type: ignore[arg-type]
        legal = accepted(graph, mappings, groups)
        if legal is not None:
            emitted(legal)


def test_each_rule_refuses_what_the_emitter_cannot_address() -> None:
    """The edges of the rules: one step inside is emitted, one outside is refused."""
    net = Net(random.Random(0))
    built = net.conv(net.input((1, 8, 16, 2)), (1, 8, 16, 2), outputs=10, kernel=(1, 3))
    assert built is not None
    graph = net.builder.build((built[0],))
    (layer,) = graph.tensor_core_layers
    base = Mapping(
        layer.dims.replace({"K": 8}),
        layer.dims.replace({"K": 4, "P": 1}),
        Dims(K=4, C=2, S=2),
        Dims(C=2, S=2),
        Dims(K=4),
    )
    # Inputs: 8 x 16 rows once, in the lower 128 of 256 rows.
    emitted(Schedule(graph, TINY, {"l0": base}, singleton_groups(graph)))
    small = TINY.model_copy(update={"scratchpad_bytes": 512 + 256})  # 192 rows: the middle is at 96
    with pytest.raises(ScheduleError, match="input tiles of 128 rows cross the middle"):
        Schedule(graph, small, {"l0": base}, singleton_groups(graph))
    tap_by_tap = replace(base, tile_l0=base.tile_l0.replace({"S": 1}), rows=Dims(C=2))
    emitted(Schedule(graph, small, {"l0": tap_by_tap}, singleton_groups(graph)))
    split = replace(base, tile_l1=base.tile_l1.replace({"K": 6}))
    with pytest.raises(ScheduleError, match="accumulator tile K=6 splits an array block of 4"):
        Schedule(graph, TINY, {"l0": split}, singleton_groups(graph))
    kept = FusionGroup(("l0",), None, frozenset({"l0"}))
    emitted(Schedule(graph, TINY, {"l0": base}, (kept,)))
    uneven = replace(base, tile_l2=base.tile_l2.replace({"K": 7}))
    emitted(Schedule(graph, TINY, {"l0": uneven}, singleton_groups(graph)))
    with pytest.raises(ScheduleError, match="whole array blocks, K=7 splits a block of 4"):
        Schedule(graph, TINY, {"l0": uneven}, (kept,))
