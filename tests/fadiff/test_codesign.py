from __future__ import annotations

import csv
import json

import pytest

from fadiff.costmodel.target.params_header import target_from_header
from fadiff.costmodel.target.target import load_target
from tests.fadiff.models import design_space

SPACE = """
base: gemmini-small
vary:
  side: [8, 16]
  scratchpad_bytes: [8192, 16384]
  accumulator_bytes: [4096, 8192]
  bandwidth.dram_bytes: [4, 8]
area: {dram_byte: 0.01}
search: {method: layerwise}
"""


def test_the_best_design_and_all_that_were_tried(fadiff, tmp_path, model):
    out = tmp_path / "best"
    run = (
        "codesign",
        model,
        "--space",
        design_space(tmp_path, SPACE),
        "--area",
        0.9,
        "--seconds",
        60,
        "--method",
        "sweep",
    )
    ended = fadiff(*run, "-o", out, "--json", "-q")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    with (out / "designs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == found["tried"] > 5
    least = min(rows, key=lambda row: float(row["edp_uj_cycles"]))
    best = found["best"]
    assert (
        float(least["edp_uj_cycles"]) == best["edp_uj_cycles"] == best["energy_uj"] * best["latency_cycles"]
    )
    assert max(float(row["area_mm2"]) for row in rows) <= 0.9
    assert sum(row["pareto"] == "True" for row in rows) == len(found["pareto"])
    target = load_target(out / "target.yaml")
    assert (target.side, target.scratchpad_bytes, target.accumulator_bytes) == tuple(
        best[name] for name in ("side", "scratchpad_bytes", "accumulator_bytes")
    )
    header = target_from_header(out / "gemmini_params.h", "header")
    for name in ("side", "scratchpad_bytes", "scratchpad_banks", "accumulator_bytes", "has_row_packing"):
        assert getattr(header, name) == getattr(target, name)
    scala = (out / "GemminiConfig.scala").read_text()
    assert f"meshRows = {target.side}," in scala
    assert f"sp_capacity = CapacityInKilobytes({target.scratchpad_bytes // 1024})," in scala
    assert "<svg" in (out / "pareto.svg").read_text() and (out / "pareto.svg").read_text().count(
        "<circle"
    ) == len(rows)
    again = fadiff(*run, "-o", out, "-q")
    assert again.code == 2 and "already exists" in again.err


@pytest.mark.parametrize(
    ("text", "area", "says"),
    [
        (SPACE, 0.1, "the smallest has 0."),
        ("base: gemmini-small\nvary: {max_bytes: [32]}\n", 1, "vary.max_bytes: codesign chooses only side"),
        ("base: gemmini-small\nvary: {side: [8.5]}\n", 1, "vary.side: 8.5 is no positive whole number"),
        ("base: gemmini-small\nvary: {side: [12]}\n", 1, "no combination is a Gemmini"),
        ("base: gemmini-small\nvary: {side: [8]}\narea: {dram: 1}\n", 1, "dram"),
    ],
)
def test_a_wrong_space_is_one_line(fadiff, tmp_path, model, text, area, says):
    ended = fadiff("codesign", model, "--space", design_space(tmp_path, text), "--area", area, "-q")
    assert ended.code == 2 and says in ended.err and ended.err.count("\n") == 1
