"""--input-type through the command line: what the header says is what the firmware takes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.cli import main
from tests.converter.oracle import model_of, weights


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Pixels, normalised in the file, beside a time step that the file declares as a float."""
    nodes = [
        helper.make_node("Sub", ["image", "mean"], ["a"]),
        helper.make_node("Div", ["a", "std"], ["n"]),
        helper.make_node("Conv", ["n", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Mul", ["step", "f"], ["angle"]),
        helper.make_node("Sin", ["angle"], ["s"]),
        helper.make_node("Add", ["c", "s"], ["y"]),
    ]
    constants: dict[str, np.ndarray] = {
        "mean": np.array([124, 116, 104], np.float32).reshape(1, 3, 1, 1),
        "std": np.array([58, 57, 59], np.float32).reshape(1, 3, 1, 1),
        "w": weights(1, 8, 3, 3, 3),
        "f": np.exp(-np.arange(8) / 2).astype(np.float32).reshape(1, 8, 1, 1),
    }
    inputs = {"image": (1, 3, 8, 8), "step": (1, 1, 1, 1)}
    onnx.save(model_of(nodes, inputs, {"y": None}, constants), tmp_path / "net.onnx")
    generator = np.random.default_rng(0)
    np.savez(
        tmp_path / "net.calibration.npz",
        image=generator.integers(0, 256, (12, 1, 3, 8, 8)).astype(np.float32),
        step=generator.integers(0, 100, (12, 1, 1, 1, 1)).astype(np.float32),
    )
    return tmp_path / "net.onnx"


def test_bytes_and_whole_numbers_are_taken_as_they_are(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["compile", str(model), "--out", str(out), "--method", "exact", "--verify", "-q"]
    assert main([*arguments, "--input-type", "image=uint8,step=int32"]) == 0
    result = json.loads((out / "verify" / "result.json").read_text())
    assert result["traffic_exact"] and result["agrees"]
    header = (out / "firmware" / "net.h").read_text()
    assert "int net_run(const uint8_t *input0, const int32_t *input1, int8_t *output0);" in header
    assert "uint8_t is the pixel as it comes" in header
    assert "#define NET_INPUT0_SCALE 1.000000000e+00f" in header and "NET_INPUT0_BYTES 192" in header
    record = json.loads((out / "schedule.json").read_text())
    assert record["conversion"]["accuracy"]["outputs"][0]["sqnr_db"] > 30
    assert {t["name"]: t["dtype"] for t in record["tensors"] if t["name"] in ("image", "step")} == {
        "image": "uint8",
        "step": "int32",
    }


@pytest.mark.parametrize(
    ("given", "says"),
    [("uint4", "write one of int8, uint8, int32, float32"), ("int8,image=uint8", "write one type for all")],
)
def test_what_is_no_type(given: str, says: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(model), "--input-type", given]) == 2
    assert says in " ".join(capsys.readouterr().err.split())
