"""Group tiles in a pipeline: what is overlapped, what it takes, and that a wrong one does not run."""

from __future__ import annotations

import random
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings

import fadiff.costmodel.group.tile_buffer
import fadiff.emitters.gemmini.plan
from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.group.fusion import ScheduleError, plan_group
from fadiff.costmodel.group.pipeline import parts, places, rounds
from fadiff.costmodel.group.tile_buffer import plan_tile_buffer
from fadiff.costmodel.mapping.mapping import STREAM_ORDER
from fadiff.costmodel.schedule.clock import program_cycles
from fadiff.costmodel.schedule.clock_parts import program_parts
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule
from fadiff.costmodel.schedule.serialize import schedule_from_document, to_document
from fadiff.costmodel.target.target import Target, load_target
from fadiff.emulator.errors import ExecutionError
from tests.emitters.gemmini.executed import Case, check, random_inputs, run_firmware
from tests.emitters.gemmini.gemmini_cases import SEEDS, SETTINGS, largest_region, rows_case
from tests.emitters.gemmini.nets import Net, Shape
from tests.emitters.gemmini.test_convolution_loops import loops
from tests.emitters.gemmini.test_loops_in_groups import chain

TARGET = load_target("gemmini-default")


def sandwich(shape: Shape = (1, 8, 8, 32)) -> Graph:
    """A convolution, a table, a convolution: l0, l1, l2."""
    net = Net(random.Random(3))
    x, shape = net.conv(net.input(shape), shape, outputs=32, kernel=(3, 3), pads=(1, 1, 1, 1)) or ("", shape)
    x = net.lookup(x, shape)
    x, _ = net.conv(x, shape, outputs=32, kernel=(1, 1)) or ("", shape)
    return net.builder.build((x,))


def schedule_of(
    graph: Graph,
    tile: GroupTile,
    *,
    pipelined: bool = True,
    lines: int | None = None,
    target: Target = TARGET,
    **changes: object,
) -> Schedule:
    """`lines`: of a scratchpad tile of the first layer; default: all of its region."""
    group = FusionGroup(tuple(layer.name for layer in graph.layers), tile, pipelined=pipelined)
    group = replace(group, **changes)  # type: ignore[arg-type]
    plan = plan_group(graph, group)
    mappings = {}
    for layer in graph.tensor_core_layers:
        extents = largest_region(layer, plan[layer.name]).as_dict()
        if lines is not None and layer is graph.tensor_core_layers[0]:
            extents["P"] = lines
        mappings[layer.name] = loops(layer, target, STREAM_ORDER, **extents)
    return Schedule(graph, target, mappings, (group,))


def test_a_step_computes_one_tile_between_what_is_issued_of_two_others() -> None:
    graph = sandwich()
    group = FusionGroup(("l0", "l1", "l2"), GroupTile(1, 2, 8), pipelined=True)
    [turns] = rounds(graph, group)
    assert [(turn.issued, turn.computed) for turn in turns] == [("l2", ()), ("l0", ("l1",))]


def test_the_same_values_and_bytes_in_less_time() -> None:
    graph, tile = sandwich(), GroupTile(1, 2, 8)
    one_by_one, pipelined = (schedule_of(graph, tile, pipelined=on) for on in (False, True))
    slow, quick = check(Case(one_by_one)), check(Case(pipelined))
    assert quick.counts.dram_bytes == slow.counts.dram_bytes
    # Three of the four tiles of the first convolution run while the core looks values up.
    alone = next(layer.cycles for layer in slow.layers if layer.name == "l0")
    assert 0.5 * alone < slow.counts.cycles - quick.counts.cycles < 1.25 * alone


@pytest.mark.parametrize("rows", [2, 8])
def test_the_clock_hides_what_the_functional_model_does(rows: int) -> None:
    graph = sandwich((1, 16, 16, 32))
    saved = []
    one_by_one, pipelined = (schedule_of(graph, GroupTile(1, rows, 16), pipelined=on) for on in (False, True))
    for cycles in (
        lambda schedule: evaluate(schedule).latency_cycles,
        lambda schedule: sum(program_cycles(schedule).values()),
        lambda schedule: sum(layer.cycles for layer in program_parts(schedule).values()),
        lambda schedule: run_firmware(schedule, random_inputs(graph)).counts.cycles,
    ):
        saved.append(cycles(one_by_one) - cycles(pipelined))
    assert saved[:3] == pytest.approx([saved[0]] * 3, abs=2)  # (rounded layer by layer)
    assert saved[0] == pytest.approx(saved[3], rel=0.2)


def test_the_core_computes_between_tiles_of_what_gemmini_runs() -> None:
    """Four tiles of the first convolution in a step, of which two are under way at a time."""
    graph, tile = sandwich((1, 16, 16, 32)), GroupTile(1, 8, 16)
    one_by_one, pipelined = (schedule_of(graph, tile, pipelined=on, lines=2) for on in (False, True))
    [group] = pipelined.groups
    turn = rounds(graph, group)[-1][-1]
    assert parts(graph, plan_group(graph, group), pipelined.mappings, turn) == {"l1": 4}
    slow, quick = check(Case(one_by_one)), check(Case(pipelined))
    assert quick.counts.dram_bytes == slow.counts.dram_bytes
    clock = [sum(program_cycles(schedule).values()) for schedule in (one_by_one, pipelined)]
    saved = slow.counts.cycles - quick.counts.cycles
    assert 0.6 * saved < clock[0] - clock[1] < saved  # (to the functional model parts cost nothing)
    with patch("fadiff.costmodel.group.pipeline.LEAST_ELEMENTS", 10**9):
        assert sum(program_cycles(pipelined).values()) > clock[1]


@pytest.mark.parametrize("side", [8, 16, 32])
def test_parts_of_ragged_tiles(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Group tiles of six and of three lines, in tiles of four, two and one."""
    monkeypatch.setattr("fadiff.costmodel.group.pipeline.LEAST_ELEMENTS", 1)
    target = TARGET.model_copy(update={"side": side})
    check(Case(schedule_of(sandwich((1, 15, 9, 20)), GroupTile(1, 6, 9), lines=2, target=target)))


def test_a_box_has_a_place_for_every_tile_between_its_stages() -> None:
    """A table works in place, so three tiles are there: written, looked up, read."""
    graph = sandwich()
    schedule = schedule_of(graph, GroupTile(1, 2, 8))
    [group] = schedule.groups
    plan = plan_group(graph, group)
    assert places(graph, group, plan) == {"l0": 3, "l1": 3}
    buffer = plan_tile_buffer(graph, schedule.groups, [plan], TARGET)
    assert buffer.nbytes == 3 * 2 * 8 * 32


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_places_do_not_run(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    def fewer(*of: object) -> dict[str, int]:
        return {"l0": count, "l1": count}

    monkeypatch.setattr(fadiff.costmodel.group.tile_buffer, "places", fewer)
    monkeypatch.setattr(fadiff.emitters.gemmini.plan, "places", fewer)
    with pytest.raises(ExecutionError, match=r"without a fence between|since the last fence"):
        run_firmware(schedule_of(sandwich(), GroupTile(1, 2, 8)), random_inputs(sandwich()))


def test_what_cannot_be_pipelined_is_refused() -> None:
    graph = sandwich()

    def refusal(tile: GroupTile) -> str:
        with pytest.raises(ScheduleError) as error:
            schedule_of(graph, tile)
        return str(error.value).removeprefix("l0: its group cannot be pipelined: ")

    one_axis = "its group tiles do not follow one another along one axis"
    assert refusal(GroupTile(1, 2, 4)) == refusal(GroupTile(1, 8, 8)) == one_axis
    graph = chain((1, 8, 8, 4), (4, 1), (4, 1))
    assert refusal(GroupTile(1, 2, 8)) == "its members do not run on the core and on Gemmini in turn"


def test_schedule_json_says_so() -> None:
    schedule = schedule_of(sandwich(), GroupTile(1, 2, 8))
    document = to_document(schedule, evaluate(schedule), generator="test")
    assert schedule_from_document(document).groups == schedule.groups
    assert document.fusion.model_dump(mode="json")["execution"][0]["pipelined"] is True
    flat = schedule_of(sandwich(), GroupTile(1, 2, 8), pipelined=False)
    document = to_document(flat, evaluate(flat), generator="test")
    written = document.fusion.model_dump(mode="json")["execution"][0]
    assert "pipelined" not in written and "K" not in written["tile"]


@settings(SETTINGS, max_examples=8)
@given(SEEDS)
def test_any_pipeline(seed: int) -> None:
    rng = random.Random(seed)
    cases = (rows_case(rng) for _ in range(60))
    case = next((case for case in cases if case and case.schedule.groups[0].pipelined), None)
    assume(case is not None)
    assert case is not None
    with patch("fadiff.costmodel.group.pipeline.LEAST_ELEMENTS", rng.choice((1, 128))):
        check(case)
