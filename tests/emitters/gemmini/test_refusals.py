"""What the emitter refuses, without leaving a folder behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from fadiff.costmodel.schedule.schedule import Schedule, singleton_groups
from fadiff.costmodel.target.target import Target, load_target
from fadiff.emitters.gemmini import EmitError, emit
from tests.emitters.gemmini.compilers import (
    small_schedule,
)
from tests.emitters.gemmini.nets import Net


def test_elements_of_another_type_are_refused(tmp_path: Path) -> None:
    target = load_target("gemmini-default").model_copy(
        update={"element_type": "float32", "element_bytes": 4, "scratchpad_bytes": 4 * 262144}
    )
    with pytest.raises(EmitError, match="int8, but target gemmini-default computes in float32"):
        emit(small_schedule(target), model_name="x", out_dir=tmp_path / "firmware")
    assert not (tmp_path / "firmware").exists()


def test_additions_need_two_blocks_of_the_accumulator(tmp_path: Path) -> None:
    import random

    net = Net(random.Random(1))
    shape = (1, 4, 4, 4)
    graph = net.builder.build((net.add(net.input(shape), net.builder.input("z", shape, scale=0.1), shape),))
    target = Target(name="least", side=4, scratchpad_bytes=256, accumulator_bytes=4 * 4 * 7)
    schedule = Schedule(graph, target, {}, singleton_groups(graph))
    needed = r"l0: an addition needs 8 accumulator rows, target least has 7: .*128"
    with pytest.raises(EmitError, match=needed):
        emit(schedule, model_name="x", out_dir=tmp_path / "firmware")
    assert not (tmp_path / "firmware").exists()


def test_dosa_profile_is_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    with pytest.raises(EmitError, match="--profile hw"):
        emit(replace(small_schedule(), profile="dosa"), model_name="x", out_dir=tmp_path / "firmware")
    assert not (tmp_path / "firmware").exists()
