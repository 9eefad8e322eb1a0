"""Random schedules whose tensors stay in the tile buffer across groups."""

from __future__ import annotations

import random

import numpy as np

from fadiff.converter.ir.graph import Graph, TensorCoreLayer, View
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.group.fusion import ScheduleError, plan_group
from fadiff.costmodel.group.resident_tensors import (
    obstacle_to_staying,
    resident_tensors,
    with_resident_tensors,
)
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.costmodel.target.target import Target
from tests.emitters.gemmini.executed import Case
from tests.emitters.gemmini.gemmini_cases import (
    TARGETS,
    first_legal,
    largest_region,
    random_conv,
    random_mapping,
    random_runs,
)
from tests.emitters.gemmini.nets import Net, Shape


def resident_case(rng: random.Random) -> Case | None:
    """Layers of all kinds in random groups, most tensors that can stay staying on chip between them."""
    target = rng.choice(TARGETS)
    net = Net(rng)
    shape: Shape = (rng.choice([1, 1, 2]), rng.randint(3, 9), rng.randint(3, 9), rng.randint(1, 20))
    values = [(net.input(shape), shape)]
    for _ in range(rng.randint(3, 6)):
        x, shape = values[-1] if rng.random() < 0.7 else rng.choice(values)
        peers = [name for name, other in values if other == shape and name != x]
        if peers and rng.random() < 0.4:
            values.append((net.add(x, rng.choice(peers), shape), shape))
            continue
        if rng.random() < 0.2:
            values.append((rng.choice([net.lookup, net.layer_norm])(x, shape), shape))
            continue
        if rng.random() < 0.15 and min(shape[1:3]) > 1:
            values.append(net.max_pool(x, shape, 2, rng.randint(1, 2)))
            continue
        built = random_conv(rng, net, x, shape)
        if built is None:
            return None
        values.append(built)
    read = {tensor for layer in net.builder.layers for tensor in layer.inputs}
    outputs = [name for name, _ in values[1:] if name not in read]
    graph = net.builder.build(tuple(outputs))
    sizes = {layer.outputs[0]: size for layer, (_, size) in zip(graph.layers, values[1:], strict=True)}
    return first_legal(lambda: _random_groups(rng, graph, sizes, target))


def _random_groups(rng: random.Random, graph: Graph, sizes: dict[str, Shape], target: Target) -> Case | None:
    last = [sizes.get(layer.outputs[0], (1, 1, 1, 1)) for layer in graph.layers]
    groups = random_runs(rng, graph, last)
    able = [name for name in graph.tensors if not obstacle_to_staying(graph, name)]
    chosen = [name for name in able if rng.random() < 0.8]
    placed = with_resident_tensors(graph, groups, chosen)
    if not resident_tensors(placed):
        return None
    try:
        mappings = {}
        for group in placed:
            members = plan_group(graph, group)
            for layer in graph.tensor_core_layers:
                if layer.name in group.layers:
                    bounds = largest_region(layer, members[layer.name])
                    mappings[layer.name] = random_mapping(rng, bounds, layer, target)
        return Case(Schedule(graph, target, mappings, placed))
    except (ScheduleError, ValueError):
        return None


def product_case(rng: random.Random) -> Case | None:
    """Scores of queries and keys that three layers compute alone: the stationary operand may stay, too."""
    target = rng.choice(TARGETS)
    net, p, c = Net(rng), rng.randint(1, 20), rng.randint(1, 20)
    shape = (1, p, 1, rng.randint(1, 20))
    x = net.input(shape)
    pair = [net.conv(x, shape, outputs=c, kernel=(1, 1)) for _ in range(2)]
    assert pair[0] is not None and pair[1] is not None
    left, right = View(pair[0][0], 0, (0, 0, c, 0, 1)), View(pair[1][0], 0, (0, 0, 0, 1, c))
    out = net.builder.tensor("y", (p, p), scale=float(np.sqrt(c) * 6))
    result = View(out, 0, (0, 0, p, 0, 1))
    net.builder.tensor_core(TensorCoreLayer("l2", "bmm", Dims(P=p, C=c, K=p), left, right, result, (p, 1)))
    graph = net.builder.build((out,))
    return first_legal(lambda: _random_groups(rng, graph, {}, target))
