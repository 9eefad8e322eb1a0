"""Schedules kept with their measurements are those that were measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.fit_issue import timed_layers
from benchmarks.rtl import DEFAULT, FITTED_SOC, LIBRARY, MEASURED, OTHER_SOC, converted, digest, read_rows
from benchmarks.rtl_networks import DECODER_STEP
from benchmarks.rtl_schedules import SCHEDULES, decision_of, read_decisions, recalled
from fadiff.costmodel.target.target import load_target

KEPT = read_decisions()
ROWS = [row for row in read_rows(MEASURED) if row.decision in KEPT]
NETWORKS = Path(__file__).parents[2] / "benchmarks" / "whole_networks"


@pytest.mark.parametrize(
    "program", ["64x14x14 c128k3s2", "24x14x14 c96k1 r dw3 r c24k1 +0", "32x14x14 dw3 r c64k1 r"]
)
def test_a_kept_schedule_is_read_back_as_it_was_measured(program: str, tmp_path: Path) -> None:
    row = next(row for row in ROWS if row.program == program)
    target = load_target(row.target)
    conversion, _ = converted(program, target, tmp_path)
    schedule = recalled(KEPT[row.decision], conversion.graph, target)
    assert digest(schedule) == row.decision
    again = recalled(decision_of(schedule), conversion.graph, target)
    assert (again.mappings, again.groups) == (schedule.mappings, schedule.groups)
    assert again.additions == schedule.additions


def test_the_schedule_of_a_whole_network_is_read_back(tmp_path: Path) -> None:
    decisions = read_decisions(NETWORKS / SCHEDULES.name)
    rows = [row for row in read_rows(NETWORKS / MEASURED.name) if row.decision in decisions]
    assert {row.decision for row in rows} == set(decisions)
    (row,) = (row for row in rows if (row.soc, row.program) == (FITTED_SOC, DECODER_STEP))
    target = load_target(row.target)
    conversion, _ = converted(DECODER_STEP, target, tmp_path)
    found = decision_of(recalled(decisions[row.decision], conversion.graph, target))
    kept = json.dumps(decisions[row.decision]["mappings"])  # with calls of gemmini.h, which are read as loops
    assert json.dumps(found["mappings"]) == kept.replace("tiled_matmul", "loop_ws")


def test_every_kept_schedule_was_measured() -> None:
    measured = {row.decision for row in read_rows(MEASURED)} - {LIBRARY}
    layers = {line["decision"] for line in timed_layers()}
    assert measured <= set(KEPT) <= measured | layers and len(ROWS) >= 50


def test_every_timed_layer_has_its_schedule() -> None:
    kept = KEPT.keys() | read_decisions(NETWORKS / SCHEDULES.name).keys()
    assert {line["decision"] for line in timed_layers()} <= kept


def test_a_program_has_one_default_form_on_an_soc() -> None:
    for path in (MEASURED, NETWORKS / MEASURED.name):
        rows = [row for row in read_rows(path) if row.form in (DEFAULT, LIBRARY)]
        assert len({(row.soc, row.target, row.program, row.form) for row in rows}) == len(rows)
        assert all((row.form == LIBRARY) == (row.decision == LIBRARY) for row in rows)


def test_the_table_of_whole_networks_is_what_was_measured() -> None:
    page = Path(__file__).parents[2] / "docs" / "gemmini-h.md"
    found = re.findall(r"^\| ([a-z\d-]+) \|((?: [\d,]+ \|){4}) ([\d.]+) \|", page.read_text(), re.MULTILINE)
    rows = {
        (row.program, row.decision == LIBRARY): row
        for row in read_rows(NETWORKS / MEASURED.name)
        if (row.soc, row.target) == (FITTED_SOC, "gemmini-default")
    }
    assert found
    for network, cells, ratio in found:
        ours, library = rows[network, False], rows[network, True]
        cycles = [int(cell.replace(",", "")) for cell in cells.split("|")[:-1]]
        assert cycles == [ours.cold, ours.warm, library.cold, library.warm]
        assert float(ratio) == round(ours.warm / library.warm, 2)


def test_the_table_of_realisations_is_what_was_measured() -> None:
    page = Path(__file__).parents[2] / "docs" / "realisations.md"
    found = re.findall(
        r"^\| [\w ]+ \| `([^`]+)` \| ([\d,]+|-) \| ([\d,]+) \|", page.read_text(), re.MULTILINE
    )
    rows = {(row.program, f"{row.warm:,}") for row in read_rows(MEASURED) if row.soc == OTHER_SOC}
    assert len(found) >= 9
    assert all({(name, cycles) for cycles in ones if cycles != "-"} <= rows for name, *ones in found)
