from __future__ import annotations

import os
import re
import subprocess
import sys

import click
import numpy as np
import pytest

import fadiff as package
from fadiff.cli import cli
from fadiff.commands.groups import COMMANDS, OPTIONS
from fadiff.console import Console
from tests.fadiff.models import small_network

HEAVY = ("torch", "onnx", "onnxruntime", "onnxscript", "scipy", "pymoo", "optuna", "matplotlib")


@pytest.mark.parametrize("code", ["import fadiff", "import fadiff.cli"])
def test_heavy_packages_load_on_first_use_only(code):
    probe = f"{code}; import sys; print([m for m in {HEAVY} if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["fadiff.search", "fadiff.converter", "fadiff.emulator.verification"])
def test_onnx_runtime_does_not_report_its_use(package):
    """The switch is read when ONNX Runtime is loaded."""
    probe = f"""
import os, sys
class Watch:
    def find_spec(self, name, *_):
        if name == "onnxruntime":
            print("loaded with", os.environ.get("ORT_DISABLE_TELEMETRY"))
sys.meta_path.insert(0, Watch())
import {package}, onnxruntime
"""
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    run = [sys.executable, "-c", probe]
    ended = subprocess.run(run, capture_output=True, text=True, check=True, env=environment)
    assert ended.stdout.strip() == "loaded with 1"


def test_every_public_name_exists():
    for name in package.__all__:
        assert getattr(package, name) is not None


def test_a_misspelt_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="complie"):
        package.complie  # noqa: B018


def commands(group: click.Group, *names: str) -> list[tuple[str, ...]]:
    """Every command and subcommand."""
    found = []
    for name, command in group.commands.items():
        found.append((*names, name))
        if isinstance(command, click.Group):
            found += commands(command, *names, name)
    return found


@pytest.mark.parametrize("command", commands(cli), ids=" ".join)
def test_every_command_has_help_with_an_example(fadiff, command):
    ended = fadiff(*command, "--help")
    assert ended.code == 0
    assert f"  fadiff {' '.join(command)} " in ended.out, "no example"


def test_help_is_short_and_help_all_has_every_option_in_a_group(fadiff):
    short, full = (fadiff("compile", flag).out for flag in ("--help", "--help-all"))
    assert "--calibration" in short and "--relaxation" not in short
    assert 1.3 * len(short.splitlines()) < len(full.splitlines())
    for option in cli.commands["compile"].params:
        assert not isinstance(option, click.Option) or option.opts[0] in full
    assert re.findall(r"^(\w.*): *$", full, re.MULTILINE) == [
        "Examples",
        *(g for g in OPTIONS if g != "Options"),
    ]
    assert fadiff("compile", "--help").out == short


def test_every_command_is_in_a_group():
    assert {name for names in COMMANDS.values() for name in names} == {*cli.commands}


@pytest.mark.parametrize(
    "words", [("-q", "targets", "list"), ("targets", "-q", "list"), ("targets", "list", "-q")]
)
def test_quiet_before_or_after_the_command(fadiff, words, monkeypatch):
    monkeypatch.setattr(Console, "result", lambda self, text: print(f"verbosity {self.verbosity}"))
    assert "verbosity -1" in fadiff(*words).out


def test_every_option_says_what_it_does():
    for name in commands(cli):
        found: click.Command = cli
        for word in name:
            assert isinstance(found, click.Group)
            found = found.commands[word]
        for option in found.params:
            assert not isinstance(option, click.Option) or option.help, (name, option.opts)


def test_version(fadiff):
    ended = fadiff("--version")
    assert ended.code == 0 and "fadiff" in ended.out


def test_python_m_fadiff_is_the_command():
    run = [sys.executable, "-m", "fadiff"]
    lists = subprocess.run([*run, "targets", "list"], capture_output=True, text=True, check=True)
    assert "gemmini-large" in lists.stdout
    wrong = subprocess.run([*run, "inspect", "missing.onnx"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines()[-1].startswith("error: ") and "missing.onnx" in wrong.stderr


def test_compile_takes_plain_keywords(tmp_path):
    model = small_network(tmp_path / "net.onnx", batch="batch")
    rng = np.random.default_rng(0)
    samples = [{"image": rng.standard_normal((2, 8, 12, 12)).astype(np.float32)} for _ in range(3)]
    result = package.compile(
        model, tmp_path / "out", calibration=samples, dims={"batch": 2}, method="layerwise", time_budget=5
    )
    assert result.document.search.method == "layerwise"
    assert result.document.tensors[0].shape[0] == 2
    assert not any("no calibration data" in note for note in result.document.conversion.notes)
    with pytest.raises(TypeError, match="did you mean time_budget"):
        package.compile(model, tmp_path / "other", time_buget=5)


def test_objects_and_zeros_as_calibration_are_called_that(tmp_path):
    model = small_network(tmp_path / "net.onnx")
    np.savez(tmp_path / "zero.npz", image=np.zeros((4, 1, 8, 12, 12), np.float32))
    with pytest.raises(package.ModelError, match="zero everywhere"):
        package.compile(model, tmp_path / "out", calibration=tmp_path / "zero.npz")
    np.savez(tmp_path / "object.npz", image=np.array([{}], object))
    with pytest.raises(package.ModelError, match="image is an array of Python objects"):
        package.compile(model, tmp_path / "out", calibration=str(tmp_path / "object.npz"))
