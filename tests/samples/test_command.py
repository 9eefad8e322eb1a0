"""fadiff sample, and python -m samples in a checkout."""

from __future__ import annotations

from pathlib import Path

import onnx
from click.testing import CliRunner

from fadiff.commands.sample import sample
from fadiff.samples.catalog import SAMPLES


def test_list_names_every_sample() -> None:
    result = CliRunner().invoke(sample, ["--list"])
    assert result.exit_code == 0
    for name in SAMPLES:
        assert name in result.output


def test_writes_model_and_data(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    result = CliRunner().invoke(
        sample, ["unet", "-o", str(path), "--image-size", "32", "--exporter", "torchscript"]
    )
    assert result.exit_code == 0, result.output
    onnx.checker.check_model(path)
    assert (tmp_path / "net.calibration.npz").exists()
    assert (tmp_path / "net.inputs.npz").exists()


def test_usage_errors(tmp_path: Path) -> None:
    for arguments in (
        [],
        ["alexnet"],
        ["resnet18", "--seq", "4"],
        ["resnet18", "-o", str(tmp_path / "missing" / "x.onnx")],
    ):
        result = CliRunner().invoke(sample, arguments)
        assert result.exit_code == 2
        assert "─ Error ─" in result.output
