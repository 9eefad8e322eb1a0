"""Layers side by side: what is overlapped, what it takes, and that wrong ones do not run."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from fadiff.converter.ir.graph import Graph, HostLayer
from fadiff.costmodel.group import side_by_side
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.group.side_by_side import MOST_PARTS, parts_of
from fadiff.costmodel.mapping.mapping import STREAM_ORDER, Issue
from fadiff.costmodel.schedule.clock import PART, program_cycles
from fadiff.costmodel.schedule.clock_parts import program_parts
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, Schedule
from fadiff.costmodel.schedule.serialize import schedule_from_document, to_document
from fadiff.costmodel.target.target import load_target
from fadiff.emitters.gemmini import emit
from fadiff.emulator.build import build_firmware
from fadiff.emulator.errors import ExecutionError
from fadiff.emulator.run import Firmware
from tests.emitters.gemmini.executed import Case, check, random_inputs, run_firmware
from tests.emitters.gemmini.gemmini_cases import SEEDS, SETTINGS
from tests.emitters.gemmini.host_nets import SHAPE, HostNet, elementwise, rows, windows
from tests.emitters.gemmini.nets import Net, Shape
from tests.emitters.gemmini.test_convolution_loops import loops

TARGET = load_target("gemmini-default")


def fork(shape: Shape = (1, 16, 16, 32)) -> Graph:
    """A convolution l0, a layer norm l1 and a convolution l2 of what that writes."""
    net = Net(random.Random(3))
    x = net.input(shape)
    y, _ = net.conv(x, shape, outputs=64, kernel=(3, 3), pads=(1, 1, 1, 1)) or ("", shape)
    normed = net.layer_norm(x, shape)
    z, _ = net.conv(normed, shape, outputs=16, kernel=(1, 1)) or ("", shape)
    return net.builder.build((y, z))


def schedule_of(graph: Graph, *groups: FusionGroup, **tile: int) -> Schedule:
    """The layers of no group alone; convolutions on the loop unit in tiles of `tile`."""
    grouped = {name for group in groups for name in group.layers}
    alone = tuple(FusionGroup((layer.name,)) for layer in graph.layers if layer.name not in grouped)
    mappings = {
        layer.name: loops(layer, TARGET, STREAM_ORDER, **(tile if layer.name == "l0" else {}))
        for layer in graph.tensor_core_layers
    }
    return Schedule(graph, TARGET, mappings, (*groups, *alone))


def both(graph: Graph, **tile: int) -> tuple[Schedule, Schedule]:
    """l0 and l1 one after the other, and side by side."""
    return schedule_of(graph, **tile), schedule_of(graph, FusionGroup(("l0", "l1")), **tile)


def test_the_same_values_and_bytes_in_less_time() -> None:
    one_by_one, together = both(fork(), P=2)
    slow, quick = check(Case(one_by_one)), check(Case(together))
    assert quick.counts.dram_bytes == slow.counts.dram_bytes
    [alone] = [layer.cycles for layer in slow.layers if layer.name == "l0"]
    assert 0.7 * alone < slow.counts.cycles - quick.counts.cycles < 1.1 * alone


@pytest.mark.parametrize("tile", [{"P": 1}, {"P": 4}, {"K": 16}, {}], ids=str)
def test_the_clock_hides_what_the_functional_model_does(tile: dict[str, int]) -> None:
    saved = []
    schedules = both(fork((1, 8, 16, 32)), **tile)
    counts: tuple[Callable[[Schedule], float], ...] = (
        lambda schedule: evaluate(schedule).latency_cycles,
        lambda schedule: sum(program_cycles(schedule).values()),
        lambda schedule: sum(parts.cycles for parts in program_parts(schedule).values()),
        lambda schedule: run_firmware(schedule, random_inputs(schedule.graph)).counts.cycles,
    )
    for cycles in counts:
        one_by_one, together = map(cycles, schedules)
        saved.append(one_by_one - together)
    assert saved[:3] == pytest.approx([saved[0]] * 3, abs=2)  # (rounded layer by layer)
    # The functional model knows nothing of what more parts take (of the norm, which is longer).
    assert 0 < saved[0] == pytest.approx(saved[3] - MOST_PARTS * PART, rel=0.25)


@pytest.mark.parametrize("operators", [elementwise, rows, windows])
def test_every_operator_in_parts(operators: Callable[[], Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them beside one convolution: of those that are cut every part, of others the whole."""
    build = HostNet.build

    def with_convolution(host: HostNet) -> Graph:
        net = Net(random.Random(5))
        net.builder = host.builder
        y, _ = net.conv(host.x, SHAPE, outputs=112, kernel=(1, 1)) or ("", SHAPE)
        host.outputs.append(y)
        return build(host)

    monkeypatch.setattr(HostNet, "build", with_convolution)
    monkeypatch.setattr(side_by_side, "LEAST_ELEMENTS", 1)
    graph = operators()
    group = FusionGroup(tuple(layer.name for layer in graph.layers))
    check(Case(schedule_of(graph, group, K=16)))
    cut = [parts_of(layer) for layer in graph.layers if isinstance(layer, HostLayer)]
    assert all(parts.count <= MOST_PARTS for parts in cut)
    whole = {parts.layer.op for parts in cut if parts.count == 1}
    assert whole.isdisjoint(("binary", "layer_norm"))


def test_what_cannot_run_side_by_side_is_refused() -> None:
    graph = fork((1, 8, 8, 32))
    mappings = schedule_of(graph).mappings

    def refusal(*names: str, issue: Issue = "loop_conv_ws", **run: Any) -> str:
        group = FusionGroup(names, **run)
        groups = [FusionGroup((name,)) for name in ("l0", "l1", "l2") if name not in names]
        issued = {name: replace(mapping, issue=issue) for name, mapping in mappings.items()}
        with pytest.raises(ScheduleError) as error:
            Schedule(graph, TARGET, issued, tuple(sorted((*groups, group), key=lambda run: run.layers[-1])))
        return str(error.value).rpartition(": ")[2]

    assert refusal("l1", "l2") == "l2 uses what l1 writes"
    assert refusal("l0", "l2") == "one of them must run on the array and the others on the core"
    nothing = "nothing flows between them and nothing stays for them"
    assert refusal("l0", "l1", resident_weights=frozenset(["l0"])) == nothing
    assert refusal("l0", "l1", pipelined=True) == nothing
    assert refusal("l0", "l1", issue="instructions") == "l0 is not on a loop unit, tile by tile"


def test_the_functional_model_knows_what_is_on_its_way(tmp_path: Path) -> None:
    """An operator that reads what Gemmini stores meanwhile is an error, where legality would not see it."""
    _, schedule = both(fork(), P=2)
    firmware = emit(schedule, model_name="net", out_dir=tmp_path / "firmware")
    written = firmware / "memory_map.json"
    [own, other] = ('"inputs": [\n    "x"\n   ]', '"inputs": [\n    "y0"\n   ]')
    assert written.read_text().count(own) == 1
    written.write_text(written.read_text().replace(own, other))
    built = build_firmware(firmware, TARGET, tmp_path)
    with pytest.raises(ExecutionError, match="layer l1 reads memory that Gemmini stored to since the last"):
        Firmware(firmware, built, TARGET).run(random_inputs(schedule.graph))


def test_schedule_json_says_so() -> None:
    _, schedule = both(fork(), P=2)
    document = to_document(schedule, evaluate(schedule), generator="test")
    assert schedule_from_document(document).groups == schedule.groups
    assert document.fusion.model_dump(mode="json")["execution"][0]["tile"] is None
    broken = document.model_copy(
        update={
            "fusion": document.fusion.model_copy(
                update={"groups": (("l0",), ("l1", "l2")), "execution": document.fusion.execution}
            )
        }
    )
    with pytest.raises(ScheduleError, match="l2 uses what l1 writes"):
        schedule_from_document(broken)


@settings(SETTINGS, max_examples=8)
@given(SEEDS)
def test_any_fork(seed: int) -> None:
    rng = random.Random(seed)
    shape = (rng.randint(1, 2), rng.randint(2, 9), rng.randint(2, 9), rng.randint(1, 40))
    net = Net(rng)
    x = net.input(shape)
    y, _ = net.conv(x, shape, outputs=rng.randint(1, 70), kernel=(2, 1)) or ("", shape)
    beside = [rng.choice([net.layer_norm, net.lookup])(x, shape) for _ in range(rng.randint(1, 3))]
    graph = net.builder.build((y, *beside))
    group = FusionGroup(tuple(layer.name for layer in graph.layers))
    [layer] = graph.tensor_core_layers
    tile = {"P": rng.randint(1, 3), "K": 16 * rng.randint(1, 4)}
    check(Case(schedule_of(graph, group, **{d: min(layer.dims[d], extent) for d, extent in tile.items()})))
