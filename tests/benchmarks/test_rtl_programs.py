"""Programs that no coefficient may be fitted to are kept apart."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.fit_clock import samples
from benchmarks.rtl import LIBRARY, MEASURED, read_rows, write_rows
from benchmarks.rtl_programs import FITTED, HELD_OUT, MORE, PROGRAMS, is_held_out, kind_of
from benchmarks.rtl_schedules import SCHEDULES


def test_every_kind_has_programs_to_fit_to_and_others_to_be_judged_by() -> None:
    assert set(FITTED) == set(HELD_OUT)
    assert len(set(MORE) | set(PROGRAMS)) == len(MORE) + len(PROGRAMS)
    assert all(kind_of(text) == kind for kind, texts in HELD_OUT.items() for text in texts)
    assert not any(map(is_held_out, PROGRAMS))


def test_a_fit_sees_no_held_out_program(tmp_path: Path) -> None:
    ours = [row for row in read_rows(MEASURED) if row.decision != LIBRARY and row.target == "gemmini-default"]
    apart = next(row for row in ours if is_held_out(row.program))
    fitted = next(row for row in ours if row.program == "1x64 fc10")
    write_rows(tmp_path / MEASURED.name, [apart, fitted])
    shutil.copy(MEASURED.with_name(SCHEDULES.name), tmp_path)
    for use, row in (("fitted", fitted), ("held-out", apart)):
        found = samples(tmp_path / MEASURED.name, "gemmini-default", use, row.soc)
        assert [(sample.program, sample.cycles) for sample in found] == [(row.program, row.warm)]
