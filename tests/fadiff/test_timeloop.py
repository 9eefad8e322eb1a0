"""`fadiff timeloop` and Timeloop files given to `fadiff evaluate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fadiff.costmodel.schedule.serialize import write_document
from fadiff.emitters.timeloop import emit
from fadiff.solved import describe
from tests.emitters.timeloop.examples import HAND, KNOWN, MAPPING, PROBLEM, hand_schedule, program
from tests.fadiff.models import small_network


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """What `fadiff compile` would leave for the hand-written layer."""
    out = tmp_path / "out"
    schedule = hand_schedule()
    emit(schedule, out / "timeloop")
    write_document(describe(schedule), out / "schedule.json")
    return out


def test_run_compares_and_exits_0(fadiff, compiled, tmp_path):
    model = program(tmp_path / "model", f'cp {KNOWN} "$out/timeloop-model.stats.txt"')
    ended = fadiff("timeloop", "run", compiled, "--timeloop-model", model, "--accesses", "-q")
    assert ended.code == 0, ended.err
    assert "1 problems: 1 equal" in ended.out
    assert ended.out.count("Outputs") == 4  # accumulator and DRAM, read and written
    ended = fadiff("timeloop", "run", compiled, "--timeloop-model", model, "--json", "-q")
    (row,) = json.loads(ended.out)
    assert row["status"] == "equal"
    assert row["cycles"] == {"predicted": 288, "timeloop": 288}
    counted = {(a["level"], a["tensor"], a["access"]): a["timeloop"] for a in row["accesses"]}
    assert counted["DRAM", "Outputs", "writes"] == HAND.accesses["DRAM", "Outputs"][1]


def test_run_exits_1_when_timeloop_disagrees(fadiff, compiled, tmp_path):
    model = program(
        tmp_path / "model", f"sed 's/^Cycles: 288/Cycles: 289/' {KNOWN} > $out/timeloop-model.stats.txt"
    )
    ended = fadiff("timeloop", "run", compiled, "--timeloop-model", model, "-q")
    assert ended.code == 1
    assert "1 problems: 1 differs" in ended.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--timeloop-model", "/no/such/model"), "/no/such/model: no such program"),
        ((), "timeloop-model is not on PATH: install Timeloop, or give --timeloop-model PATH"),
    ],
)
def test_run_needs_a_binary(fadiff, compiled, monkeypatch, arguments, message):
    monkeypatch.setenv("PATH", "/nowhere")
    ended = fadiff("timeloop", "run", compiled, "-q", *arguments)
    assert (ended.code, ended.err) == (2, f"error: {message}\n")


def test_run_needs_timeloop_files(fadiff, compiled, tmp_path):
    (compiled / "timeloop" / "index.yaml").unlink()
    ended = fadiff("timeloop", "run", compiled, "--timeloop-model", "/bin/true", "-q")
    assert ended.code == 2
    assert "index.yaml: cannot read: No such file or directory; compile the model first" in ended.err


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    mapping, problem = tmp_path / "m.yaml", tmp_path / "p.yaml"
    mapping.write_text(MAPPING)
    problem.write_text(PROBLEM)
    return mapping, problem


def test_evaluate_finds_what_timeloop_finds(fadiff, files):
    mapping, problem = files
    ended = fadiff(
        "evaluate",
        "--timeloop-mapping",
        mapping,
        "--timeloop-problem",
        problem,
        "--target",
        "gemmini-small",
        "--json",
    )
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    assert result["profile"] == "dosa"
    assert result["latency_cycles"] == HAND.cycles
    assert result["energy_pj"] == pytest.approx(HAND.energy_pj, rel=1e-9)


def test_evaluate_refuses_a_mapping_that_does_not_fit(fadiff, files):
    mapping, problem = files
    mapping.write_text(MAPPING.replace("K=2 C=2", "K=1 C=2").replace("K=16", "K=32"))
    ended = fadiff(
        "evaluate", "--timeloop-mapping", mapping, "--timeloop-problem", problem, "--target", "gemmini-small"
    )
    assert ended.code == 2
    where, what = f"{mapping}:9: mapping[7].factors: Scratchpad spatial", "32 columns unrolled"
    assert ended.err == f"error: {where}: {what}, target gemmini-small has 16\n"


@pytest.mark.parametrize("given", [[], ["--timeloop-mapping"], ["--timeloop-mapping", "--timeloop-problem"]])
def test_evaluate_needs_mapping_problem_and_target(fadiff, files, given):
    arguments = [part for option, path in zip(given, files, strict=False) for part in (option, path)]
    ended = fadiff("evaluate", *arguments)
    assert ended.code == 2
    assert "give SCHEDULE.json, or --timeloop-mapping, --timeloop-problem and --target together" in ended.err


def test_import_puts_a_mapping_into_a_schedule(fadiff, compiled, tmp_path):
    mapping = tmp_path / "better.yaml"
    # K=2 moves below DRAM: Inputs are then read from DRAM once (256 words less).
    text = MAPPING.replace("K=2 C=2", "K=1 C=2")
    mapping.write_text(text.replace('"N=1 K=1 C=1 P=2 Q=1 R=1 S=1"', '"N=1 K=2 C=1 P=2 Q=1 R=1 S=1"'))
    new = tmp_path / "new.json"
    ended = fadiff("timeloop", "import", compiled / "schedule.json", f"layer={mapping}", "-o", new)
    assert ended.code == 0, ended.err
    assert "1 of 1 mappings replaced" in ended.out
    before, after = (
        json.loads(fadiff("evaluate", path, "--json").out)["layers"][0]["dram_bytes"]
        for path in (compiled / "schedule.json", new)
    )
    assert (before, after) == (2304, 2304 - 256)
    again = fadiff("timeloop", "import", compiled / "schedule.json", f"layer={mapping}", "-o", new)
    assert again.code == 2 and "already exists" in again.err


def test_import_says_why_what_fits_by_timeloops_rules_does_not(fadiff, tmp_path):
    # 32 x 32 weights in blocks of one column: 1024 of Timeloop's 8192 words, but a row each of Gemmini's 512.
    schedule = hand_schedule("hw")
    write_document(describe(schedule), tmp_path / "schedule.json")
    mapping = tmp_path / "narrow.yaml"
    text = MAPPING.replace("K=2 C=2", "K=1 C=1").replace("K=16", "K=1")
    mapping.write_text(text.replace('"N=1 K=1 C=1 P=2 Q=1 R=1 S=1"', '"N=1 K=32 C=2 P=2 Q=1 R=1 S=1"'))
    ended = fadiff(
        "timeloop", "import", tmp_path / "schedule.json", f"layer={mapping}", "-o", tmp_path / "new.json"
    )
    assert ended.code == 2
    assert f"{mapping}: layer: scratchpad overflows" in ended.err and "whole rows" in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("other=m.yaml", "no layer 'other' to map: choose one of layer"),
        ("m.yaml", "'m.yaml': write LAYER=MAP.yaml"),
    ],
)
def test_import_names_what_is_wrong(fadiff, compiled, tmp_path, argument, message):
    ended = fadiff("timeloop", "import", compiled / "schedule.json", argument, "-o", tmp_path / "new.json")
    assert ended.code == 2
    assert message in ended.err
    assert not (tmp_path / "new.json").exists()


def test_compile_writes_the_dialects_asked_for(fadiff, tmp_path):
    model = small_network(tmp_path / "net.onnx")
    out = tmp_path / "out"
    options = (
        "--method",
        "exact",
        "--profile",
        "dosa",
        "--timeloop-dialect",
        "both",
        "--timeloop-hyphens",
        "-q",
    )
    ended = fadiff("compile", model, "--out", out, *options)
    assert ended.code == 0, ended.err
    assert "word-bits:" in (out / "timeloop" / "arch.yaml").read_text()
    assert "!Component" in (out / "timeloop" / "frontend" / "arch.yaml").read_text()
