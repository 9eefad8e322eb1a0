"""States that stay float32 between runs: an int8 cell that grows stands still, a float one does not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import fadiff as api
from fadiff.converter import ModelError, convert
from fadiff.converter.ir.recurrence import State, chained
from fadiff.folder import OutputFolder
from tests.converter.oracle import model_of, weights
from tests.stateful import STEPS, cached_convolution, decoder, growing_lstm, gru, sequence, session_of

FAST = {"target": "gemmini-small", "method": "layerwise"}


def late_db(model: Path, folder: Path, state: State) -> float:
    """Signal to noise of y in steps 41 to 50, each side with a state of its own."""
    session, xs = session_of(model), sequence(model, 2)
    names = [output.name for output in session.get_outputs()]
    shape = next(node.shape for node in session.get_inputs() if node.name == state.input)
    steps = ({"x": x, state.input: np.zeros(shape, np.float32)} for x in xs)
    runs = chained(lambda given: dict(zip(names, session.run(names, given), strict=True)), steps, [state])
    wanted = np.stack([found["y"] for _, found in runs])[40:]
    found = api.load(folder).predict({"x": xs})["y"][40:]
    return 10 * float(np.log10(np.sum(wanted**2) / np.sum((wanted - found) ** 2)))


def with_data(model: Path) -> Path:
    for name, seed, count in (("calibration", 1, 60), ("inputs", 2, STEPS)):
        np.savez(model.with_suffix(f".{name}.npz"), x=sequence(model, seed, count))
    return model


@pytest.fixture(scope="module")
def lstm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_data(growing_lstm(tmp_path_factory.mktemp("lstm") / "lstm.onnx"))


@pytest.fixture(scope="module")
def in_float(lstm: Path) -> Path:
    """The LSTM with its state in float, compiled and verified over fifty steps."""
    result = api.compile(lstm, lstm.parent / "float", keep_float="state", verify=True, **FAST)
    verification = result.verification
    assert verification is not None and verification.vectors == STEPS
    assert verification.bit_exact and verification.traffic_exact
    return lstm.parent / "float"


def test_a_cell_that_grows_is_as_good_after_fifty_steps(lstm: Path, in_float: Path) -> None:
    state = State("state_out", "state")
    result = api.compile(lstm, lstm.parent / "int8", **FAST)
    assert late_db(lstm, lstm.parent / "int8", state) < 12
    assert late_db(lstm, in_float, state) > 20
    assert result.document.conversion.kept_float is None


def test_where_states_lose_the_advice_names_them(
    fadiff: Callable[..., object], lstm: Path, tmp_path: Path
) -> None:
    arguments = ("compile", lstm, "--target", "gemmini-small", "--method", "layerwise", "-q")
    ended = fadiff(*arguments, "-o", tmp_path / "out")
    assert ended.code == 1
    assert re.search(r"what is kept from step to step .*: --keep-float state; ", ended.out), ended.out
    ended = fadiff(*arguments, "-o", tmp_path / "auto", "--keep-float", "auto")
    assert ended.code == 0
    assert "state state from run to run" in ended.out and "kept from step to step" not in ended.out


def test_the_firmware_says_what_type_a_state_has(in_float: Path) -> None:
    header = (in_float / "firmware" / "lstm.h").read_text()
    size = 4 * 2 * 24
    assert "#define LSTM_STATE0_TYPE float\n" in header
    assert f"#define LSTM_STATE0_BYTES {size}\n" in header and f"#define LSTM_STATE_BYTES {size}\n" in header
    memory_map = json.loads((in_float / "firmware" / "memory_map.json").read_text())
    for end in ("input", "output"):
        place = memory_map["tensors"][memory_map["states"][0][end]]
        assert (place["symbol"], place["dtype"], place["bytes"]) == ("state", "float32", size)
    assert OutputFolder(in_float).document.conversion.kept_float.states == ("state",)


def test_main_runs_several_steps(in_float: Path) -> None:
    done = subprocess.run(
        ["make", "-s", "check", f"PYTHON={sys.executable}"],
        cwd=in_float / "firmware",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "all outputs agree in 4 steps" in done.stdout, done.stdout + done.stderr


def test_products_read_a_rounded_state(tmp_path: Path) -> None:
    """A GRU multiplies its state by weights, in int8, and by a gate, in float."""
    model = with_data(gru(tmp_path / "gru.onnx"))
    result = api.compile(model, tmp_path / "out", keep_float="hn", verify=True, **FAST)
    assert result.verification is not None
    assert result.verification.bit_exact and result.verification.traffic_exact
    layers = result.document.layers
    readers = {layer.op for layer in layers if "h" in layer.inputs}
    assert readers == {"to_int8", "binary"}
    assert late_db(model, tmp_path / "out", State("hn", "h")) > 40


def test_a_sum_is_kept_in_float_and_read_in_int8_in_the_same_run(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["part"], "project"),
        helper.make_node("Add", ["state", "part"], ["state_out"], "accumulate"),
        helper.make_node("MatMul", ["state_out", "v"], ["y"], "read"),
    ]
    shape = (1, 1, 12)
    constants = {"w": weights(0, 12, 12) / 50, "v": weights(1, 12, 12)}
    net = model_of(nodes, {"x": shape, "state": shape}, {"y": None, "state_out": shape}, constants)
    onnx.save(net, tmp_path / "sum.onnx")
    model = with_data(tmp_path / "sum.onnx")
    result = api.compile(model, tmp_path / "out", keep_float="accumulate", verify=True, **FAST)
    assert result.verification is not None
    assert result.verification.bit_exact and result.verification.traffic_exact
    assert result.document.conversion.kept_float.states == ("state",)
    assert late_db(model, tmp_path / "out", State("state_out", "state")) > 20


def test_layers_that_write_and_read_a_state_keep_it(lstm: Path) -> None:
    """All moves between them and the state are in float, too."""
    named = convert(lstm, keep_float=["lstm.Mul_14", "lstm.Add_15"]).graph
    (state,) = named.states
    assert {named.tensors[state.input].dtype, named.tensors[state.output].dtype} == {"float32"}
    writer_alone = convert(lstm, keep_float=["read"]).graph
    (state,) = writer_alone.states
    assert {writer_alone.tensors[end].dtype for end in (state.input, state.output)} == {"int8"}


@pytest.mark.parametrize(("make", "state"), [(cached_convolution, "cache_out"), (decoder, "past_key")])
def test_what_is_only_moved_gains_nothing(make: Callable[[Path], Path], state: str, tmp_path: Path) -> None:
    model = make(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=f"--keep-float {state}: no arithmetic on single elements"):
        convert(model, keep_float=[state])
