"""A quantised model is compared with the file itself, and the user is told."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import quantize_static

from fadiff.converter import convert
from fadiff.original import compare_with_file
from fadiff.vectors import make_vectors
from tests.converter.oracle import Calibration
from tests.fadiff.models import small_network


def _images(brightest: float = 0.0) -> Calibration:
    generator = np.random.default_rng(0)
    shape = (8, 1, 8, 12, 12)
    images = brightest * generator.random(shape) if brightest else generator.standard_normal(shape)
    return Calibration({"image": image.astype(np.float32)} for image in images)


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small network with zero points and per-channel weights."""
    folder = tmp_path_factory.mktemp("quantised")
    path = folder / "quantised.onnx"
    quantize_static(small_network(folder / "float.onnx"), path, _images(), per_channel=True)
    return path


def test_the_sentence_says_what_is_measured(quantised: Path) -> None:
    conversion = convert(quantised)
    note = compare_with_file(make_vectors(conversion, None, seed=0))
    found = re.search(r"SQNR ([\d.]+) dB, top-1 equal in ([\d.]+) % \(16 random inputs\)", note)
    assert found and float(found[1]) > 25 and float(found[2]) > 90


def test_random_inputs_are_what_the_file_can_tell(tmp_path: Path) -> None:
    """Images of 0 to 255: no negative numbers, which their zero point cuts off, and not 0 to 3."""
    path = tmp_path / "quantised.onnx"
    quantize_static(small_network(tmp_path / "float.onnx"), path, _images(255.0))
    conversion = convert(path)
    vectors = make_vectors(conversion, None, seed=0)
    (image,) = vectors.onnx_inputs.values()
    assert image.min() >= 0 and 200 < image.max() < 256
    found = re.search(r"SQNR ([\d.]+) dB", compare_with_file(vectors))
    assert found and float(found[1]) > 25


def test_calibration_inputs_are_compared_where_there_are_any(quantised: Path) -> None:
    """Random ones may reach beyond what the file was made for, and say 19 dB where 42 are right."""
    samples = [{"image": image["image"]} for image in iter(_images().get_next, None)]
    note = compare_with_file(make_vectors(convert(quantised, calibration=samples), None, seed=0))
    assert "(8 calibration inputs)" in note
    found = re.search(r"SQNR ([\d.]+) dB", note)
    assert found and float(found[1]) > 25


def test_float_models_have_no_file_to_compare_with(tmp_path: Path) -> None:
    conversion = convert(small_network(tmp_path / "float.onnx"))
    assert compare_with_file(make_vectors(conversion, None, seed=0)) == ""


def test_a_difference_is_seen(quantised: Path) -> None:
    """A comparison that could not fail would be none: with other weights in the file it does."""
    conversion = convert(quantised)
    assert conversion.quantized_file is not None
    for tensor in conversion.quantized_file.graph.initializer:
        if tensor.name.startswith("w2") and tensor.name.endswith("_quantized"):
            array = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.roll(array, 1, 0), tensor.name))
    note = compare_with_file(make_vectors(conversion, None, seed=0))
    found = re.search(r"SQNR (-?[\d.]+) dB", note)
    assert found and float(found[1]) < 20


def test_compile_tells_bounds_and_agreement(fadiff, quantised: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    one_scale = ("--without", "channel-scales")
    ended = fadiff("compile", quantised, "--out", out, "--method", "layerwise", *one_scale)
    assert ended.code == 0
    notes = json.loads((out / "schedule.json").read_text())["conversion"]["notes"]
    for said in ("half a step", "steps of its finest channel", "against the file itself in ONNX Runtime"):
        assert said in ended.err and any(said in note for note in notes)
        assert said in (out / "report.html").read_text()


def test_an_unknown_rewrite_is_named(fadiff, tmp_path: Path) -> None:
    ended = fadiff("inspect", small_network(tmp_path / "net.onnx"), "--without", "fuse")
    assert ended.code == 2 and "fuse" in ended.err and "write-in-place" in ended.err
