"""Prefill and decode as one firmware: weights once, states in common, right in turn."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import fadiff
from fadiff.costmodel.schedule.measurement import MeasurementError
from fadiff.emitters.gemmini import map_name
from fadiff.emulator.build import build_firmware
from fadiff.emulator.machine import Machine
from fadiff.emulator.run import Firmware
from fadiff.entries import verify_entries
from fadiff.folder import OutputFolder
from tests.stateful import TOKENS, VOCABULARY, language_model, session_of

PROMPT, STEPS = 4, 5
WEIGHTS = ("w_query", "w_key", "w_value", "read", "embedding", "places")


def runs(seed: int, count: int) -> dict[str, np.ndarray]:
    """Random prompts, and steps behind them."""
    rng = np.random.default_rng(seed)
    steps = PROMPT + np.arange(STEPS)
    return {
        "prefill:tokens": rng.integers(0, VOCABULARY, (count, 1, PROMPT)),
        "prefill:position": np.tile(np.arange(PROMPT), (count, 1)),
        "decode:tokens": rng.integers(0, VOCABULARY, (count * STEPS, 1, 1)),
        "decode:position": np.tile(steps, count)[:, None],
    }


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> fadiff.EntriesResult:
    folder = tmp_path_factory.mktemp("entries")
    model = language_model(folder / "lm.onnx")
    np.savez(folder / "lm.calibration.npz", **runs(0, 40))
    np.savez(folder / "lm.inputs.npz", **runs(1, 2))
    entries = [fadiff.Entry("prefill", model, {"seq": PROMPT}), fadiff.Entry("decode", model, {"seq": 1})]
    options = {"target": "gemmini-small", "method": "layerwise"}
    return fadiff.compile_entries(entries, folder / "out", verify=True, **options)


def float_logits(model: Path, data: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """The file in ONNX Runtime, run by run, fed with its own state."""
    session = session_of(model)
    logits: dict[str, list[np.ndarray]] = {"prefill": [], "decode": []}
    for run in range(count):
        cache = np.zeros((1, 2, TOKENS, 8), np.float32)
        kept = {"past_key": cache, "past_value": cache}
        for entry, calls in (("prefill", [run]), ("decode", range(run * STEPS, (run + 1) * STEPS))):
            for call in calls:
                given = {name: data[f"{entry}:{name}"][call] for name in ("tokens", "position")}
                found, key, value = session.run(["logits", "present_key", "present_value"], given | kept)
                kept = {"past_key": key, "past_value": value}
                logits[entry].append(found)
    return {entry: np.stack(found) for entry, found in logits.items()}


def test_entries_in_turn_are_exact_and_near_the_float_model(compiled: fadiff.EntriesResult) -> None:
    """Prompts and steps: every layer of every call bit for bit, and the state that goes on."""
    assert list(compiled.entries) == ["prefill", "decode"]
    expected = float_logits(compiled.out.parent / "lm.onnx", runs(1, 2), 2)
    for entry, result in compiled.entries.items():
        report = result.verification
        assert report is not None and report.passed
        assert report.bit_exact and report.traffic_exact
        assert report.vectors == {"prefill": 2, "decode": 2 * STEPS}[entry]
        with np.load(result.out / "verify" / "float_outputs.npz") as floats:
            assert np.allclose(floats["logits"], expected[entry], atol=1e-5)
        assert report.sqnr_db is not None and report.sqnr_db > 25


def test_the_program_goes_on_with_what_the_prompt_left(
    compiled: fadiff.EntriesResult, tmp_path: Path
) -> None:
    """Logits of the C, called by hand, against ONNX Runtime; without the prompt they are others."""
    firmware = compiled.out / "firmware"
    target = compiled.entries["decode"].document.target
    built, machine = build_firmware(firmware, target, tmp_path), Machine(target)
    programs = {
        name: Firmware(firmware, built, target, machine, map_name(name)) for name in ("prefill", "decode")
    }
    data = runs(1, 2)
    expected = float_logits(compiled.out.parent / "lm.onnx", data, 2)["decode"]
    scale = programs["decode"].memory_map.tensors[programs["decode"].memory_map.outputs[0]].scale
    assert scale is not None

    def call(entry: str, at: int) -> np.ndarray:
        program = programs[entry]
        given = {n: data[f"{entry}:{n}"][at].astype(np.int32) for n in program.memory_map.inputs}
        return program.run(given).tensors[program.memory_map.outputs[0]].reshape(-1) * scale

    programs["prefill"].reset()
    call("prefill", 1)
    found = np.stack([call("decode", STEPS + i) for i in range(STEPS)])
    wanted = expected[STEPS:].reshape(STEPS, -1)
    assert np.sum((found - wanted) ** 2) < 0.003 * np.sum(wanted**2)
    programs["prefill"].reset()
    alone = call("decode", STEPS)
    assert np.sum((alone - wanted[0]) ** 2) > 0.03 * np.sum(wanted[0] ** 2)


def test_weights_are_there_once_and_states_have_one_scale(compiled: fadiff.EntriesResult) -> None:
    firmware = compiled.out / "firmware"
    blob = (firmware / "lm_weights.bin").read_bytes()
    assert f"LM_WEIGHT_BYTES {len(blob)}" in (firmware / "lm.h").read_text()
    places = {}
    model = onnx.load(compiled.out.parent / "lm.onnx")
    sizes = {t.name: numpy_helper.to_array(t).size for t in model.graph.initializer}
    for entry in compiled.entries:
        rows = re.findall(r"\* weights +(\d+) +(\d+)  (\S+)", (firmware / f"lm_{entry}.h").read_text())
        places[entry] = {name: (int(offset), int(size)) for offset, size, name in rows}
    for name in WEIGHTS:
        (mine,) = {place for n, place in places["prefill"].items() if n == name or n.startswith(f"{name}.")}
        assert mine == places["decode"][next(n for n in places["decode"] if n.startswith(name))]
        assert mine[1] == sizes[name]
    read = [blob[offset : offset + size] for p in places.values() for offset, size in p.values()]
    assert len(blob) == sum(-(-len(content) // 64) * 64 for content in set(read))
    maps = [json.loads((firmware / map_name(entry)).read_text()) for entry in compiled.entries]
    kept = [[(m["tensors"][s["input"]]) for s in m["states"]] for m in maps]
    assert [[(t["offset"], t["scale"], t["shape"]) for t in tensors] for tensors in kept[:1]] == [
        [(t["offset"], t["scale"], t["shape"]) for t in tensors] for tensors in kept[1:]
    ]
    arenas = [m["symbols"]["arena"] for m in maps]
    assert {arena["name"] for arena in arenas} == {"lm_arena"}
    assert f"LM_ARENA_BYTES {max(a['bytes'] for a in arenas)}" in (firmware / "lm.h").read_text()


def test_rows_of_a_cache_are_outermost(compiled: fadiff.EntriesResult) -> None:
    """New rows adjoin, as the product before has written them: nothing is copied between the two."""
    document = compiled.entries["prefill"].document
    (written,) = (
        layer for layer in document.layers if layer.op == "scatter" and layer.inputs[0] == "past_key"
    )
    (writer,) = (layer for layer in document.layers if written.inputs[2] in layer.outputs)
    assert writer.op == "gemm"
    memory_map = json.loads((compiled.out / "firmware" / map_name("prefill")).read_text())
    assert memory_map["tensors"][written.inputs[0]]["shape"] == [TOKENS, 1, 2, 8]


def _make_check(firmware: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "-s", "check", f"PYTHON={sys.executable}", *more]
    return subprocess.run(command, cwd=firmware, capture_output=True, text=True, check=False)


def test_main_runs_all_entries(compiled: fadiff.EntriesResult) -> None:
    done = _make_check(compiled.out / "firmware")
    assert "lm: all outputs agree in 5 calls of 2 entries" in done.stdout, done.stdout + done.stderr


def test_layers_of_every_entry_are_compared(compiled: fadiff.EntriesResult, tmp_path: Path) -> None:
    """In the first call of each, all layers that are in memory; a wrong one of the second entry is named."""
    firmware = tmp_path / "firmware"
    shutil.copytree(compiled.out / "firmware", firmware)
    done = _make_check(firmware, "CHECK_LAYERS=1")
    assert done.returncode == 0, done.stdout + done.stderr
    for entry, result in compiled.entries.items():
        count = len(result.document.layers)
        (found,) = re.findall(rf"lm_{entry}: (\d+) of {count} layers compared, all agree", done.stdout)
        assert int(found) > count / 2
    checks = firmware / "lm_decode_layer_checks.h"
    checks.write_text(re.sub(r"0x\w{8}u", "0x00000000u", checks.read_text(), count=1))
    done = _make_check(firmware, "CHECK_LAYERS=1")
    assert done.returncode != 0
    assert re.search(r"lm_prefill: .* all agree\nlm_decode: layer 0, .* is wrong in bytes", done.stdout), (
        done.stdout
    )


def test_each_entry_is_measured(compiled: fadiff.EntriesResult) -> None:
    """One console has the tables of all, of the functional model's cycles."""
    firmware = compiled.out / "firmware"
    flags = "WARNINGS=-Wall -Wextra -Werror -DFADIFF_PROFILE"
    command = ["make", "-s", "host", f"PYTHON={sys.executable}", flags]
    subprocess.run(command, cwd=firmware, check=True, capture_output=True)
    (program,) = firmware.glob("*.host")
    console = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    program.unlink()
    log = compiled.out.parent / "console.txt"
    log.write_text(console)
    found = {entry: fadiff.measure(compiled.out / entry, log=log) for entry in compiled.entries}
    for entry, measurement in found.items():
        layers = OutputFolder(compiled.out / entry).document.layers
        assert [layer.name for layer in measurement.layers] == [layer.name for layer in layers]
        assert all(layer.calls > 0 for layer in measurement.layers)
        assert OutputFolder(compiled.out / entry).measurement.is_file()
    assert found["prefill"].warm > found["decode"].warm > 0
    log.write_text(console.replace("lm_decode", "other"))
    with pytest.raises(MeasurementError, match="no line 'fadiff-profile' of lm_decode"):
        fadiff.measure(compiled.out / "decode", log=log)


def test_each_entry_has_its_own_schedule_and_report(compiled: fadiff.EntriesResult) -> None:
    for entry, result in compiled.entries.items():
        output = OutputFolder(result.out)
        assert output.entry == entry
        assert output.table.is_file() and list(output.timeloop.iterdir())
        assert output.refresh_report().is_file()
        assert f'href="{entry}/report.html"' in (compiled.out / "report.html").read_text()
    with pytest.raises(fadiff.InputError, match="as a whole"):
        fadiff.verify(compiled.out / "decode")


def test_a_changed_weight_is_found(compiled: fadiff.EntriesResult, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", str(compiled.out), str(tmp_path / "out")], check=True)
    blob = tmp_path / "out" / "firmware" / "lm_weights.bin"
    blob.write_bytes(bytes(byte ^ 1 for byte in blob.read_bytes()))
    assert not any(report.passed for report in verify_entries(tmp_path / "out"))


def test_the_command_line_names_entries(fadiff: Callable[..., object], tmp_path: Path) -> None:
    model = language_model(tmp_path / "lm.onnx")
    for name in ("first", "second"):
        (tmp_path / f"{name}.onnx").write_bytes(model.read_bytes())
    files = (tmp_path / "first.onnx", tmp_path / "second.onnx")
    sizes = ("--entry", "first:seq=3", "--entry", "second:seq=1")
    quick = ("--target", "gemmini-small", "--method", "layerwise")
    ended = fadiff("compile", *files, *sizes, *quick, "-o", tmp_path / "out", "--min-sqnr", "0", "--json")
    assert set(json.loads(ended.out)["entries"]) == {"first", "second"}
    assert (tmp_path / "out" / "firmware" / "out_first.c").is_file()
    verified = fadiff("verify", tmp_path / "out", "--json", "--min-sqnr", "0", "--min-top1", "0")
    assert verified.code == 0
    assert [e["bit_exact"] for e in json.loads(verified.out)["entries"].values()] == [True, True]
    again = fadiff("compile", *files, *sizes, *quick, "-o", tmp_path / "out", "--force", "--min-sqnr", "0")
    assert "entry first," in again.out and "entry second," in again.out
    for wrong, said in (
        ((model, "--entry", "a:seq"), "write NAME:DIM=SIZE"),
        ((model, "--entry", "a:seq=1", "--entry", "a:seq=2"), "is there twice"),
        ((*files, "-o", tmp_path / "x", "--entry", "third:seq=1"), "no model of that name"),
        (files, "give --out"),
    ):
        refused = fadiff("compile", *wrong)
        assert refused.code == 2 and said in refused.err


def test_states_that_differ_are_named(
    fadiff: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    language_model(tmp_path / "a.onnx")
    monkeypatch.setattr("tests.stateful.SIZE", 16)
    language_model(tmp_path / "b.onnx")
    sizes = ("--entry", "a:seq=2", "--entry", "b:seq=1")
    ended = fadiff("compile", tmp_path / "a.onnx", tmp_path / "b.onnx", *sizes, "-o", tmp_path / "out")
    assert ended.code == 2
    assert "state past_key: a keeps it as int8" in ended.err
    assert not (tmp_path / "out").exists()


def test_a_prompt_goes_to_the_smallest_entry_that_it_fits(tmp_path: Path) -> None:
    """C and Python, for every length; weights of three entries once."""
    model = language_model(tmp_path / "lm.onnx")
    sizes = {"longer": 6, "short": 3, "step": 1}
    entries = [fadiff.Entry(name, model, {"seq": size}) for name, size in sizes.items()]
    out = fadiff.compile_entries(entries, tmp_path / "out", target="gemmini-small", method="layerwise").out
    target = OutputFolder(out / "step").document.target
    built = build_firmware(out / "firmware", target, tmp_path)
    library, machine = ctypes.CDLL(str(built)), Machine(target, check_regions=False)
    called: list[str] = []
    hook = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)

    def observer(name: str) -> object:
        def observe(_context: object, layer: int, phase: int) -> int:
            if layer == 0 and phase == 0:
                called.append(name)
            return 0

        return hook(observe)

    hooks = {name: observer(name) for name in sizes}
    for name, observe in hooks.items():
        getattr(library, f"lm_{name}_set_hook")(observe, None)
    python = fadiff.load(out)
    for length in range(1, TOKENS):
        prompt = [int(token) for token in np.random.default_rng(length).integers(0, VOCABULARY, length)]
        machine.reset()
        called.clear()
        assert library.lm_prompt((ctypes.c_int32 * length)(*prompt), length) == 0
        first = "short" if length <= 3 else "longer"
        assert called == [first] + ["step"] * max(0, length - 6)
        assert library.lm_argmax() == python.generate(prompt, 1)[0]
    machine.check()


def test_a_float_target_generates_what_the_file_does(tmp_path: Path) -> None:
    model = language_model(tmp_path / "lm.onnx")
    entries = [fadiff.Entry("prefill", model, {"seq": 4}), fadiff.Entry("decode", model, {"seq": 1})]
    options = {"target": "gemmini-fp32", "method": "layerwise"}
    result = fadiff.compile_entries(entries, tmp_path / "out", verify=True, **options)
    assert all(one.verification is not None and one.verification.passed for one in result.entries.values())
    for prompt in ([1, 2, 3], [1, 2, 3, 4, 5, 6]):
        session, text = session_of(model), list(prompt)
        empty = np.zeros((1, 2, TOKENS, 8), np.float32)
        kept = {"past_key": empty, "past_value": empty}
        for at in range(TOKENS):
            given = {"tokens": np.array([[text[at]]]), "position": np.array([at])}
            logits, key, value = session.run(["logits", "present_key", "present_value"], given | kept)
            kept = {"past_key": key, "past_value": value}
            if at >= len(prompt) - 1:
                text.append(int(logits.argmax()))
        count = TOKENS + 1 - len(prompt)
        assert list(fadiff.load(result.out).generate(prompt, count)) == text[len(prompt) :]


def test_one_entry_goes_on_from_call_to_call(tmp_path: Path) -> None:
    """All its calls are one run, as those of a model without entries."""
    model = language_model(tmp_path / "lm.onnx")
    steps = {"decode:tokens": np.arange(TOKENS)[:, None, None], "decode:position": np.arange(TOKENS)[:, None]}
    np.savez(tmp_path / "lm.inputs.npz", **steps)
    entry = fadiff.Entry("decode", model, {"seq": 1})
    options = {"target": "gemmini-small", "method": "layerwise"}
    result = fadiff.compile_entries([entry], tmp_path / "out", verify=True, **options)
    report = result.entries["decode"].verification
    assert report is not None and report.passed and report.vectors == TOKENS
    with np.load(result.out / "decode" / "verify" / "inputs.npz") as data:
        assert not data["float:past_key"][0].any()
        assert data["float:past_key"][TOKENS - 1].any(axis=(0, 1, 3)).sum() == TOKENS - 1
