"""Random small graphs with legal random mappings."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from fadiff.converter.ir.builder import GraphBuilder
from fadiff.converter.ir.graph import Graph, TensorCoreLayer, View
from fadiff.converter.ir.loops import DIMS, Dim, Dims
from fadiff.costmodel.group.fusion import Member, ScheduleError, plan_group
from fadiff.costmodel.group.group_tile import shared_channels, shared_groups
from fadiff.costmodel.group.pipeline import stages
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.shape import extents
from fadiff.costmodel.schedule.host_records import operator_of
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule, singleton_groups
from fadiff.costmodel.target.target import Target, load_target
from fadiff.optimizer.layer import candidates
from tests.emitters.gemmini.executed import Case
from tests.emitters.gemmini.nets import Net, Shape

TINY = Target(name="tiny", side=4, scratchpad_bytes=2048, accumulator_bytes=1024)
TARGETS = (TINY, load_target("gemmini-small"), load_target("gemmini-large"))
"""With the instructions that keep fused tensors in local memory."""

SETTINGS = settings(
    deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
SEEDS = st.integers(0, 1 << 32)


def first_legal(attempt: Callable[[], Case | None]) -> Case | None:
    """What the first of sixty attempts that is legal makes; None if none is."""
    return next((case for _ in range(60) if (case := attempt()) is not None), None)


def largest_region(layer: TensorCoreLayer, member: Member) -> Dims:
    """The largest extents that a member computes of its layer in one group tile."""
    g, k, n, p, q = (max(extents(axis)) for axis in member.computed)
    return layer.dims.replace({"G": g, "K": k, "N": n, "P": p, "Q": q})


def random_runs(rng: random.Random, graph: Graph, sizes: Sequence[Shape]) -> list[FusionGroup]:
    """The layers, whose outputs have these `sizes`, cut into groups of neighbours with tiles of any size."""
    names = [layer.name for layer in graph.layers]
    cuts = [0, *(i for i in range(1, len(names)) if rng.random() < 0.6), len(names)]
    groups = []
    for start, stop in pairwise(cuts):
        group = FusionGroup((names[start],))
        if stop - start > 1:
            n, p, q, _ = sizes[stop - 1]
            tile = GroupTile(rng.randint(1, n), rng.randint(1, p), rng.randint(1, q))
            group = FusionGroup(tuple(names[start:stop]), tile)
        groups.append(group)
    return groups


def random_mapping(rng: random.Random, bounds: Dims, layer: TensorCoreLayer, target: Target) -> Mapping:
    """Any nesting of ragged tiles, any orders; may overflow the target's memories."""
    side, depthwise = target.side, layer.op == "depthwise"
    rows: dict[Dim, int] = {}
    cols: dict[Dim, int] = {}
    if depthwise:
        cols["G"] = min(bounds.G, rng.choice([side, rng.randint(1, side)]))
    else:
        cols["K"] = min(bounds.K, rng.choice([side, side, rng.randint(1, side)]))
        rows["C"] = min(bounds.C, rng.choice([side, side, rng.randint(1, side)]))
        if side // 2 >= layer.dims.C and layer.dilation[1] == 1 and rng.random() < 0.5:
            rows["C"] = bounds.C
            rows["S"] = rng.randint(1, min(bounds.S, side // bounds.C))
    tiles: tuple[dict[Dim, int], ...] = ({}, {}, {})
    for d in DIMS:
        block = cols.get(d, 1) * rows.get(d, 1)
        if d in ("N", "P", "Q"):
            l2 = rng.randint(1, bounds[d])
            l1 = rng.randint(1, l2)
            l0 = rng.randint(1, l1)
        else:
            l2 = rng.choice([*range(block, bounds[d] + 1, block), bounds[d]])
            l1 = rng.choice([*range(block, l2 + 1, block), l2])
            l0 = block
        if d == "G" and not depthwise:
            l2 = l1 = 1
        for tile, extent in zip(tiles, (l2, l1, l0), strict=True):
            tile[d] = extent
    orders = [tuple(rng.sample(DIMS, len(DIMS))) for _ in range(4)]
    return Mapping(*(Dims(**tile) for tile in tiles), Dims(**rows), Dims(**cols), *orders)


def layer_case(rng: random.Random) -> Case | None:
    """One convolution (dense, grouped, depthwise, first-layer or matrix product) alone."""
    target = rng.choice(TARGETS)
    net = Net(rng)
    kind = rng.choice(["dense", "dense", "gemm", "depthwise", "grouped", "few channels"])
    groups = rng.randint(2, 3) if kind == "grouped" else 1
    c = rng.randint(1, target.side // 2) if kind == "few channels" else groups * rng.randint(1, 40)
    k = c if kind == "depthwise" else groups * rng.randint(1, 40)
    groups = c if kind == "depthwise" else groups
    if kind == "gemm":
        shape = (1, rng.randint(1, 40), 1, c)
        net.conv(net.input(shape), shape, outputs=k, kernel=(1, 1))
    else:
        shape = (rng.choice([1, 1, 2]), rng.randint(1, 11), rng.randint(1, 11), c)
        kernel = (rng.randint(1, 3), rng.randint(1, 5))
        built = net.conv(
            net.input(shape),
            shape,
            outputs=k,
            kernel=kernel,
            groups=groups,
            stride=(rng.randint(1, 3), rng.randint(1, 3)),
            dilation=(rng.randint(1, 2), rng.randint(1, 2)),
            pads=tuple(rng.randint(0, 2) for _ in range(4)),  # type: ignore[arg-type]
        )
        if built is None:
            return None
    return _with_random_mapping(rng, net.builder.build(("y0",)), target)


def _with_random_mapping(rng: random.Random, graph: Graph, target: Target) -> Case | None:
    layer = graph.tensor_core_layers[0]
    for _ in range(100):
        mapping = random_mapping(rng, layer.dims, layer, target)
        try:
            return Case(Schedule(graph, target, {layer.name: mapping}, singleton_groups(graph)))
        except ScheduleError:
            continue
    return None


def bmm_case(rng: random.Random) -> Case | None:
    """A batched product of two activations, either of them strided, the second one possibly transposed."""
    target = rng.choice(TARGETS)
    heads, p, c, k = (rng.randint(1, 4), rng.randint(1, 40), rng.randint(1, 40), rng.randint(1, 40))
    b = GraphBuilder("net")
    interleaved = rng.random() < 0.5
    left_shape = (p, heads, c) if interleaved else (heads, p, c)
    strides = (c, 0, heads * c, 0, 1) if interleaved else (p * c, 0, c, 0, 1)
    left = View(b.input("x", left_shape, scale=0.1), 0, strides)
    if rng.random() < 0.5:
        right = View(b.input("z", (k, heads, c), scale=0.1), 0, (c, 0, 0, 1, heads * c))
    else:
        right = View(b.input("z", (c, heads, k), scale=0.1), 0, (k, 0, 0, heads * k, 1))
    out = View(b.tensor("y", (p, heads, k), scale=float(np.sqrt(c) * 6)), 0, (k, 0, heads * k, 0, 1))
    b.tensor_core(TensorCoreLayer("l0", "bmm", Dims(G=heads, P=p, C=c, K=k), left, right, out, (p, 1)))
    graph = b.build(("y",))
    return _with_random_mapping(rng, graph, target)


def group_case(rng: random.Random) -> Case | None:
    """A fused chain of two to four layers with halo, strides, adds and side outputs."""
    target = rng.choice(TARGETS)
    net = Net(rng)
    shape: Shape = (rng.choice([1, 1, 2]), rng.randint(3, 12), rng.randint(3, 12), rng.randint(1, 20))
    x = net.input(shape)
    values = [(x, shape)]
    for i in range(rng.randint(2, 4)):
        peers = [name for name, other in values[:-1] if other == shape]
        if i and rng.random() < 0.2:
            constant = net.builder.tensor(
                f"c{i}", shape, scale=0.1, data=net._integers(-99, 99, shape, np.int8)
            )
            x = net.add(x, constant, shape)
        elif i and peers and rng.random() < 0.4:
            operands = [x, rng.choice(peers)]
            rng.shuffle(operands)
            x = net.add(*operands, shape)
        else:
            built = random_conv(rng, net, x, shape)
            if built is None:
                return None
            x, shape = built
        values.append((x, shape))
    outputs = [x]
    if len(values) > 2 and rng.random() < 0.4:
        outputs.append(rng.choice(values[1:-1])[0])
    graph = net.builder.build(tuple(outputs))
    return first_legal(lambda: _random_group(rng, net, graph, shape, target))


def grouped_case(rng: random.Random) -> Case | None:
    """A fused chain of convolutions in the same groups, tables between some; tiles of any of the groups."""
    net, groups = Net(rng), rng.choice([2, 3, 4])
    shape: Shape = (rng.choice([1, 1, 2]), rng.randint(3, 9), rng.randint(3, 9), groups * rng.randint(1, 6))
    x = net.input(shape)
    for i in range(rng.choice([2, 2, 3])):
        if i and rng.random() < 0.3:
            x = net.lookup(x, shape)
        outputs, kernel = groups * rng.randint(1, 6), rng.choice([1, 3])
        built = net.conv(
            x,
            shape,
            outputs=outputs,
            groups=groups,
            kernel=(kernel, kernel),
            pads=(kernel // 2,) * 4,
            stride=(rng.choice([1, 1, 2]),) * 2,
        )
        if built is None:
            return None
        x, shape = built
    graph = net.builder.build((x,))
    target = rng.choice(TARGETS)
    return first_legal(lambda: _random_group(rng, net, graph, shape, target))


def streamed_case(rng: random.Random) -> Case | None:
    """A convolution or two, then tables, additions, depthwise convolutions; tiles of some of the channels."""
    net, channels = Net(rng), rng.choice([2, 4, 6, 8, 12, 16, 24, 32])
    shape: Shape = (
        rng.choice([1, 1, 2]),
        rng.randint(2, 9),
        rng.choice([1, rng.randint(2, 9)]),
        rng.randint(1, 20),
    )
    image = net.input(shape)
    values: list[str] = []
    kernel = rng.choice([1, 1, 3])
    for _ in range(rng.choice([1, 1, 2])):
        built = net.conv(image, shape, outputs=channels, kernel=(kernel, kernel), pads=(kernel // 2,) * 4)
        assert built is not None
        values.append(built[0])
    shape = built[1]
    other = net.input(shape)
    x = values[0] if len(values) == 1 else net.add(*values, shape)
    for _ in range(rng.choice([1, 1, 2])):
        kind = rng.choice(["table", "add", "depthwise"])
        if kind == "table":
            x = net.lookup(x, shape)
        elif kind == "add":
            x = net.add(*rng.sample([x, rng.choice([other, *values[-1:]])], 2), shape)
        else:
            before = shape
            stride = rng.choice([1, 1, 2])
            built = net.conv(
                x,
                shape,
                outputs=channels,
                groups=channels,
                kernel=(3, 3),
                pads=(1,) * 4,
                stride=(stride,) * 2,
            )
            if built is None:
                return None
            x, shape = built
            if shape != before:
                values, other = [x], net.input(shape)
        values.append(x)
    outputs = [x, *([rng.choice(values)] if rng.random() < 0.2 else [])]
    graph = net.builder.build(tuple(dict.fromkeys(outputs)))
    target = rng.choice(TARGETS)
    return first_legal(lambda: _random_group(rng, net, graph, shape, target))


def random_conv(rng: random.Random, net: Net, x: str, shape: Shape) -> tuple[str, Shape] | None:
    c = shape[3]
    kind = rng.choice(["same", "same", "pointwise", "any", "depthwise"])
    if kind == "same":
        return net.conv(x, shape, outputs=c, kernel=(3, 3), pads=(1, 1, 1, 1))
    if kind == "depthwise" and c > 1:
        return net.conv(
            x, shape, outputs=c, groups=c, kernel=(3, 3), pads=(1, 1, 1, 1), stride=(1, rng.randint(1, 2))
        )
    outputs = rng.choice([c, rng.randint(1, 24)])
    if kind == "pointwise":
        stride = rng.randint(1, 2)
        return net.conv(x, shape, outputs=outputs, kernel=(1, 1), stride=(stride, stride))
    kernel = (rng.randint(1, 3), rng.randint(1, 3))
    return net.conv(
        x,
        shape,
        outputs=outputs,
        kernel=kernel,
        stride=(rng.randint(1, 2), rng.randint(1, 2)),
        dilation=(rng.choice([1, 1, 2]), rng.choice([1, 1, 2])),
        pads=tuple(rng.randint(0, k - 1) for k in kernel * 2),  # type: ignore[arg-type]
    )


def _random_group(rng: random.Random, net: Net, graph: Graph, shape: Shape, target: Target) -> Case | None:
    n, p, q, _ = shape
    groups = shared_groups(graph, net.names)
    some = rng.choice([None, *candidates.divisors(groups)]) if groups > 1 else None
    channels = shared_channels(graph, net.names)
    part = rng.choice(candidates.divisors(channels)) if channels > 1 and rng.random() < 0.8 else None
    tile = GroupTile(rng.randint(1, n), rng.randint(1, p), rng.randint(1, q), some, part)
    resident = {layer.name for layer in graph.tensor_core_layers if rng.random() < 0.3}
    group = FusionGroup(tuple(net.names), tile, resident_weights=frozenset(resident))
    if len(set(stages(graph, group).values())) > 1 and rng.random() < 0.6:
        along = _along_one_axis(rng, tile, shape, groups, channels)
        group = replace(group, tile=along, pipelined=True)
    try:
        plan = plan_group(graph, group)
        mappings = {}
        for layer in graph.tensor_core_layers:
            mappings[layer.name] = random_mapping(rng, largest_region(layer, plan[layer.name]), layer, target)
        return Case(Schedule(graph, target, mappings, (group,)))
    except (ScheduleError, ValueError):
        return None


def _along_one_axis(
    rng: random.Random, tile: GroupTile, shape: Shape, groups: int, channels: int
) -> GroupTile:
    """A group tile that is as large as the output but along one axis."""
    whole = GroupTile(*shape[:3], groups if tile.G else None, channels if tile.K else None)
    axis = rng.choice(["P", "P", "Q", "N", *(["G"] if tile.G else []), *(["K", "K"] if tile.K else [])])
    return replace(whole, **{axis: getattr(tile, axis)})


def rows_case(rng: random.Random) -> Case | None:
    """Attention over query rows (softmax between two products) or lookups between convolutions, fused."""
    target = rng.choice(TARGETS)
    net = Net(rng)
    if rng.random() < 0.5:
        graph, shape = attention(rng, net)
    else:
        shape = (rng.choice([1, 1, 2]), rng.randint(3, 10), rng.randint(3, 10), rng.randint(1, 20))
        x = net.input(shape)
        for _ in range(rng.randint(1, 2)):
            built = random_conv(rng, net, x, shape)
            if built is None:
                return None
            x, shape = built
            if rng.random() < 0.3:
                constant = net._integers(-99, 99, shape, np.int8)
                x = net.add(
                    x, net.builder.tensor(f"c{len(net.names)}", shape, scale=0.1, data=constant), shape
                )
            x = net.layer_norm(x, shape) if rng.random() < 0.4 else net.lookup(x, shape)
        if rng.random() < 0.7:
            built = random_conv(rng, net, x, shape)
            if built is None:
                return None
            x, shape = built
        graph = net.builder.build((x,))
    return first_legal(lambda: _random_group(rng, net, graph, shape, target))


def attention(rng: random.Random, net: Net, heads: int = 0, p: int = 0, keys: int = 0) -> tuple[Graph, Shape]:
    """softmax(q k^T) v: heads outermost or beside the channels, masks of one or of all rows.

    Sizes that are 0 are random.
    """
    heads, p, keys = heads or rng.randint(1, 3), p or rng.randint(1, 20), keys or rng.randint(1, 20)
    depth, values = rng.randint(1, 20), rng.randint(1, 20)
    b = net.builder
    query = View(b.input("q", (p, heads, depth), scale=0.1), 0, (depth, 0, heads * depth, 0, 1))
    if rng.random() < 0.5:
        key = View(b.input("k", (keys, heads, depth), scale=0.1), 0, (depth, 0, 0, 1, heads * depth))
    else:
        key = View(b.input("k", (depth, heads, keys), scale=0.1), 0, (keys, 0, 0, heads * keys, 1))
    value = View(b.input("v", (keys, heads, values), scale=0.1), 0, (values, 0, 0, heads * values, 1))
    outermost = rng.random() < 0.6
    stored = (heads, p, keys) if outermost else (p, heads, keys)
    strides = (p * keys, 0, keys, 0, 1) if outermost else (keys, 0, heads * keys, 0, 1)
    scores, shares = b.tensor("s", stored, scale=0.1), b.tensor("a", stored, scale=1 / 127)
    out = b.tensor("y", (p, heads, values), scale=0.1)
    dims = Dims(G=heads, P=p, C=depth, K=keys)
    b.tensor_core(TensorCoreLayer("l0", "bmm", dims, query, key, View(scores, 0, strides), (p, 1)))
    table = np.rint(2**16 * np.exp(0.1 * np.arange(-255, 1))).astype(np.int32)
    inputs = (scores, b.tensor("exp", (256,), "int32", data=table))
    attributes: dict[str, Any] = {"outer": heads * p, "length": keys, "inner": 1, "scale": 127.0}
    masks = rng.choice([0, 1, p] if outermost else [0, 1])
    if masks:
        mask = net._integers(0, 2, (masks, keys), np.int8)
        mask[:, rng.randrange(keys)] = 0
        inputs, attributes["mask_rows"] = (*inputs, b.tensor("mask", mask.shape, data=mask)), masks
    b.host("l1", operator_of("softmax", attributes), inputs, (shares,))
    result = View(out, 0, (values, 0, heads * values, 0, 1))
    dims = Dims(G=heads, P=p, C=keys, K=values)
    b.tensor_core(TensorCoreLayer("l2", "bmm", dims, View(shares, 0, strides), value, result, (p, 1)))
    for i, depth_of_sum in ((0, depth), (-1, keys)):
        layer = b.layers[i]
        assert isinstance(layer, TensorCoreLayer)
        b.layers[i] = replace(layer, scale=float(np.float32(1 / (60 * np.sqrt(depth_of_sum)))))
    net.names += ["l0", "l1", "l2"]
    return b.build((out,)), (1, p, 1, heads * values)
