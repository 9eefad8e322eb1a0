"""Model files from elsewhere: every one is verified, or refused by name with exit code 2.

Skipped unless the environment variable FADIFF_REAL_MODELS names a folder of .onnx files. Beside
`net.onnx` may lie `net.calibration.npz`, `net.inputs.npz`, and `net.dims`: one NAME=SIZE a line.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

FOLDER = os.environ.get("FADIFF_REAL_MODELS", "")
MODELS = sorted(Path(FOLDER).glob("*.onnx")) if FOLDER else []
TARGETS = ("gemmini-small", "gemmini-default", "gemmini-large")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MODELS, reason="FADIFF_REAL_MODELS names no folder with .onnx files"),
]


def _dims(model: Path) -> list[str]:
    file = model.with_suffix(".dims")
    words = file.read_text(encoding="utf-8").split() if file.is_file() else []
    return [argument for word in words for argument in ("--dim", word)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.stem)
def test_verified_or_refused_by_name(fadiff, model: Path, target: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = fadiff(
        "compile", model, "--target", target, "--out", out, "--verify", "--json", "-q",
        "--method", "layerwise", "--time-budget", "10", *_dims(model),
    )  # fmt: skip
    if ended.code == 0:
        verification = json.loads(ended.out)["verification"]
        assert verification["bit_exact"] and verification["traffic_exact"]
        assert out.is_dir()
        return
    assert ended.code == 2, ended.err
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, ended.err
    assert model.name in errors[0], "a refusal names the file"
    assert ended.out == "" and not any(tmp_path.iterdir()), "a refusal leaves nothing behind"
