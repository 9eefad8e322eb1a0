"""Entries that see the first rows of a cache only: the numbers of one that sees all of it, in fewer bytes."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

import fadiff
from fadiff.emitters.gemmini import map_name
from fadiff.emitters.gemmini.tokens import rows_after
from fadiff.emulator.build import build_firmware
from fadiff.emulator.machine import Machine
from fadiff.folder import OutputFolder
from tests.converter.growing import WORDS, growing_decoder
from tests.fadiff.test_exported_decoders import CONTEXT, PROMPT, group_query_decoder, runs

ROWS = (6, 9, CONTEXT)
NAMES = ["decode_6", "decode_9", "decode"]


def written(folder: Path, kind: str, target: str = "gemmini-small") -> tuple[Path, Path]:
    """Folders of one program with three entries for steps, and of one with a single one."""
    path, options = folder / "lm.onnx", {"target": target, "method": "layerwise"}
    if kind == "GroupQueryAttention":
        group_query_decoder(path)
        dims, names = {"past": CONTEXT, "total": CONTEXT}, ("past", "total")
    else:
        growing_decoder(path)
        dims, names = {"batch": 1, "attention_mask": 1}, ("context",)
        options["context"] = CONTEXT
    for ending, seed, count in (("calibration", 0, 30), ("inputs", 1, 2)):
        np.savez(folder / f"lm.{ending}.npz", **runs(seed, count))
    prompt = fadiff.Entry("prefill", path, {**dims, "seq": PROMPT})
    step = fadiff.Entry("decode", path, {**dims, "seq": 1})
    several = step.of_sizes(dict.fromkeys(names, ROWS))
    assert [entry.name for entry in several] == NAMES
    result = fadiff.compile_entries([prompt, *several], folder / "several", verify=True, **options)
    for name, one in result.entries.items():
        report = one.verification
        assert report is not None and report.passed and report.traffic_exact
        assert report.bit_exact or target == "gemmini-fp32"
        calls = {"prefill": 1, "decode_6": 6 - PROMPT, "decode_9": 3, "decode": CONTEXT - 9}
        assert report.vectors == 2 * calls[name]
    fadiff.compile_entries([prompt, step], folder / "single", **options)
    return folder / "several", folder / "single"


@pytest.fixture(scope="module", params=["caches that grow", "GroupQueryAttention"])
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return written(tmp_path_factory.mktemp("contexts"), request.param)


def operators(folder: Path) -> tuple[str, ...]:
    """Of all layers."""
    return tuple(layer.op for layer in OutputFolder(folder).document.layers)


def called(library: ctypes.CDLL) -> tuple[list[str], list[object]]:
    """The entries that the program calls, as they are called; and what has to stay alive."""
    names: list[str] = []
    hook, kept = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int), []

    def observer(name: str) -> Callable[..., int]:
        def observe(_context: object, layer: int, phase: int) -> int:
            if layer == 0 and phase == 0:
                names.append(name)
            return 0

        return observe

    for name in ("prefill", *NAMES):
        kept.append(hook(observer(name)))
        getattr(library, f"lm_{name}_set_hook")(kept[-1], None)
    return names, kept


def test_steps_go_to_the_smallest_and_scores_are_those_of_all_rows(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """In C and in Python, from prompts of every length until the cache is full; but for what the array
    computes in another form where there are more rows."""
    several, single = folders
    alike = (
        len({operators(folder) for folder in (single / "decode", *(several / name for name in NAMES))}) == 1
    )
    assert alike or (several / "prefill" / "schedule.json").read_text().count("GroupQuery")
    target = OutputFolder(several / "decode").document.target
    library = ctypes.CDLL(str(build_firmware(several / "firmware", target, tmp_path)))
    library.lm_scores.restype = ctypes.POINTER(ctypes.c_int8)
    machine = Machine(target, check_regions=False)
    names, _kept = called(library)
    ours, whole = (fadiff.load(folder).generation() for folder in (several, single))
    for first in (1, PROMPT, 7):
        tokens = np.random.default_rng(first).integers(0, WORDS, CONTEXT).tolist()
        names.clear()
        for run in (ours, whole):
            run.prompt(tokens[:first])
        machine.reset()
        assert library.lm_prompt((ctypes.c_int32 * first)(*tokens[:first]), first) == 0
        for at in range(first, CONTEXT + 1):
            if alike:
                np.testing.assert_array_equal(ours.scores, whole.scores)
            assert np.sum((ours.scores - whole.scores) ** 2) < 0.01 * np.sum(whole.scores**2)
            scale = np.abs(ours.scores).max() / max(abs(library.lm_scores()[i]) for i in range(WORDS))
            np.testing.assert_allclose(np.array(library.lm_scores()[:WORDS]) * scale, ours.scores, rtol=1e-5)
            if at < CONTEXT:
                ours.step(tokens[at])
                whole.step(tokens[at])
                assert library.lm_step(tokens[at]) == 0
        steps = range(min(first, PROMPT), CONTEXT)
        assert names == ["prefill", *(NAMES[sum(at >= rows for rows in ROWS)] for at in steps)]
        assert library.lm_step(0) == -2  # LM_NO_ROOM
        with pytest.raises(fadiff.InputError, match=f"the sequence has {CONTEXT} tokens"):
            ours.step(0)
    machine.check()


def test_one_place_for_all_and_weights_once(folders: tuple[Path, Path]) -> None:
    several, _ = folders
    header = (several / "firmware" / "lm.h").read_text()
    maps = [json.loads((several / "firmware" / map_name(name)).read_text()) for name in NAMES]
    for map_of, rows in zip(maps, ROWS, strict=True):
        states = [map_of["tensors"][state["input"]] for state in map_of["states"]]
        largest = [maps[-1]["tensors"][state["input"]] for state in maps[-1]["states"]]
        for state, whole in zip(states, largest, strict=True):
            assert state["shape"] == [rows, *whole["shape"][1:]]
            assert (state["offset"], state["scale"]) == (whole["offset"], whole["scale"])
            assert f"_SHAPE {{{', '.join(map(str, whole['shape']))}}}" in header
    weights = []
    for name in NAMES:
        text = (several / "firmware" / f"lm_{name}.h").read_text()
        weights.append(set(re.findall(r"\* weights +(\d+) +(\d+)  (\S+)", text)))
    for own in weights[:2]:  # (a softmax of another form has a table of its own)
        apart = [int(size) for _, size, name in own - weights[-1] if "Softmax" not in name]
        assert sum(apart) <= 2 * 64  # (numbers of rows, and what is made of them)
    bytes_moved = [OutputFolder(several / name).document.totals.dram_bytes for name in NAMES]
    assert bytes_moved == sorted(set(bytes_moved))


def test_main_goes_through_all(folders: tuple[Path, Path]) -> None:
    several, single = folders
    texts = []
    for folder, calls in ((several, "9 calls of 4"), (single, "5 calls of 2")):
        command = ["make", "-s", "check", f"PYTHON={sys.executable}"]
        done = subprocess.run(command, cwd=folder / "firmware", capture_output=True, text=True, check=False)
        assert f"lm: all outputs agree in {calls} entries" in done.stdout, done.stdout + done.stderr
        texts.append(next(line for line in done.stdout.splitlines() if "after 4 tokens" in line))
    assert texts[0] == texts[1]


def test_a_float_target_keeps_one_place_too(tmp_path: Path) -> None:
    several, single = written(tmp_path, "caches that grow", "gemmini-fp32")
    ours, whole = fadiff.load(several), fadiff.load(single)
    for prompt in ([1, 2], [3, 4, 5, 6, 7]):
        assert list(ours.generate(prompt, 7)) == list(whole.generate(prompt, 7))


def test_rows_after_a_call_are_told_by_positions_and_masks() -> None:
    """Whole numbers only: masks that are added say nothing that could be counted."""
    assert rows_after({"tokens": np.array([[9]]), "cache_position": np.array([3, 4])}) == 5
    assert rows_after({"attention_mask": np.array([[1, 1, 1, 0]]), "x": np.ones(9, np.float32)}) == 3
    assert rows_after({"attention_mask": np.array([[[True, False], [True, True]]])}) == 2
    assert rows_after({"mask": np.full((1, 4), -1e9, np.float32)}) == 0


def test_the_command_line_takes_sizes(fadiff: Callable[..., object], tmp_path: Path) -> None:
    """Without data, too: each entry is tried on runs of its own."""
    model = growing_decoder(tmp_path / "lm.onnx")
    common = ("--context", "12", "--dim", "batch=1", "--dim", "attention_mask=1", "--method", "layerwise")
    prompt = ("--entry", "prefill:seq=4,context=6")

    def compiled(*entries: str) -> Mapping[str, object]:
        given = [part for entry in entries for part in ("--entry", entry)]
        options = (*common, "--target", "gemmini-small", "--min-sqnr", "0", "--force", "--json", "--verify")
        ended = fadiff("compile", model, *given, *options, "-o", tmp_path / "out")
        if ended.code:
            return {"error": ended.err}
        return json.loads(ended.out)["entries"]

    found = compiled(*prompt[1:], "decode:seq=1,context=6,9,12")
    assert list(found) == ["prefill", *NAMES]
    assert all(entry["verification"]["bit_exact"] for entry in found.values())
    refused = (
        (("decode:seq=1,context=6,12",), "the first entry begins a run"),
        ((*prompt[1:], "decode:seq=1,context=9,6"), "as many sizes of each dimension, ascending"),
        ((*prompt[1:], "decode:seq=1,context=6,9,batch=1,2,3"), "as many sizes of each dimension"),
    )
    for entries, said in refused:
        assert said in str(compiled(*entries)["error"])
    data = {key: array[:1] for key, array in runs(0, 1).items()}  # (one step, in the sixth row)
    np.savez(tmp_path / "lm.calibration.npz", **data)
    assert "calibration data: no call for decode_9" in str(
        compiled(*prompt[1:], "decode:seq=1,context=6,9,12")["error"]
    )
