"""Firmware that keeps its states: step after step equal to the reference, and from main.c."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import fadiff
from fadiff.emulator.build import build_firmware
from fadiff.emulator.run import Firmware
from fadiff.folder import OutputFolder
from tests.stateful import (
    STATIC_CACHES,
    STEPS,
    cached_convolution,
    decoder,
    sequence,
    static_cache,
    steps_of,
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The decoder, compiled with data of its own, in a folder."""
    folder = tmp_path_factory.mktemp("decoder")
    model = decoder(folder / "decoder.onnx")
    np.savez(folder / "decoder.calibration.npz", x=sequence(model, 1, 30))
    np.savez(folder / "decoder.inputs.npz", x=sequence(model, 2, 12))
    result = fadiff.compile(model, folder / "out", target="gemmini-small", method="layerwise", verify=True)
    assert result.verification is not None
    assert result.verification.bit_exact
    assert result.verification.vectors == 12
    return folder / "out"


def test_the_program_keeps_its_states_until_it_is_reset(built: Path, tmp_path: Path) -> None:
    target = OutputFolder(built).document.target
    firmware = Firmware(built / "firmware", build_firmware(built / "firmware", target, tmp_path), target)
    (name,), (output,) = firmware.memory_map.inputs, firmware.memory_map.outputs
    with np.load(built / "verify" / "inputs.npz") as data:
        steps = data[name]

    def run(count: int) -> list[bytes]:
        return [firmware.run({name: steps[i]}).tensors[output].tobytes() for i in range(count)]

    firmware.reset()
    first = run(4)
    assert run(4) != first
    firmware.reset()
    assert run(4) == first


def test_main_runs_several_steps(built: Path) -> None:
    done = subprocess.run(
        ["make", "-s", "check", f"PYTHON={sys.executable}"],
        cwd=built / "firmware",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "all outputs agree in 4 steps" in done.stdout, done.stdout + done.stderr


def test_a_window_slides_in_its_own_place(built: Path) -> None:
    """One buffer per state, no second one to move it from."""
    header = (built / "firmware" / "decoder.h").read_text()
    assert int(re.findall(r"DECODER_STATE_BYTES (\d+)", header)[0]) == 2 * 8 * 16
    assert "memcpy(STATE" not in (built / "firmware" / "decoder.c").read_text()
    states = json.loads((built / "schedule.json").read_text())["model"]["states"]
    assert [(s["output"], s["input"]) for s in states] == [
        ("present_key", "past_key"),
        ("present_value", "past_value"),
    ]


def test_predictions_of_samples_are_steps(built: Path) -> None:
    model = built.parent / "decoder.onnx"
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    kept = {name: np.zeros((1, 8, 16), np.float32) for name in ("past_key", "past_value")}
    xs, wanted = sequence(model, 3, 10), []
    for x in xs:
        y, key, value = session.run(["y", "present_key", "present_value"], {"x": x, **kept})
        kept = {"past_key": key, "past_value": value}
        wanted.append(y)
    found = fadiff.load(built).predict(xs)
    assert set(found) == {"y"}
    noise = np.sum((np.stack(wanted) - found["y"]) ** 2) / np.sum(np.square(wanted))
    assert 10 * np.log10(noise) < -20


def test_test_inputs_that_bring_a_state_are_told_that_it_begins_at_zero(
    fadiff: Callable[..., object], tmp_path: Path
) -> None:
    model = cached_convolution(tmp_path / "cached.onnx")
    xs = sequence(model, 1, 3)
    np.savez(tmp_path / "in.npz", x=xs, cache=np.ones((3, 1, 8, 2), np.float32))

    def vectors(out: str, *options: str) -> tuple[str, np.ndarray]:
        compiled = ("compile", model, "-o", tmp_path / out, "--test-inputs", tmp_path / "in.npz")
        ended = fadiff(*compiled, "--method", "layerwise", *options)
        assert ended.code == 0
        with np.load(tmp_path / out / "verify" / "inputs.npz") as data:
            return ended.err, data["float:cache"]

    said, cache = vectors("kept")
    assert "cache not used: a state is zero in the first step" in said
    assert not cache[0].any()
    said, cache = vectors("fed", "--no-state")
    assert "not used" not in said
    assert np.all(cache == 1)


def test_states_of_a_float_target(tmp_path: Path) -> None:
    model = cached_convolution(tmp_path / "cached.onnx")
    options = {"target": "gemmini-fp32", "method": "layerwise", "states": {"cache_out": "cache"}}
    result = fadiff.compile(model, tmp_path / "out", verify=True, **options)
    assert result.verification is not None
    assert result.verification.passed


def test_the_command_line_names_states(fadiff: Callable[..., object], tmp_path: Path) -> None:
    model = cached_convolution(tmp_path / "cached.onnx")
    ended = fadiff("inspect", model, "--state", "cache_out=cash")
    assert ended.code == 2
    assert "did you mean cache?" in ended.err
    assert "--state" in fadiff("inspect", model, "--state", "cache_out").err
    guessed = fadiff("inspect", model, "--explain").out
    assert "cache_out -> cache" in guessed
    assert "guessed" not in fadiff("inspect", model, "--explain", "--no-state").out


@pytest.mark.parametrize("spelling", STATIC_CACHES)
def test_a_cache_is_written_at_a_position_in_its_own_place(spelling: str, tmp_path: Path) -> None:
    """Fifty steps around a ring of ten tokens; one row of each cache is written, and no other moved."""
    model = static_cache(tmp_path / "cache.onnx", spelling)
    for name, seed, count in (("calibration", 1, 30), ("inputs", 2, STEPS)):
        steps = steps_of(model, seed, count)
        np.savez(tmp_path / f"cache.{name}.npz", **{key: [step[key] for step in steps] for key in steps[0]})
    result = fadiff.compile(model, tmp_path / "out", target="gemmini-small", method="layerwise", verify=True)
    assert result.verification is not None
    assert result.verification.passed and result.verification.vectors == STEPS
    assert result.verification.sqnr_db is not None and result.verification.sqnr_db > 30
    memory_map = json.loads((tmp_path / "out" / "firmware" / "memory_map.json").read_text())
    places = memory_map["tensors"]
    for state in memory_map["states"]:
        assert places[state["output"]]["offset"] == places[state["input"]]["offset"]
    place = r"(\w+\(int8_t, \d+\))"
    code = (tmp_path / "out" / "firmware" / "cache.c").read_text()
    calls = re.findall(rf"scatter\(\s*&\w+, {place}, [^;]+, 1, {place}, {place}, 1\);", code)
    assert len(calls) == 2
    assert all(read == written != update for read, update, written in calls)
