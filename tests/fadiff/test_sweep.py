from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.fadiff.models import small_network

SPACE = """
base: gemmini-small
vary:
  side: [8, 16]
  bandwidth.dram_bytes: [4, 16]
search: {method: layerwise}
"""


@pytest.fixture
def model(tmp_path) -> Path:
    return small_network(tmp_path / "small.onnx")


def space(tmp_path: Path, text: str = SPACE) -> Path:
    path = tmp_path / "space.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_design_and_what_it_reaches(fadiff, tmp_path, model, jobs):
    table = tmp_path / "sweep.csv"
    ended = fadiff("sweep", space(tmp_path), model, "--jobs", jobs, "-o", table, "--json", "-q")
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
    ended = fadiff("sweep", space(tmp_path, text), model, "--json", "-q")
    rows = json.loads(ended.out)
    assert ended.code == 0
    assert rows[0]["edp_uj_cycles"] is None and "power of two" in rows[0]["problem"]
    assert rows[1]["edp_uj_cycles"] > 0


def test_a_design_that_is_too_small_is_a_row_with_its_reason(fadiff, tmp_path, model):
    vary = "vary: {scratchpad_bytes: [16], scratchpad_banks: [1]}"
    text = f"base: gemmini-small\n{vary}\nsearch: {{method: layerwise}}\n"
    rows = json.loads(fadiff("sweep", space(tmp_path, text), model, "--json", "-q").out)
    assert rows[0]["edp_uj_cycles"] is None and "fits" in rows[0]["problem"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("base: gemmini-small\n", "vary"),
        ("base: gemmini-small\nvary: {sied: [8]}\n", "sied"),
        ("base: gemmini-small\nvary: {side: []}\n", "side"),
        ("base: gemmini-huge\nvary: {side: [8]}\n", "gemmini-huge"),
        ("base: gemmini-small\nvary: {side: [8]}\nsearch: {speed: 9}\n", "speed"),
        ("base: gemmini-small\nvary: {side: [8]}\nsearch: {prefetch: true}\n", "prefetch"),
        (
            "base: gemmini-small\nvary: {side: [8]}\nsearch: {method: magic}\n",
            "search.method: 'magic' is not one of",
        ),
        ("base: gemmini-small\nvary: {side: [8]}\nsearch: {time_budget: -1}\n", "search.time_budget: -1"),
        (
            "base: gemmini-small\nvary: {side: [8]}\nsearch: {fusion: 7}\n",
            "search.fusion: 7 is not true or false",
        ),
        ("base: [\n", "not YAML"),
    ],
)
def test_a_wrong_space_is_one_line(fadiff, tmp_path, model, text, says):
    ended = fadiff("sweep", space(tmp_path, text), model, "-q")
    assert ended.code == 2 and says in ended.err and ended.err.count("\n") == 1


def test_the_csv_needs_a_folder_before_the_search(fadiff, tmp_path, model):
    ended = fadiff("sweep", space(tmp_path), model, "-q", "-o", tmp_path / "no" / "sweep.csv")
    assert ended.code == 2 and "there is no folder" in ended.err


def test_no_dask_scheduler(fadiff, tmp_path, model):
    ended = fadiff("sweep", space(tmp_path), model, "--cluster", "tcp://127.0.0.1:9", "-q")
    assert ended.code == 2 and "--cluster" in ended.err
