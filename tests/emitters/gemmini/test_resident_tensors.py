"""Tensors that stay in the tile buffer across groups: emitted C against ONNX Runtime and the cost model."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings

from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.group.resident_tensors import resident_tensors, with_resident_tensors
from fadiff.costmodel.group.tile_buffer import Span, TileBuffer
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule
from fadiff.costmodel.schedule.serialize import schedule_from_document, to_document
from fadiff.costmodel.target.target import Target
from fadiff.emitters.gemmini import emit, plan
from fadiff.emulator.errors import ExecutionError
from tests.emitters.gemmini.executed import Case, check, measured
from tests.emitters.gemmini.gemmini_cases import (
    SEEDS,
    SETTINGS,
    TARGETS,
    random_mapping,
)
from tests.emitters.gemmini.nets import Net
from tests.emitters.gemmini.resident_cases import product_case, resident_case


@settings(SETTINGS, max_examples=6)
@given(SEEDS)
def test_stationary_operands_that_stay(seed: int) -> None:
    case = product_case(random.Random(seed))
    assume(case is not None)
    assert case is not None
    result = check(case)
    resident = "y1" in resident_tensors(case.schedule.groups)
    assert any(r.role == "W" and r.memory == "tile-buffer" for r in result.layers[2].traffic) == resident


@settings(SETTINGS, max_examples=8)
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
    schedule = residual(TARGETS[1], ("y0", "y1", "y2"))
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
    schedule = residual(TARGETS[1], ("y0", "y1", "y2"))
    broken = TileBuffer({}, {name: Span(offset, 1024) for name, offset in overlap.items()}, 4096)
    monkeypatch.setattr(plan, "plan_tile_buffer", lambda *_: broken)
    with pytest.raises((AssertionError, ExecutionError)):  # numbers, or a missing fence
        check(Case(schedule))


def test_the_schedule_file_keeps_residents() -> None:
    schedule = residual(TARGETS[1], ("y0", "y2"))
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
    schedule = residual(TARGETS[1], ("y0", "y2"))
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
    pooled = net.max_pool(first[0], shape, 2, 2)
    last = net.conv(*pooled, outputs=16, kernel=(1, 1))
    assert last is not None
    graph = net.builder.build((last[0],))
    groups = (FusionGroup(("l0", "l1"), GroupTile(1, 2, 4)), FusionGroup(("l2",)))
    block = Dims(K=16, C=16, P=4)
    mapping = Mapping(block, block, Dims(K=16, C=16, P=4), Dims(C=16), Dims(K=16))
    tile = Dims(K=16, C=16, P=4, Q=8)
    mappings = {"l0": replace(mapping, tile_l2=tile, tile_l1=tile), "l2": mapping}
    groups = with_resident_tensors(graph, groups, ["y0", "y1"])
    assert [sorted(group.resident_tensors) for group in groups] == [["y1"], ["y1"]]
    result = check(Case(Schedule(graph, TARGETS[1], mappings, groups)))
    assert measured(result)["l0", "tile-buffer", "y1", "write"] == 4 * 4 * 16
    assert measured(result)["l2", "tile-buffer", "y1", "read"] == 4 * 4 * 16
