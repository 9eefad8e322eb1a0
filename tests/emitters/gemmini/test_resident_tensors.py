"""Tensors that stay in the tile buffer across groups: emitted C against ONNX Runtime and the cost model."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from converter.graph import Graph
from costmodel.evaluate import evaluate
from costmodel.fusion import ScheduleError, plan_group
from costmodel.resident_tensors import obstacle_to_staying, resident_tensors, with_resident_tensors
from costmodel.schedule import FusionGroup, GroupTile, Schedule
from costmodel.serialize import schedule_from_document, to_document
from costmodel.shape import extents
from costmodel.target import Target
from costmodel.tile_buffer import Span, TileBuffer
from emitters.gemmini import emit, plan
from tests.emitters.gemmini.gemmini_cases import (
    LOCAL_TARGETS,
    Case,
    Net,
    Shape,
    check,
    random_conv,
    random_mapping,
)

SETTINGS = settings(
    deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
SEEDS = st.integers(0, 1 << 32)


def resident_case(rng: random.Random) -> Case | None:
    """Convolutions and adds in random groups, most tensors that can stay staying on chip between them."""
    target = rng.choice(LOCAL_TARGETS)
    net = Net(rng)
    shape: Shape = (rng.choice([1, 1, 2]), rng.randint(3, 9), rng.randint(3, 9), rng.randint(1, 20))
    values = [(net.input(shape), shape)]
    for _ in range(rng.randint(3, 6)):
        x, shape = values[-1] if rng.random() < 0.7 else rng.choice(values)
        peers = [name for name, other in values if other == shape and name != x]
        if peers and rng.random() < 0.4:
            values.append((net.add(x, rng.choice(peers), shape), shape))
            continue
        built = random_conv(rng, net, x, shape)
        if built is None:
            return None
        values.append(built)
    read = {tensor for layer in net.builder.layers for tensor in layer.inputs}
    outputs = [name for name, _ in values[1:] if name not in read]
    graph = net.builder.build(tuple(outputs))
    sizes = {layer.outputs[0]: size for layer, (_, size) in zip(graph.layers, values[1:], strict=True)}
    for _ in range(60):
        case = _random_groups(rng, graph, sizes, target)
        if case is not None:
            return case
    return None


def _random_groups(
    rng: random.Random, graph: Graph, sizes: dict[str, Shape], target: Target
) -> Case | None:
    names = [layer.name for layer in graph.layers]
    cuts = [0, *(i for i in range(1, len(names)) if rng.random() < 0.6), len(names)]
    groups = []
    for start, stop in zip(cuts, cuts[1:], strict=False):
        n, p, q, _ = sizes[graph.layers[stop - 1].outputs[0]]
        halo = rng.choice(["recompute", "retain"])
        tile = GroupTile(rng.randint(1, n), rng.randint(1, p), q if halo == "retain" else rng.randint(1, q))
        group = FusionGroup((names[start],))
        if stop - start > 1:
            group = FusionGroup(tuple(names[start:stop]), tile, halo)
        groups.append(group)
    able = [name for name in graph.tensors if not obstacle_to_staying(graph, name)]
    chosen = [name for name in able if rng.random() < 0.8]
    placed = with_resident_tensors(graph, groups, chosen)
    if not resident_tensors(placed):
        return None
    try:
        mappings = {}
        for group in placed:
            members = plan_group(graph, group)
            for name in group.layers:
                layer = graph.by_name[name]
                if layer in graph.tensor_core_layers:
                    full = {d: max(extents(a)) for d, a in zip("NPQ", members[name].computed, strict=True)}
                    mappings[name] = random_mapping(rng, layer.dims.replace(full), layer, target)
        return Case(Schedule(graph, target, mappings, placed))
    except (ScheduleError, ValueError):
        return None


@settings(SETTINGS, max_examples=30)
@given(SEEDS)
def test_random_schedules_with_resident_tensors(seed: int) -> None:
    case = resident_case(random.Random(seed))
    assume(case is not None)
    assert case is not None
    check(case)
