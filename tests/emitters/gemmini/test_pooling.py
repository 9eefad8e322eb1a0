"""Max pools that the stores of a convolution do: emitted C against ONNX Runtime and the cost model."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import assume, given, settings

from fadiff.converter.ir.graph import Graph, HostLayer, TensorCoreLayer
from fadiff.costmodel.group.fusion import Member, ScheduleError, plan_group
from fadiff.costmodel.group.pooling import obstacle_to_pooling, pool_of
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule
from fadiff.costmodel.target.target import Target
from tests.emitters.gemmini.executed import Case, check
from tests.emitters.gemmini.gemmini_cases import (
    SEEDS,
    SETTINGS,
    TARGETS,
    first_legal,
    largest_region,
    random_conv,
    random_mapping,
)
from tests.emitters.gemmini.nets import Net, Shape


def pooled_case(rng: random.Random) -> Case | None:
    """A group of convolutions and pools, perhaps with an add or a tensor that is read outside, too."""
    target = rng.choice(TARGETS)
    net = Net(rng)
    shape: Shape = (rng.choice([1, 1, 2]), rng.randint(4, 16), rng.randint(4, 16), rng.randint(1, 20))
    x = net.input(shape)
    if rng.random() < 0.3:
        built = random_conv(rng, net, x, shape)
        if built is None:
            return None
        x, shape = built
    pooled = []
    for _ in range(rng.choice([1, 1, 2])):
        built = random_conv(rng, net, x, shape)
        if built is None:
            return None
        x, shape = built
        kernel, stride = rng.choice([(2, 2), (3, 2), (3, 3), (3, 1), (2, 1), (1, 1)])
        pads = tuple(rng.choice([0, 0, 1]) if kernel > 1 else 0 for _ in range(4))
        if any(pads):
            layer = net.builder.layers[-1]
            assert isinstance(layer, TensorCoreLayer)
            net.builder.layers[-1] = replace(layer, activation="relu")
        if min(shape[1], shape[2]) < kernel:
            return None
        x, shape = net.max_pool(x, shape, kernel, stride, pads)  # type: ignore[arg-type]
        pooled.append(x)
    if rng.random() < 0.5:
        before, size = x, shape
        built = random_conv(rng, net, x, shape)
        if built is None:
            return None
        x, shape = built
        if shape == size and rng.random() < 0.7:
            x = net.add(*rng.sample([x, before], 2), shape)
    outputs = dict.fromkeys([x, *(name for name in pooled if rng.random() < 0.2)])
    graph = net.builder.build(tuple(outputs))
    return first_legal(lambda: _random_group(rng, net, graph, shape, target))


def _random_group(rng: random.Random, net: Net, graph: Graph, shape: Shape, target: Target) -> Case | None:
    n, p, q, _ = shape
    tile = GroupTile(rng.randint(1, n), rng.randint(1, p), q if len(graph.outputs) > 1 else rng.randint(1, q))
    resident = frozenset(layer.name for layer in graph.tensor_core_layers if rng.random() < 0.3)
    group = FusionGroup(tuple(net.names), tile, resident_weights=resident)
    try:
        plan = plan_group(graph, group)
        mappings = {
            layer.name: _mapping(rng, graph, layer, plan, target) for layer in graph.tensor_core_layers
        }
        return Case(Schedule(graph, target, mappings, (group,)))
    except (ScheduleError, ValueError):
        return None


def _mapping(
    rng: random.Random, graph: Graph, layer: TensorCoreLayer, plan: dict[str, Member], target: Target
) -> Mapping:
    """Random tiles; of a layer that is pooled such as hold whole windows."""
    member = plan[layer.name]
    full = largest_region(layer, member)
    mapping = random_mapping(rng, full, layer, target)
    if member.pooled_by is None:
        return mapping
    after = graph.by_name[member.pooled_by]
    assert isinstance(after, HostLayer)
    pool = pool_of(graph, after)
    assert pool is not None
    l2, l1 = mapping.tile_l2, mapping.tile_l1
    for d, step in zip(("P", "Q"), pool.steps, strict=True):
        if step:
            l2 = l2.replace({d: min(full[d], -(-l2[d] // step) * step)})
            l1 = l1.replace({d: min(l2[d], -(-l1[d] // step) * step)})
        else:
            l2, l1 = l2.replace({d: full[d]}), l1.replace({d: full[d]})
    return replace(mapping, tile_l2=l2, tile_l1=l1)


@settings(SETTINGS, max_examples=15)
@given(SEEDS)
def test_pools_in_random_groups(seed: int) -> None:
    case = pooled_case(random.Random(seed))
    assume(case is not None)
    assert case is not None
    assert not any(
        obstacle_to_pooling(case.graph, layer)
        for layer in case.graph.layers
        if isinstance(layer, HostLayer) and layer.op == "max_pool"
    )
    check(case)
