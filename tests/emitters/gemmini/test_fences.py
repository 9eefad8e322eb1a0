"""Fences between what the core stores and what Gemmini loads: none may be missing."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from fadiff.costmodel.schedule.schedule import Schedule, singleton_groups
from fadiff.emitters.gemmini import emit
from fadiff.emulator.build import build_firmware
from fadiff.emulator.errors import ExecutionError
from fadiff.emulator.run import Firmware
from tests.emitters.gemmini.executed import Case, check, random_inputs
from tests.emitters.gemmini.gemmini_cases import rows_case

FENCE = r"^ *wait_for_gemmini\(\);\n"


@pytest.fixture(scope="module")
def fused() -> Schedule:
    """Convolutions with a table between them, in one group."""
    return _sandwich(pipelined=False)


def _sandwich(*, pipelined: bool) -> Schedule:
    for case in filter(None, (rows_case(random.Random(seed)) for seed in range(200))):
        wanted = [layer.op for layer in case.graph.layers] == ["conv", "lookup", "conv"]
        if wanted and case.schedule.groups[0].pipelined == pipelined:
            return case.schedule
    raise AssertionError("no such case")


def _without_fence(schedule: Schedule, folder: Path, before: str) -> str:
    """What the functional model says when the fence before or after the C line `before` is gone."""
    firmware = emit(schedule, model_name="net", out_dir=folder / "firmware")
    source = firmware / "net.c"
    text, count = re.subn(before, lambda found: re.sub(FENCE, "", found[0], flags=re.M), source.read_text())
    assert count == 1 and text != source.read_text()
    source.write_text(text)
    built = build_firmware(firmware, schedule.target, folder)
    with pytest.raises(ExecutionError) as caught:
        Firmware(firmware, built, schedule.target).run(random_inputs(schedule.graph))
    return str(caught.value)


def test_inputs_are_fenced_at_entry(fused: Schedule, tmp_path: Path) -> None:
    said = _without_fence(fused, tmp_path, r" *wait_for_gemmini\(\);\n *gemmini_flush\(0\);\n")
    assert re.search(r"layer l0: loads .*I x.* that the core wrote, without a fence", said), said


def test_a_core_layer_in_a_group_is_fenced(fused: Schedule, tmp_path: Path) -> None:
    said = _without_fence(fused, tmp_path, r"observe\(1, 1\);\n *wait_for_gemmini\(\);\n")
    assert re.search(r"layer l2: loads .*I y1.* that the core wrote, without a fence", said), said


def test_a_step_of_a_pipeline_begins_with_a_fence(tmp_path: Path) -> None:
    said = _without_fence(_sandwich(pipelined=True), tmp_path, r"step\+\+\) \{\n *wait_for_gemmini\(\);\n")
    assert re.search(r"layer l2: loads .*I y1.* that the core wrote, without a fence", said), said


def test_a_core_layer_alone_is_fenced(fused: Schedule, tmp_path: Path) -> None:
    alone = Schedule(fused.graph, fused.target, fused.mappings, singleton_groups(fused.graph))
    check(Case(alone))
    after = r"observe_end\(1\);\n *RETURN_IF_STOPPED\(\);\n *wait_for_gemmini\(\);\n"
    said = _without_fence(alone, tmp_path, after)
    assert re.search(r"layer l2: loads .*I y1.* that the core wrote, without a fence", said), said
