"""doctor, completion, --config, and what people are told about typing errors and time."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml

from fadiff import checkup
from fadiff.cli import cli, main
from fadiff.config_file import with_config
from fadiff.console import Console, duration


def test_doctor_names_what_is_missing_and_what_for(capsys, monkeypatch):
    assert main(["doctor", "--json", "-q"]) == 0
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert found["cc"]["found"] and found["torch"]["found"].startswith("2.") and found["make"]["required"]
    assert "timeloop run" in found["timeloop-model"]["enables"] and found["timeloop-model"]["ok"]
    monkeypatch.setattr(checkup.shutil, "which", lambda program: None)
    assert main(["doctor", "-q"]) == 1
    assert "missing: cc, make" in capsys.readouterr().out


@pytest.mark.parametrize(("asked", "has"), [(">=99", False), (">=1", True)])
def test_a_package_that_is_too_old_is_missing(asked, has, monkeypatch):
    monkeypatch.setattr(
        checkup, "requires", lambda name: [f"numpy{asked}", "no-such-package", 'x; extra == "dev"']
    )
    checks = list(checkup.packages())
    assert [check.ok for check in checks] == [has, False, True]
    assert has or "numpy>=99" in checks[0].remedy


def completed(*words: str) -> list[str]:
    """What bash offers for the last word."""
    line = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    environment = {**os.environ, **line, "_FADIFF_COMPLETE": "bash_complete"}
    command = [sys.executable, "-m", "fadiff"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return [line.partition(",")[2] for line in ended.stdout.splitlines()]


def test_the_shell_completes_commands_options_and_targets(capsys):
    assert main(["completion", "bash"]) == 0
    assert "_FADIFF_COMPLETE=bash_complete" in capsys.readouterr().out
    assert completed("fadiff", "comp") == ["compare", "compile", "completion"]
    assert "gemmini-large" in completed("fadiff", "compile", "--target", "gemmini-l")


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        (["compil", "x.onnx"], "compile"),
        (["compile", "x.onnx", "--taget", "y"], "--target"),
        (["inspect", "x.onnx", "--jsn"], "--json"),
        (["compile", "x.onnx", "--target", "gemini-large"], "did you mean gemmini-large?"),
        (["compile", "resnet.onnx"], "did you mean resnet18.onnx?"),
    ],
)
def test_typing_errors_are_answered_with_what_was_meant(line, meant, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "resnet18.onnx").touch()
    assert main(line) == 2
    assert meant in capsys.readouterr().err


def test_samples_and_benchmarks_suggest(capsys):
    from benchmarks.__main__ import main as benchmark

    assert benchmark(["gemini_auto"]) == 2
    assert "did you mean gemmini_auto?" in capsys.readouterr().err


CONFIG = {
    "target": "gemmini-large",
    "time_budget": 20,
    "no-fusion": True,
    "verify": False,
    "dim": {"batch": 1, "seq": 8},
    "keep-float": ["conv7", "head"],
    "force": False,
}


def test_options_come_from_a_file_and_typed_ones_follow(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text(yaml.safe_dump(CONFIG, sort_keys=False))
    words = with_config(cli, ["compile", "m.onnx", "--config", str(file), "--seed", "3"])
    assert words == [
        *("compile", "--target=gemmini-large", "--time-budget=20", "--no-fusion", "--no-verify"),
        *("--dim=batch=1", "--dim=seq=8", "--keep-float=conv7,head", "m.onnx", "--seed", "3"),
    ]


def test_what_is_typed_wins(tmp_path, capsys):
    file = tmp_path / "options.yaml"
    file.write_text("json: true\n")
    assert main(["targets", "list", "--config", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)
    file.write_text("target: no-such-target\n")
    missing = str(tmp_path / "none.onnx")
    assert main(["compile", missing, "--config", str(file), "--target", "gemmini-small"]) == 2
    assert "none.onnx" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("taget: x\n", "did you mean --target?"),
        ("verify: 3\n", "should be true or false"),
        ("seed: [[1]]\n", "should be a value"),
        ("- target\n", "a mapping of options"),
        ("a: [\n", "options.yaml"),
    ],
)
def test_faults_of_the_file_are_one_line(text, said, tmp_path, capsys):
    file = tmp_path / "options.yaml"
    file.write_text(text)
    assert main(["compile", "m.onnx", "--config", str(file)]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1
    assert main(["compile", "m.onnx", "--config", str(tmp_path / "none.yaml")]) == 2


def test_every_option_of_the_search_can_be_in_the_file(tmp_path):
    file = tmp_path / "options.yaml"
    assert len(cli.commands["compile"].params) > 20
    for option in cli.commands["compile"].params:
        long = next((name for name in option.opts if name.startswith("--")), None)
        if long not in (None, "--config", "--help"):
            file.write_text(f"{long[2:]}: {'true' if getattr(option, 'is_flag', False) else 1}\n")
            assert with_config(cli, ["compile", "--config", str(file)])[1].startswith(long)


def test_progress_says_how_long_it_may_take(monkeypatch, capfd):
    now = [100.0]
    monkeypatch.setattr("fadiff.console.time.monotonic", lambda: now[0])
    console = Console(verbosity=1)
    with console.stage("verifying"):
        now[0] += 30
        console.update("3 of 12 test vectors")
        console.update("12 of 12 test vectors")
    with console.stage("searching", 20):
        now[0] += 5
        console.update("best 1.0")
    said = capfd.readouterr().err
    assert "3 of 12 test vectors, 25 %, about 90 s left" in said and "12 of 12 test vectors, 100 %\n" in said
    assert "best 1.0, 25 %, at most 15 s left" in said
    assert [duration(s) for s in (45, 720, 12600)] == ["45 s", "12 min", "3.5 h"]
