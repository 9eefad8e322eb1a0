"""Schedules kept with their measurements are those that were measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rtl import LIBRARY, MEASURED, converted, digest, read_rows
from benchmarks.rtl_schedules import decision_of, read_decisions, recalled
from costmodel.target.target import load_target

ROWS = [row for row in read_rows(MEASURED) if row.decision in read_decisions()]


@pytest.mark.parametrize("program", ["1x64 fc10", "32x12x12 c32k3 r c32k3 +0 r", "3x32x32 c16k3 r"])
def test_a_kept_schedule_is_read_back_as_it_was_measured(program: str, tmp_path: Path) -> None:
    row = next(row for row in ROWS if row.program == program)
    target = load_target(row.target)
    conversion, _ = converted(program, target, tmp_path)
    schedule = recalled(read_decisions()[row.decision], conversion.graph, target)
    assert digest(schedule) == row.decision
    again = recalled(decision_of(schedule), conversion.graph, target)
    assert (again.mappings, again.groups) == (schedule.mappings, schedule.groups)


def test_every_kept_schedule_was_measured() -> None:
    measured = {row.decision for row in read_rows(MEASURED)} - {LIBRARY}
    assert set(read_decisions()) <= measured and len(ROWS) >= 20
