"""The trained samples: int8 keeps their answers, and equal seeds give equal weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from fadiff.cli import cli, main
from fadiff.samples import digits
from fadiff.samples.catalog import SAMPLES
from fadiff.samples.export import export


def test_int8_costs_at_most_half_a_point(tmp_path: Path) -> None:
    """Of the transformer; the CNN's figures are those of docs/quickstart.md, which is executed, too."""
    files = export(SAMPLES["digits-transformer"], tmp_path / "net.onnx", options={}, exporter="torchscript")
    arguments = ["accuracy", str(files.model), "--data", str(files.labelled), "--json", "-q"]
    ended = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout)
    right = {row["contender"]: row["top1"] for row in found["rows"] if "top1" in row}
    assert found["samples"] > 500
    assert right["float"] > 0.95
    assert right["fadiff int8"] >= right["float"] - 0.005


def test_equal_seeds_train_equal_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "_EPOCHS", 2)
    trained = []
    for _ in range(2):
        torch.manual_seed(1)
        module = digits.convolutions()
        digits.train(module, torch.Generator().manual_seed(1))
        trained.append(module.state_dict())
    first, again = trained
    assert all(torch.equal(first[key], again[key]) for key in first)


def test_images_are_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert main(["sample", "digits", "-o", str(tmp_path / "net.onnx")]) == 2
    assert "pip install" in capsys.readouterr().err
