"""Mixed precision from the command line: named layers, as few as needed, what cannot be named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fadiff import compile
from fadiff.folder import OutputFolder
from tests.fadiff.models import pooled_and_joined, small_network, unlike_channels

FAST = ("--target", "gemmini-small", "--method", "layerwise", "-q")


def test_named_layers_run_in_float_and_are_verified(fadiff, tmp_path):
    model, out = small_network(tmp_path / "small.onnx"), tmp_path / "out"
    ended = fadiff(
        "compile",
        model,
        *FAST,
        "--out",
        out,
        "--verify",
        "--json",
        "--keep-float",
        "second,residual,classifier",
    )
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert found["verification"]["bit_exact"] and found["verification"]["traffic_exact"]
    assert found["kept_float"]["layers"] == ["second", "residual", "classifier"]
    assert 0 < found["kept_float"]["clock_cycles"] < found["totals"]["clock_cycles"]
    ops = {layer.name: layer.op for layer in OutputFolder(out).document.layers}
    assert ops["second"] == ops["classifier"] == "float_product" and ops["residual"] == "binary"
    assert ops["first"] == "conv"


def test_floats_are_pooled_enlarged_and_joined(fadiff, tmp_path):
    model, out = pooled_and_joined(tmp_path / "joined.onnx"), tmp_path / "out"
    keep = ("--keep-float", "one,two,three", "--min-top1", "0")
    ended = fadiff("compile", model, *FAST, "--out", out, "--verify", "--json", *keep)
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["verification"]["bit_exact"]
    document = OutputFolder(out).document
    conversions = [layer.name for layer in document.layers if layer.op in ("to_float", "to_int8")]
    assert len(conversions) == 2
    assert {"max_pool", "scale_shift"} <= {layer.op for layer in document.layers}


def test_auto_keeps_what_int8_loses(fadiff, tmp_path):
    model = unlike_channels(tmp_path / "unlike.onnx")
    lost = json.loads(fadiff("compile", model, *FAST, "--out", tmp_path / "int8", "--json").out)
    assert lost["accuracy"]["state"] == "failed" and lost["accuracy"]["sqnr_db"] < 10
    assert lost["kept_float"] is None
    ended = fadiff(
        "compile", model, *FAST, "--out", tmp_path / "out", "--verify", "--json", "--keep-float", "auto"
    )
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    kept = found["kept_float"]
    assert found["accuracy"]["sqnr_db"] > 10 and found["verification"]["bit_exact"]
    assert {"wide", "reader"} <= set(kept["layers"]) and "first" not in kept["layers"]
    assert kept["before_db"] < 10 < kept["after_db"]


def test_nothing_needs_float_where_int8_does(fadiff, tmp_path):
    model = unlike_channels(tmp_path / "unlike.onnx")
    ended = fadiff(
        "compile", model, *FAST, "--out", tmp_path / "out", "--keep-float", "auto", "--min-sqnr", "-20"
    )
    assert ended.code == 0 and "in float" not in ended.out
    assert any(
        "no layer in float32" in note for note in OutputFolder(tmp_path / "out").document.conversion.notes
    )


@pytest.mark.parametrize(
    ("option", "layers", "message"),
    [
        ("--keep-float", "third", "--keep-float third: no such layer or state"),
        ("--wide", "third", "--wide third: no such layer or state"),
        ("--keep-float", "secnd", "did you mean second?"),
        ("--keep-float", "pool", "GlobalAveragePool has no float32 form"),
        ("--keep-float", "auto", "at least 3 calibration samples"),
    ],
)
def test_what_cannot_be_kept(fadiff, tmp_path, option, layers, message):
    model = small_network(tmp_path / "small.onnx")
    ended = fadiff("compile", model, *FAST, "--out", tmp_path / "out", option, layers)
    assert ended.code == 2 and message in ended.err and ended.err.count("\n") == 1


def test_float_targets_have_nothing_to_keep(fadiff, tmp_path):
    model = small_network(tmp_path / "small.onnx")
    sources = []
    for name, more in (("plain", ()), ("kept", ("--keep-float", "second"))):
        out = tmp_path / name
        arguments = ("--target", "gemmini-fp32", "--method", "layerwise", "-q", "--out", out, *more)
        assert fadiff("compile", model, *arguments).code == 0
        sources.append((Path(out) / "firmware" / "small.c").read_bytes())
    assert sources[0] == sources[1]


def test_a_goal_out_of_reach_costs_nothing(fadiff, tmp_path):
    """Outputs are int8 in any case: no layer in float gives them 100 dB."""
    model = unlike_channels(tmp_path / "unlike.onnx")
    arguments = (
        "compile",
        model,
        *FAST,
        "--out",
        tmp_path / "out",
        "--keep-float",
        "auto",
        "--min-sqnr",
        "100",
    )
    ended = fadiff(*arguments)
    assert ended.code == 1 and "100.0 dB are out of reach" in ended.err
    assert OutputFolder(tmp_path / "out").document.conversion.kept_float is None


def test_python_takes_a_name(tmp_path):
    model, search = (
        unlike_channels(tmp_path / "unlike.onnx"),
        {"target": "gemmini-small", "method": "layerwise"},
    )
    for i, (keep, layers) in enumerate((("first", ("first",)), (["first", "reader"], ("first", "reader")))):
        kept = compile(model, tmp_path / str(i), keep_float=keep, **search).document.conversion.kept_float
        assert kept is not None and kept.layers == layers
    kept = compile(model, tmp_path / "auto", keep_float="auto", **search).document.conversion.kept_float
    assert kept is not None and "wide" in kept.layers
