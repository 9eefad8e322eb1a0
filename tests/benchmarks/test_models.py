"""Sample networks from export to verified C: a fast subset, and the benchmarks that run them all."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import cycles, gemmini_auto, models
from benchmarks.exports import exported, independent_macs, options_of
from fadiff.converter.rewrites import JUDGED
from fadiff.pipeline import ModelOptions
from fadiff.samples.catalog import SAMPLES


def _figures(text: str) -> dict[str, str]:
    return dict(part.split("=") for part in text.strip().splitlines()[-1].split())


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


@pytest.fixture(autouse=True)
def plain_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes and cycles do not depend on them, and to judge others takes most of the time."""
    for module in (models, gemmini_auto):
        monkeypatch.setattr(module, "ModelOptions", lambda: ModelOptions(without=JUDGED))


@pytest.mark.parametrize(
    ("name", "exporter", "target"),
    [
        ("detector", "torchscript", "gemmini-default"),
        ("swin-block", "torchscript", "gemmini-small"),
        ("gpt3-block", "torchscript", "gemmini-large"),
        ("unet", "torchscript", "gemmini-fp32"),
    ],
)
def test_a_network_verifies(
    name: str, exporter: str, target: str, exports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--models", name, "--exporters", exporter, "--targets", target, "--method", "layerwise"]
    code = models.main([*arguments, "--vectors", "1", "--exports", str(exports)])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert _figures(printed)["passed"] == "1"
    assert "equal" in printed and "DIFF" not in printed


def test_work_that_torch_does_not_see_fails(
    exports: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "independent_macs", lambda name: 1)
    arguments = ["--models", "unet", "--exporters", "torchscript", "--targets", "gemmini-small"]
    code = models.main([*arguments, "--method", "layerwise", "--vectors", "1", "--exports", str(exports)])
    printed = capsys.readouterr().out
    assert code == 1
    assert _figures(printed)["failed"] == "1" and "torch 1" in printed


def test_a_network_that_does_not_export_is_a_failed_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Path:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(models, "exported", broken)
    code = models.main(["--models", "unet", "--targets", "gemmini-small", "--exports", str(tmp_path)])
    printed = capsys.readouterr().out
    assert code == 1
    assert "FAILED: RuntimeError: no such operator" in printed and _figures(printed)["failed"] == "2"


def test_unknown_names_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmarks.main(["models", "--models", "alexnet"]) == 2
    assert "alexnet" in capsys.readouterr().err


def test_a_missing_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmarks.main(["gemmini_auto", str(tmp_path / "absent.onnx")]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")


def test_never_more_bytes_than_automatic_tiles(exports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Depthwise layers on four pixels, where the best EDP wants more."""
    arguments = ["mobilenetv3", "--targets", "gemmini-large", "--method", "layerwise"]
    assert gemmini_auto.main([*arguments, "--exports", str(exports)]) == 0
    figures = _figures(capsys.readouterr().out)
    assert figures["wrong"] == figures["more_bytes"] == "0"
    assert 0.9 < float(figures["largest_bytes"]) <= 1.0


def test_predicted_over_executed_cycles(exports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["unet", "--targets", "gemmini-small", "--time-budget", "0.1", "--layers"]
    assert cycles.main([*arguments, "--exports", str(exports)]) == 0
    printed = capsys.readouterr().out
    pairs = [(float(a), float(b)) for a, b in re.findall(r"^ +(\d+) / +(\d+) =", printed, re.MULTILINE)]
    figures = _figures(printed)
    assert int(figures["layers"]) == len(pairs) > 10
    ratios = sorted(a / b for a, b in pairs)
    assert float(figures["median"]) == pytest.approx(statistics.median(ratios), abs=1e-3)
    assert ratios[0] <= float(figures["p10"]) < float(figures["p90"]) <= ratios[-1] + 1e-3
    assert ratios[0] > 0.2 and ratios[-1] < 5  # the same work


def test_an_export_is_made_once(tmp_path: Path) -> None:
    first = exported("unet", "torchscript", tmp_path).stat().st_mtime_ns
    assert exported("unet", "torchscript", tmp_path).stat().st_mtime_ns == first


def test_every_sample_has_a_size_and_an_independent_count() -> None:
    for name in ("resnet18", "mobilenetv3", "vit-block", "swin-block", "llama-block", "bert-block"):
        assert set(options_of(name)) <= set(SAMPLES[name].defaults)
        assert independent_macs(name) > 10**6


def test_macs_counted_by_hand() -> None:
    """One BERT block at 16 tokens: four projections, two products per head, two linear layers."""
    tokens, width, hidden = 16, 768, 3072
    by_hand = 4 * tokens * width**2 + 2 * tokens * tokens * width + 2 * tokens * width * hidden
    assert independent_macs("bert-block") == by_hand
