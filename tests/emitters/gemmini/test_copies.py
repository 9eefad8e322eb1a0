"""Copies by Gemmini's DMA: the same bytes as by the core, where the clock finds them quicker."""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fadiff.converter.ir.builder import GraphBuilder
from fadiff.converter.ir.host import Copy
from fadiff.converter.ir.loops import Access, Loops
from fadiff.converter.ir.recurrence import State
from fadiff.costmodel.group.copies import moved_rows
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.schedule.clock import program_cycles
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, Schedule, singleton_groups
from fadiff.costmodel.schedule.serialize import schedule_from_document, to_document
from fadiff.costmodel.target.target import Target, load_target
from fadiff.emitters.gemmini import emit
from fadiff.optimizer.cut.issued import quicker_copies
from tests.emitters.gemmini.executed import Case, check, measured, predicted, run_firmware
from tests.emitters.gemmini.nets import Net

TARGETS = [load_target(name) for name in ("gemmini-default", "gemmini-small", "gemmini-fp32")]
DEFAULT = TARGETS[0]


def copied(loops: Loops, target: Target = DEFAULT, *, dtype: str = "") -> Schedule:
    """One copy, by the core, of an input to an output as large as it needs."""
    builder = GraphBuilder("copied")
    sizes = [
        1 + access.offset + sum((n - 1) * s for n, s in zip(loops.shape, access.strides, strict=True))
        for access in loops.accesses
    ]
    kind = dtype or target.element_type
    x = builder.input("x", (sizes[0],), dtype=kind)
    y = builder.tensor("y", (sizes[1],), kind)
    builder.host("copy", Copy(loops), (x,), (y,))
    graph = builder.build((y,))
    return Schedule(graph, target, {}, singleton_groups(graph))


def by_gemmini(schedule: Schedule) -> Schedule:
    return replace(schedule, copies=frozenset({"copy"}))


def rows(count: int, length: int, read: int, written: int, at: int = 0) -> Loops:
    """`count` rows of a slice, or of part of a concatenation."""
    return Loops((count, length), (Access(0, (read, 1)),), Access(at, (written, 1)))


def runs_alike(schedule: Schedule) -> None:
    """Bit by bit what the core copies, byte by byte what is predicted."""
    [x], [y] = schedule.graph.inputs, schedule.graph.outputs
    tensor = schedule.graph.tensors[x]
    numbers = np.random.default_rng(1).integers(-128, 128, tensor.shape)
    given_ = {x: numbers.astype(np.float32 if tensor.dtype == "float32" else np.int8)}
    core, gemmini = run_firmware(schedule, given_), run_firmware(by_gemmini(schedule), given_)
    np.testing.assert_array_equal(core.tensors[y], gemmini.tensors[y])
    assert measured(gemmini) == predicted(by_gemmini(schedule)) != measured(core)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize(
    "loops",
    [
        Loops((4096,), (Access(0, (1,)),), Access(0, (1,))),
        Loops((4099,), (Access(3, (1,)),), Access(5, (1,))),  # prime
        rows(100, 64, 64, 192, 64),
        rows(33, 58, 58, 116, 58),
        rows(5, 200, 200, 333, 7),  # longer than a command's row, few of them
        Loops((3, 7, 5, 24), (Access(0, (1000, 100, 24, 1)),), Access(0, (840, 120, 24, 1))),
        Loops((8, 16, 20), (Access(0, (320, 1, 16)),), Access(0, (320, 1, 16))),  # innermost not last
        Loops((17,), (Access(0, (1,)),), Access(0, (1,))),
    ],
)
def test_copies(loops: Loops, target: Target) -> None:
    runs_alike(copied(loops, target))


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_copy(data: st.DataObject) -> None:
    """A box cut out of a tensor into another one, axes in any order."""
    extents = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    around = [[n + data.draw(st.integers(0, 20)) for n in extents] for _ in range(2)]
    accesses = []
    for sizes in around:
        strides = [int(np.prod(sizes[axis + 1 :], dtype=int)) for axis in range(len(sizes))]
        accesses.append(Access(data.draw(st.integers(0, 70)), tuple(strides)))
    loops = Loops(tuple(extents), (accesses[0],), accesses[1])
    order = data.draw(st.permutations(range(len(extents))))
    turned = [Access(a.offset, tuple(a.strides[i] for i in order)) for a in loops.accesses]
    shape = tuple(loops.shape[i] for i in order)
    copy, target = Loops(shape, (turned[0],), turned[1]), data.draw(st.sampled_from(TARGETS))
    assume(moved_rows(copy, target) is not None)  # a column of one element a row
    runs_alike(copied(copy, target))


@pytest.mark.parametrize(
    "loops, shape, length, commands",
    [
        (Loops((32768,), (Access(0, (1,)),), Access(0, (1,))), (512,), 64, 32),
        (rows(8, 4032, 4032, 4096), (8, 63), 64, 32),  # a cache of 63 positions
        (rows(196, 116, 116, 232), (196,), 116, 26),  # two pieces of every row
        (rows(100, 3, 3, 8), (100,), 3, 7),
    ],
)
def test_rows_of_a_command(loops: Loops, shape: tuple[int, ...], length: int, commands: int) -> None:
    moved = moved_rows(loops, DEFAULT)
    assert moved is not None
    assert (moved.loops.shape, moved.length, moved.commands(DEFAULT)) == (shape, length, commands)


@pytest.mark.parametrize("loops, chosen", [(rows(512, 64, 64, 128), True), (rows(1, 3, 3, 8), False)])
def test_the_clock_chooses(loops: Loops, chosen: bool) -> None:
    """At no bytes more than the core moves; and again the same where they are copied by Gemmini already."""
    schedule = copied(loops)
    after = replace(schedule, copies=quicker_copies(schedule))
    assert after.copies == quicker_copies(after) == ({"copy"} if chosen else set())
    assert after == schedule or program_cycles(after)["copy"] < program_cycles(schedule)["copy"]
    assert evaluate(after).energy_pj == evaluate(schedule).energy_pj  # the bound stays one
    assert not quicker_copies(schedule, most_bytes=1)
    if chosen:
        assert evaluate(after).dram_bytes == 2 * loops.shape[0] * loops.shape[1]
        before, then = (
            run_firmware(one, {"x": np.zeros(one.graph.tensors["x"].shape, np.int8)})
            for one in (schedule, after)
        )
        assert then.counts.cycles < before.counts.cycles


def test_fences_where_the_core_and_gemmini_take_turns() -> None:
    """The core writes what Gemmini copies, and reads what Gemmini has copied: both wait."""
    net, shape = Net(random.Random(2)), (1, 8, 8, 64)
    x = net.lookup(net.input(shape), shape)
    y = net.builder.tensor("moved", shape, scale=0.1)
    line = Access(0, (1,))
    net.builder.host("copy", Copy(Loops((4096,), (line,), line)), (x,), (y,))
    net.names.append("copy")
    graph = net.builder.build((net.lookup(y, shape),))
    schedule = Schedule(graph, DEFAULT, {}, singleton_groups(graph))
    schedule = replace(schedule, copies=quicker_copies(schedule))
    assert schedule.copies == {"copy"}
    check(Case(schedule))
    kept = FusionGroup(("copy",), resident_tensors=frozenset({y}))
    last = replace(schedule.groups[-1], resident_tensors=frozenset({y}))
    resident = replace(schedule, groups=(schedule.groups[0], kept, last))
    check(Case(resident))
    with tempfile.TemporaryDirectory() as scratch:
        code = (emit(schedule, model_name="m", out_dir=Path(scratch)) / "m.c").read_text()
    assert "copy_rows(" in code and "copy_bytes(" not in code


def test_who_copies_is_part_of_the_schedule() -> None:
    schedule = by_gemmini(copied(rows(512, 64, 64, 128)))
    document = to_document(schedule, evaluate(schedule), generator="test")
    assert [layer.issue for layer in document.layers] == ["instructions"]
    assert schedule_from_document(document).copies == schedule.copies
    by_core = to_document(copied(rows(512, 64, 64, 128)), evaluate(schedule), generator="test")
    assert schedule_from_document(by_core).copies == frozenset()


@pytest.mark.parametrize(
    "schedule, reason",
    [
        (copied(Loops((64, 64), (Access(0, (1, 64)),), Access(0, (64, 1)))), "no elements adjoin"),
        (copied(rows(64, 64, 64, 128), dtype="int32"), "its elements are not int8"),
        (copied(Loops((4, 64), (Access(192, (-64, 1)),), Access(0, (64, 1)))), "its rows do not lie"),
        (copied(Loops((40, 16), (Access(0, (0, 1)),), Access(0, (16, 1)))), "its rows do not lie"),
    ],
)
def test_what_gemmini_cannot_copy_is_refused(schedule: Schedule, reason: str) -> None:
    with pytest.raises(ScheduleError, match=f"copy: cannot be copied by Gemmini: {reason}"):
        by_gemmini(schedule)
    assert not quicker_copies(schedule)


def test_only_layers_that_are_copies_and_run() -> None:
    schedule = copied(rows(64, 64, 64, 128))
    with pytest.raises(ScheduleError, match="other: is copied by Gemmini but is no layer"):
        replace(schedule, copies=frozenset({"other"}))
    with pytest.raises(ScheduleError, match="copy: only schedules that are executed"):
        replace(schedule, profile="dosa", copies=frozenset({"copy"}))


def test_a_window_that_slides_in_its_buffer_is_refused() -> None:
    schedule = copied(rows(64, 64, 64, 64))
    graph = replace(schedule.graph, states=(State("y", "x"),))
    with pytest.raises(ScheduleError, match="copy: cannot be copied by Gemmini: it reads where it writes"):
        replace(schedule, graph=graph, copies=frozenset({"copy"}))
