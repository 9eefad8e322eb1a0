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

from converter.dims import Dims
from converter.graph import Graph, View
from costmodel.evaluate import evaluate
from costmodel.fusion import ScheduleError, plan_group
from costmodel.local_tensors import obstacle
from costmodel.mapping import Mapping
from costmodel.resident_tensors import obstacle_to_staying, resident_tensors, with_resident_tensors
from costmodel.schedule import FusionGroup, GroupTile, Schedule
from costmodel.serialize import schedule_from_document, to_document
from costmodel.target import Target
from costmodel.tile_buffer import Span, TileBuffer
from emitters.gemmini import emit, plan
from emulator.errors import ExecutionError
from tests.emitters.gemmini.executed import Case, check, measured
from tests.emitters.gemmini.gemmini_cases import (
    LOCAL_TARGETS,
    first_legal,
    largest_region,
    random_conv,
    random_mapping,
    random_runs,
)
from tests.emitters.gemmini.nets import Net, Shape
from tests.emitters.gemmini.test_pooling import max_pool

SETTINGS = settings(
    deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
SEEDS = st.integers(0, 1 << 32)


def resident_case(rng: random.Random) -> Case | None:
    """Layers of all kinds in random groups, most tensors that can stay staying on chip between them."""
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
        if rng.random() < 0.2:
            values.append((rng.choice([net.lookup, net.layer_norm])(x, shape), shape))
            continue
        if rng.random() < 0.15 and min(shape[1:3]) > 1:
            pooled = max_pool(net, x, shape, 2, rng.randint(1, 2), (0, 0, 0, 0))
            values.append((f"y{len(net.names) - 1}", pooled))
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
        mappings, paths = {}, []
        for group in placed:
            members = plan_group(graph, group)
            held = {n for n in group.layers if not obstacle(graph, group, members, n, "spad")}
            held = held if rng.random() < 0.5 else set()
            readers = {r.name for n in held for r in graph.consumers(graph.by_name[n].outputs[0])}
            paths.append(replace(group, in_scratchpad=frozenset(held)))
            for layer in graph.tensor_core_layers:
                if layer.name in group.layers:
                    bounds = largest_region(layer, members[layer.name])
                    whole = layer.name in held | readers
                    mappings[layer.name] = random_mapping(rng, bounds, layer, target, full_blocks=whole)
        return Case(Schedule(graph, target, mappings, tuple(paths)))
    except (ScheduleError, ValueError):
        return None


def product_case(rng: random.Random) -> Case | None:
    """Scores of queries and keys that three layers compute alone: the stationary operand may stay, too."""
    target = rng.choice(LOCAL_TARGETS)
    net, p, c = Net(rng), rng.randint(1, 20), rng.randint(1, 20)
    shape = (1, p, 1, rng.randint(1, 20))
    x = net.input(shape)
    pair = [net.conv(x, shape, outputs=c, kernel=(1, 1)) for _ in range(2)]
    assert pair[0] is not None and pair[1] is not None
    left, right = View(pair[0][0], 0, (0, 0, c, 0, 1)), View(pair[1][0], 0, (0, 0, 0, 1, c))
    out = net.builder.tensor("y", (p, p), scale=float(np.sqrt(c) * 6))
    result = View(out, 0, (0, 0, p, 0, 1))
    net.builder.tensor_core("l2", "bmm", Dims(P=p, C=c, K=p), left, right, result, (p, 1))
    graph = net.builder.build((out,))
    return first_legal(lambda: _random_groups(rng, graph, {}, target))


@settings(SETTINGS, max_examples=10)
@given(SEEDS)
def test_stationary_operands_that_stay(seed: int) -> None:
    case = product_case(random.Random(seed))
    assume(case is not None)
    assert case is not None
    result = check(case)
    resident = "y1" in resident_tensors(case.schedule.groups)
    assert any(r.role == "W" and r.memory == "tile-buffer" for r in result.layers[2].traffic) == resident


@settings(SETTINGS, max_examples=20)
@given(SEEDS)
def test_random_schedules_with_resident_tensors(seed: int) -> None:
    case = resident_case(random.Random(seed))
    assume(case is not None)
    assert case is not None
    check(case)


def residual(target: Target, resident: tuple[str, ...]) -> Schedule:
    """y0 = l0(x); y1 = l1(y0); y2 = y0 + y1; y3 = l3(y2): every layer alone."""
    rng = random.Random(7)
    net, shape = Net(rng), (1, 8, 8, 16)
    first = net.conv(net.input(shape), shape, outputs=16, kernel=(1, 1))
    assert first is not None
    second = net.conv(first[0], shape, outputs=16, kernel=(3, 3), pads=(1, 1, 1, 1))
    assert second is not None
    last = net.conv(net.add(first[0], second[0], shape), shape, outputs=16, kernel=(1, 1))
    assert last is not None
    graph = net.builder.build((last[0],))
    groups = with_resident_tensors(graph, tuple(FusionGroup((name,)) for name in net.names), resident)
    for _ in range(1000):
        mappings = {
            layer.name: random_mapping(rng, layer.dims, layer, target) for layer in graph.tensor_core_layers
        }
        try:
            return Schedule(graph, target, mappings, groups)
        except ScheduleError as error:
            assert "scratchpad" in str(error) or "accumulator" in str(error) or "middle" in str(error)
    raise AssertionError("no legal mapping")


def test_nothing_of_resident_tensors_goes_to_dram() -> None:
    """Of the activations only the input is read from memory and only the output written."""
    schedule = residual(LOCAL_TARGETS[1], ("y0", "y1", "y2"))
    result = check(Case(schedule))
    moved = {
        (region.tensor, region.read > 0, region.write > 0)
        for layer in result.layers
        for region in layer.traffic
        if region.memory == "dram" and (region.read or region.write) and region.role in ("I", "I2", "O")
    }
    assert moved == {("x", True, False), ("y3", False, True)}


@pytest.mark.parametrize(
    "overlap",
    [{"y0": 0, "y1": 0, "y2": 2048}, {"y0": 0, "y1": 960, "y2": 2048}],
    ids=["the same place", "the end of a tensor that waits"],
)
def test_residents_that_overlap_are_caught(overlap: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = residual(LOCAL_TARGETS[1], ("y0", "y1", "y2"))
    broken = TileBuffer({}, {name: Span(offset, 1024) for name, offset in overlap.items()}, 4096)
    monkeypatch.setattr(plan, "plan_tile_buffer", lambda *_: broken)
    with pytest.raises((AssertionError, ExecutionError)):  # numbers, or a missing fence
        check(Case(schedule))


def test_the_schedule_file_keeps_residents() -> None:
    schedule = residual(LOCAL_TARGETS[1], ("y0", "y2"))
    document = to_document(schedule, evaluate(schedule), generator="test")
    kept = [run.resident_tensors for run in document.fusion.execution]
    assert kept == [("y0",), ("y0",), ("y0", "y2"), ("y2",)]
    paths = {(edge.tensor, edge.consumer): edge.path for edge in document.fusion.edges}
    assert paths == {
        ("y0", "l1"): "tile-buffer",
        ("y0", "l2"): "tile-buffer",
        ("y1", "l2"): "dram",
        ("y2", "l3"): "tile-buffer",
    }
    content = json.loads(document.model_dump_json())
    again = schedule_from_document(type(document).model_validate(content), schedule.graph)
    assert again.groups == schedule.groups
    for run in content["fusion"]["execution"]:
        del run["resident_tensors"]  # files of earlier versions
    old = schedule_from_document(type(document).model_validate(content), schedule.graph)
    assert not resident_tensors(old.groups)


def test_header_and_memory_map_say_where_residents_are(tmp_path: Path) -> None:
    schedule = residual(LOCAL_TARGETS[1], ("y0", "y2"))
    folder = emit(schedule, model_name="net", out_dir=tmp_path / "firmware")
    places = json.loads((folder / "memory_map.json").read_text())["tensors"]
    assert {name for name, place in places.items() if place["symbol"] == "tile_buffer"} == {"y0", "y2"}
    assert {name for name, place in places.items() if place["symbol"] == "arena"} == {"y1"}
    header = (folder / "net.h").read_text()
    rows = [line.split()[3:] for line in header.splitlines() if "* tile buffer" in line]
    assert rows == [["0", "1024", "0", "2", "y0"], ["1024", "1024", "2", "3", "y2"]]
    assert "#define NET_TILE_BUFFER_BYTES 2048" in header


def test_a_pool_in_the_store_path_may_write_a_resident() -> None:
    """{l0, l1}: a convolution pooled by its stores, in two tiles; l2 reads the pooled tensor later."""
    net, shape = Net(random.Random(3)), (1, 8, 8, 16)
    first = net.conv(net.input(shape), shape, outputs=16, kernel=(1, 1))
    assert first is not None
    pooled = max_pool(net, first[0], shape, 2, 2, (0, 0, 0, 0))
    last = net.conv("y1", pooled, outputs=16, kernel=(1, 1))
    assert last is not None
    graph = net.builder.build((last[0],))
    groups = (FusionGroup(("l0", "l1"), GroupTile(1, 2, 4)), FusionGroup(("l2",)))
    block = Dims(K=16, C=16, P=4)
    mapping = Mapping(block, block, Dims(K=16, C=16, P=4), Dims(C=16), Dims(K=16))
    tile = Dims(K=16, C=16, P=4, Q=8)
    mappings = {"l0": replace(mapping, tile_l2=tile, tile_l1=tile), "l2": mapping}
    groups = with_resident_tensors(graph, groups, ["y0", "y1"])
    assert [sorted(group.resident_tensors) for group in groups] == [["y1"], ["y1"]]
    result = check(Case(Schedule(graph, LOCAL_TARGETS[1], mappings, groups)))
    assert measured(result)["l0", "tile-buffer", "y1", "write"] == 4 * 4 * 16
    assert measured(result)["l2", "tile-buffer", "y1", "read"] == 4 * 4 * 16
