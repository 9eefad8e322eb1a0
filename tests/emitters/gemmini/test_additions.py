"""Residual additions: one call of gemmini.h where its loop unit keeps the operands in order."""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.group.additions import resadd_tile
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.schedule.clock import program_cycles, quickest_additions
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule, singleton_groups
from fadiff.costmodel.schedule.serialize import schedule_from_document, to_document
from fadiff.costmodel.target.target import load_target
from fadiff.emitters.gemmini import emit
from tests.emitters.gemmini.executed import Case, check
from tests.emitters.gemmini.nets import Net

DEFAULT = load_target("gemmini-default")


@pytest.mark.parametrize(
    "size, tile",
    [
        (64 * 64, (64, 64)),
        (64 * 196, (112, 64)),  # 196 rows: two tiles of at most 128, whole blocks of 16
        (64 * 63, None),  # so few requests that both operands of a row could be in flight together
        (64 * 200 + 1, None),  # rows of no whole request
    ],
)
def test_tiles_fill_requests_and_half_the_accumulator(size: int, tile: tuple[int, int] | None) -> None:
    assert resadd_tile(size, DEFAULT) == tile


def quickest(schedule: Schedule) -> Schedule:
    return replace(schedule, additions=quickest_additions(schedule))


@pytest.mark.parametrize("shape, call", [((1, 14, 14, 64), "tiled_resadd"), ((1, 5, 3, 8), "add_lines")])
def test_addition(shape: tuple[int, int, int, int], call: str) -> None:
    net = Net(random.Random(3))
    y = net.add(net.input(shape), net.builder.input("z", shape, scale=0.1), shape)
    graph = net.builder.build((y,))
    schedule = quickest(Schedule(graph, DEFAULT, {}, singleton_groups(graph)))
    with tempfile.TemporaryDirectory() as scratch:
        code = (emit(schedule, model_name="add", out_dir=Path(scratch)) / "add.c").read_text()
    assert f"{call}(" in code
    check(Case(schedule))


@pytest.mark.parametrize(
    "lines, wide, call", [(7, 14, "tiled_resadd"), (5, 14, "add_lines"), (7, 7, "add_lines")]
)
def test_addition_in_a_group(lines: int, wide: int, call: str) -> None:
    """A call where all group tiles are whole lines, as many each."""
    net, shape = Net(random.Random(4)), (2, 14, 14, 64)
    x = net.input(shape)
    made = net.conv(x, shape, outputs=64, kernel=(1, 1))
    assert made
    graph = net.builder.build((net.add(made[0], x, shape),))
    (layer,) = graph.tensor_core_layers
    tile = Dims(K=64, C=64, P=lines, Q=wide)
    mapping = Mapping(tile, tile, Dims(K=16, C=16), Dims(C=16), Dims(K=16))
    group = FusionGroup(tuple(net.names), GroupTile(1, lines, wide))
    schedule = quickest(Schedule(graph, DEFAULT, {layer.name: mapping}, (group,)))
    with tempfile.TemporaryDirectory() as scratch:
        code = (emit(schedule, model_name="add", out_dir=Path(scratch)) / "add.c").read_text()
    assert f"{call}(" in code
    check(Case(schedule))


def alone(shape: tuple[int, int, int, int]) -> Schedule:
    net = Net(random.Random(5))
    graph = net.builder.build((net.add(net.input(shape), net.input(shape), shape),))
    return Schedule(graph, DEFAULT, {}, singleton_groups(graph))


def test_how_an_addition_is_issued_is_part_of_the_schedule() -> None:
    """Kept in schedule.json, priced, shown; the core may issue what one call could do."""
    by_core = alone((1, 28, 28, 64))
    (name,) = by_core.graph.by_name
    called = quickest(by_core)
    assert called.additions == {name: "tiled_resadd"}
    document = to_document(called, evaluate(called), generator="test")
    assert schedule_from_document(document).additions == called.additions
    assert program_cycles(called)[name] < program_cycles(by_core)[name]
    ran = [check(Case(schedule)) for schedule in (called, by_core)]
    assert ran[0].counts.cycles < ran[1].counts.cycles


def test_what_no_call_can_add_is_refused() -> None:
    schedule = alone((1, 5, 3, 8))
    (name,) = schedule.graph.by_name
    with pytest.raises(ScheduleError, match=f"{name}: cannot be issued as tiled_resadd: 120 elements"):
        replace(schedule, additions={name: "tiled_resadd"})
    with pytest.raises(ScheduleError, match="l9: is issued as an addition but is none"):
        replace(schedule, additions={"l9": "tiled_resadd"})
