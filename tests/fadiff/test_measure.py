"""`fadiff measure`: the firmware prints a profile, the command reads it, report and evaluate show it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import yaml

from benchmarks.rtl_steps import model as described
from fadiff.cli import main
from fadiff.folder import OutputFolder
from tests.fadiff.models import small_network


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measure")
    model = small_network(folder / "small.onnx")
    out = folder / "out"
    options = ["--target", "gemmini-small", "--method", "exact", "-q", "--out", str(out)]
    assert main(["compile", str(model), *options]) == 0
    return out


@pytest.fixture(scope="module")
def log(compiled: Path) -> str:
    """The console of the real main.c, on the functional model's estimated cycles."""
    firmware = compiled / "firmware"
    subprocess.run(
        ["make", "-C", firmware, "host", "WARNINGS=-Wall -Wextra -Werror -DFADIFF_PROFILE"],
        check=True,
        capture_output=True,
        env=host_environment(),
    )
    (program,) = firmware.glob("*.host")
    ran = subprocess.run([program], check=True, capture_output=True, text=True)
    program.unlink()
    return ran.stdout


def host_environment() -> dict[str, str]:
    return {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(Path(__file__).parents[2])}


def layer_lines(log: str) -> list[tuple[int, int, int]]:
    found = re.findall(r"fadiff-layer (\d+) (\d+) (\d+)", log)
    return [(int(index), int(calls), int(cycles)) for index, calls, cycles in found]


def test_the_firmware_prints_every_layer_and_still_checks_its_outputs(compiled, log):
    names = [layer.name for layer in OutputFolder(compiled).document.layers]
    rows = layer_lines(log)
    assert [index for index, _, _ in rows] == list(range(len(names)))
    assert all(calls >= 1 for _, calls, _ in rows)
    whole = int(re.search(r"fadiff-run layers (\d+)", log)[1])
    assert 0 < sum(cycles for _, _, cycles in rows) <= whole
    assert "all outputs agree" in log


def test_measured_beside_predicted(fadiff, compiled, log, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(compiled, out)
    kept = tmp_path / "console.txt"
    kept.write_bytes(b"\xffboot\r\n" + log.replace("\n", "\r\n").encode())
    ended = fadiff("measure", out, "--log", kept, "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    document = OutputFolder(out).document
    assert found["warm"] == int(re.search(r"fadiff-run warm (\d+)", log)[1])
    assert found["error"] == pytest.approx(document.totals.clock_cycles / found["warm"] - 1)
    for row, layer, (_, _, cycles) in zip(found["layers"], document.layers, layer_lines(log), strict=True):
        assert (row["name"], row["measured"]) == (layer.name, cycles)
        assert row["predicted"] == layer.cost.clock_cycles
    assert "Measured on hardware" in (out / "report.html").read_text()
    shown = fadiff("evaluate", out / "schedule.json").out
    assert f"{found['warm']:,} cycles" in shown


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("verify/result.json", {"layers": 7}, "no verification: run fadiff verify again"),
        ("measured.json", {"warm": "soon"}, "no measurement: run fadiff measure again"),
        ("firmware/memory_map.json", {"symbols": {}}, "symbols.arena: Field required"),
    ],
)
def test_results_that_are_none_of_ours_are_named(fadiff, compiled, tmp_path, name, change, says):
    """Edited by hand, or of another version: one line, no traceback out of the report."""
    out = tmp_path / "out"
    shutil.copytree(compiled, out)
    path = out / name
    kept = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**kept, **change}))
    ended = fadiff("report", out, "-q")
    assert ended.code == 2 and says in ended.err and str(path) in ended.err and ended.err.count("\n") == 1


def test_a_command_is_run_on_the_program(fadiff, compiled, log, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(compiled, out)
    elf, console = tmp_path / "a program.elf", tmp_path / "console.txt"
    elf.write_bytes(b"")
    console.write_text(log)
    command = f"sh -c 'test -f \"$1\" && cat {console}; exit 3' - {{elf}}"
    ended = fadiff("measure", out, "--run", command, "--elf", elf, "--unit", "instructions")
    assert ended.code == 0, ended.err
    assert "instructions are what the core retired" in ended.out
    assert OutputFolder(out).measured().unit == "instructions"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda log: "nothing", "no line 'fadiff-profile'"),
        (lambda log: log.replace("fadiff-profile end", ""), "breaks off before 'fadiff-profile end'"),
        (lambda log: re.sub(r"fadiff-layer 2 .*\n", "", log), "lines are missing"),
        (lambda log: re.sub(r"(fadiff-profile 1 \w+ ).*", r"\g<1>" + 64 * "0", log), "of another model"),
    ],
)
def test_logs_that_are_no_measurement(fadiff, compiled, log, tmp_path, change, message):
    kept = tmp_path / "console.txt"
    kept.write_text(change(log))
    ended = fadiff("measure", compiled, "--log", kept)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err and str(kept) in ended.err
    assert not OutputFolder(compiled).measurement.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--run"),
        (("--run", "true {elf}"), "--gemmini-root"),
        (("--run", "true", "--elf", __file__), "no {elf}"),
        (("--run", "/no/simulator {elf}", "--elf", __file__), "/no/simulator: no such program"),
        (
            ("--run", "sh -c 'sleep 9' {elf}", "--elf", __file__, "--timeout", "0.1"),
            "give a longer --timeout",
        ),
    ],
)
def test_what_cannot_run(fadiff, compiled, arguments, message):
    ended = fadiff("measure", compiled, *arguments)
    assert ended.code == 2
    assert message in ended.err


def test_calibrate_fits_a_target_to_what_was_measured(fadiff, compiled, log, tmp_path):
    out, mine = tmp_path / "out", tmp_path / "mine.yaml"
    shutil.copytree(compiled, out)
    kept = tmp_path / "console.txt"
    kept.write_text(log)
    assert fadiff("measure", out, "--log", kept).code == 0
    few = fadiff("targets", "calibrate", "gemmini-small", out, "-o", mine)
    assert few.code == 2 and "layers of different work, at least 12" in few.err and str(out) in few.err
    other = fadiff("targets", "calibrate", "gemmini-large", out, "-o", mine)
    assert other.code == 2 and "side is 16, but 32 in gemmini-large" in other.err
    nothing = fadiff("targets", "calibrate", "gemmini-small", compiled, "-o", mine)
    assert nothing.code == 2 and f"run fadiff measure {compiled}" in nothing.err
    assert not mine.exists()


def test_a_calibrated_target_predicts_slower_hardware(fadiff, tmp_path):
    widths = (12, 20, 36, 7, 40, 24, 9, 33, 16, 48, 11, 28, 5, 64)
    onnx.save(described("8x6x6 " + " ".join(f"c{width}k1" for width in widths)), tmp_path / "chain.onnx")
    out, mine = tmp_path / "out", tmp_path / "mine.yaml"
    run = "compile", tmp_path / "chain.onnx", "--target"
    options = ("--no-fusion", "--no-residency", "--method", "exact", "-q", "--out")
    assert fadiff(*run, "gemmini-small", *options, out).code == 0
    layers = OutputFolder(out).document.layers
    lines = [f"fadiff-layer {i} 1 {round(3 * layer.cost.clock_cycles)}" for i, layer in enumerate(layers)]
    total = sum(int(line.split()[-1]) for line in lines)
    runs = [f"fadiff-run {run} {total}" for run in ("cold", "warm", "layers")]
    log = "\n".join(["fadiff-profile 1 chain unknown", *runs, *lines, "fadiff-profile end"])
    (tmp_path / "console.txt").write_text(log)
    assert fadiff("measure", out, "--log", tmp_path / "console.txt").code == 0
    ended = fadiff("targets", "calibrate", "gemmini-small", out, "-o", mine)
    assert ended.code == 0, ended.err
    assert "before  median error 66.7 %" in ended.out
    assert fadiff("targets", "calibrate", "gemmini-small", out, "-o", mine).code == 2, "overwrites"
    again = tmp_path / "again"
    assert fadiff(*run, mine, *options, again).code == 0
    totals = OutputFolder(again).document.totals
    assert totals.clock_cycles == pytest.approx(total, rel=0.1)
    assert "on this hardware, 14 layers" in totals.clock_error
    assert yaml.safe_load(mine.read_text())["engines"]["calibration"]["layers"] == 14


def test_a_simulator_that_fails_is_quoted(fadiff, compiled, tmp_path):
    elf = tmp_path / "program.elf"
    elf.write_bytes(b"")
    command = "sh -c 'echo booting; echo bad memory map >&2; exit 7' {elf}"
    ended = fadiff("measure", compiled, "--run", command, "--elf", elf, "-q")
    assert ended.code == 2
    assert "sh ended with exit status 7 and said: bad memory map" in ended.err


def test_a_program_that_is_built_again_is_kept(fadiff, compiled, log, tmp_path):
    """Another memory map, say; a `make` that writes what it is told stands for the cross compiler."""
    out, made, console = tmp_path / "out", tmp_path / "bin" / "make", tmp_path / "console.txt"
    shutil.copytree(compiled, out)
    console.write_text(log)
    made.parent.mkdir()
    made.write_text('#!/bin/sh\nprintf "$RISCV_FLAGS" > "$2/small_profile.elf"\n')
    made.chmod(0o755)
    run = ("measure", out, "--gemmini-root", tmp_path, "--run", f"cat {console} {{elf}}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{made.parent}:{os.environ['PATH']}")
        patch.setenv("RISCV_FLAGS", "mine")
        assert "built again" not in fadiff(*run).err
        assert "built again" not in fadiff(*run).err
        patch.setenv("RISCV_FLAGS", "other")
        assert "the one before is" in fadiff(*run).err
    assert (out / "firmware" / "small_profile.elf").read_text() == "other"
    assert (out / "firmware" / "small_profile.elf.before").read_text() == "mine"
