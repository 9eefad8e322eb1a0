from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys

import pytest

from fadiff.workers import WorkerDied, workers
from tests.fadiff.models import design_space
from tests.fadiff.sessions import running_in_session, wait_until

SPACE = """
base: gemmini-small
vary:
  side: [8, 16]
  bandwidth.dram_bytes: [4, 16]
  last_level_cache_bytes: [1024]
search: {method: layerwise}
"""


_FIVE = ("side", "scratchpad_bytes", "scratchpad_banks", "accumulator_bytes", "max_bytes")


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_design_and_what_it_reaches(fadiff, tmp_path, model, jobs):
    table = tmp_path / "sweep.csv"
    ended = fadiff("sweep", design_space(tmp_path, SPACE), model, "--jobs", jobs, "-o", table, "--json", "-q")
    assert ended.code == 0, ended.err
    rows = json.loads(ended.out)
    assert [(r["side"], r["bandwidth.dram_bytes"]) for r in rows] == [(8, 4), (8, 16), (16, 4), (16, 16)]
    by_design = {(r["side"], r["bandwidth.dram_bytes"]): r for r in rows}
    for side in (8, 16):
        slow, fast = by_design[side, 4], by_design[side, 16]
        assert fast["latency_cycles"] < slow["latency_cycles"], "more bandwidth must not be slower"
    with table.open() as file:
        written = list(csv.DictReader(file))
    assert [float(r["edp_uj_cycles"]) for r in written] == [r["edp_uj_cycles"] for r in rows]


def test_a_design_that_cannot_exist_is_a_row_with_its_reason(fadiff, tmp_path, model):
    text = "base: gemmini-small\nvary: {side: [12, 16]}\nsearch: {method: layerwise}\n"
    ended = fadiff("sweep", design_space(tmp_path, text), model, "--json", "-q")
    rows = json.loads(ended.out)
    assert ended.code == 0
    assert rows[0]["edp_uj_cycles"] is None and "power of two" in rows[0]["problem"]
    assert rows[1]["edp_uj_cycles"] > 0


def test_a_design_that_is_too_small_is_a_row_with_its_reason(fadiff, tmp_path, model):
    vary = "vary: {scratchpad_bytes: [16], scratchpad_banks: [1]}"
    text = f"base: gemmini-small\n{vary}\nsearch: {{method: layerwise}}\n"
    rows = json.loads(fadiff("sweep", design_space(tmp_path, text), model, "--json", "-q").out)
    assert rows[0]["edp_uj_cycles"] is None and "fits" in rows[0]["problem"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("base: gemmini-small\n", "vary"),
        ("base: gemmini-small\nvary: {sied: [8]}\n", "sied"),
        ("base: gemmini-small\nvary: {side: []}\n", "side"),
        ("base: gemmini-huge\nvary: {side: [8]}\n", "gemmini-huge"),
        ("base: gemmini-small\nvary: {side: [8]}\nsearch: {speed: 9}\n", "speed"),
        ("base: gemmini-small\nvary: {side: [8]}\nsearch: {latency: clock}\n", "latency"),
        (
            "base: gemmini-small\nvary: {side: [8]}\nsearch: {method: magic}\n",
            "search.method: 'magic' is not one of",
        ),
        ("base: gemmini-small\nvary: {side: [8]}\nsearch: {time_budget: -1}\n", "search.time_budget: -1"),
        (
            "base: gemmini-small\nvary: {side: [8]}\nsearch: {fusion: 7}\n",
            "search.fusion: 7 is not true or false",
        ),
        ("base: gemmini-small\nvary: {side: [8]}\nsearch: {method: [a]}\n", "search.method: should be one"),
        (
            f"base: gemmini-small\nvary: { {field: list(range(1, 61)) for field in _FIVE} }\n",
            "777,600,000 combinations",
        ),
        ("base: [\n", "not YAML"),
    ],
)
def test_a_wrong_space_is_one_line(fadiff, tmp_path, model, text, says):
    ended = fadiff("sweep", design_space(tmp_path, text), model, "-q")
    assert ended.code == 2 and says in ended.err and ended.err.count("\n") == 1


def test_the_csv_needs_a_folder_before_the_search(fadiff, tmp_path, model):
    ended = fadiff("sweep", design_space(tmp_path, SPACE), model, "-q", "-o", tmp_path / "no" / "sweep.csv")
    assert ended.code == 2 and "there is no folder" in ended.err


def test_no_dask_scheduler(fadiff, tmp_path, model):
    ended = fadiff("sweep", design_space(tmp_path, SPACE), model, "--cluster", "tcp://127.0.0.1:9", "-q")
    assert ended.code == 2 and "--cluster" in ended.err


def test_a_search_that_fails_is_a_row_with_its_error(fadiff, tmp_path, model, monkeypatch):
    """Also with a bug of ours: the other designs keep what they found."""
    from fadiff import search

    real = search.find_schedule

    def sometimes(graph, target, *rest, **more):
        if target.side == 8:
            raise KeyError("surprise")
        return real(graph, target, *rest, **more)

    monkeypatch.setattr(search, "find_schedule", sometimes)
    ended = fadiff(
        "sweep", design_space(tmp_path, SPACE), model, "--json", "-q", "-o", tmp_path / "sweep.csv"
    )
    rows = json.loads(ended.out)
    assert ended.code == 0 and "2 of 4 points ended with an internal error" in ended.err
    assert ["surprise" in row["problem"] for row in rows] == [True, True, False, False]
    assert [row["edp_uj_cycles"] is None for row in rows] == [True, True, False, False]


def test_an_energy_without_end_is_a_row(fadiff, tmp_path, model):
    text = "base: gemmini-small\nvary: {energy.mac: [1, .inf]}\nsearch: {method: layerwise}\n"
    ended = fadiff("sweep", design_space(tmp_path, text), model, "--json", "-q")
    rows = json.loads(ended.out)
    assert ended.code == 0 and rows[0]["edp_uj_cycles"] > 0 and "finite" in rows[1]["problem"]


def test_a_sweep_goes_on_where_it_was_killed(fadiff, tmp_path, model):
    """kill -9 after the second row: what was found stays, is not searched again, and nobody is left."""
    table, described = tmp_path / "sweep.csv", design_space(tmp_path, SPACE)
    script = f"""
import os, signal, sys
from fadiff import sweep_table
from fadiff.cli import main
add = sweep_table.SweepTable.add
def deadly(table, key, row):
    add(table, key, row)
    if len(table.rows) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
sweep_table.SweepTable.add = deadly
if __name__ == "__main__":
    main(["sweep", {str(described)!r}, {str(model)!r}, "--jobs", "2", "-o", {str(table)!r}, "-q"])
"""
    (tmp_path / "killed.py").write_text(script)
    killed = subprocess.Popen([sys.executable, str(tmp_path / "killed.py")], start_new_session=True)
    assert killed.wait(120) == -signal.SIGKILL
    kept = table.read_text().splitlines()
    assert len(kept) == 3
    wait_until(lambda: not running_in_session(killed.pid))  # the workers end by themselves
    with table.open("a") as file:
        file.write("small,16,half a line")
    ended = fadiff("sweep", described, model, "-o", table, "--json")
    assert ended.code == 0 and "2 of 4 points already" in ended.err
    rows = json.loads(ended.out)
    assert all(row["edp_uj_cycles"] > 0 for row in rows)
    lines = table.read_text().splitlines()
    assert len(lines) == 5 and set(kept) <= set(lines)
    again = fadiff("sweep", described, model, "-o", table, "--json")
    assert json.loads(again.out) == rows and "converting" not in again.err
    assert table.read_text().splitlines() == lines


def test_another_file_is_not_completed(fadiff, tmp_path, model):
    for text in ("years of work", "years\nof work\n"):
        table = tmp_path / "sweep.csv"
        table.write_text(text)
        ended = fadiff("sweep", design_space(tmp_path, SPACE), model, "-o", table, "-q")
        assert ended.code == 2 and "--force" in ended.err and table.read_text() == text
    assert fadiff("sweep", design_space(tmp_path, SPACE), model, "-o", table, "-q", "--force").code == 0
    assert len(table.read_text().splitlines()) == 5


def test_a_process_that_dies_costs_one_point(tmp_path):
    with workers(2, None) as submit:
        ended = dict(submit(_deadly, [(i,) for i in range(5)]))
    assert {i: result for i, result in ended.items() if i not in (1, 3)} == {0: 0, 2: 20, 4: 40}
    assert isinstance(ended[1], WorkerDied) and isinstance(ended[3], ValueError)


def _deadly(number: int) -> int:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 3:
        raise ValueError("three")
    return 10 * number
