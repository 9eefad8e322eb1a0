"""Models whose weights stay on disk become what the same models in memory become."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import uses_external_data

from fadiff.cli import main
from fadiff.converter import convert
from fadiff.converter.ir import stored
from fadiff.converter.read.load import load_model
from fadiff.converter.read.runtime import run_model
from fadiff.samples.catalog import SAMPLES
from fadiff.samples.export import export
from tests.converter.oracle import session

_SIZES = {"seq": 16, "layers": 2, "width": 128}


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two GPT-3 blocks of a small width, one exported and repeated, external data beside the file."""
    path = tmp_path_factory.mktemp("blocks") / "gpt3.onnx"
    export(SAMPLES["gpt3-block"], path, options=_SIZES)
    return path


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "LARGE_MODEL", 1)
    monkeypatch.setattr(stored, "LARGE_WEIGHT", 2**14)
    monkeypatch.setattr(stored, "_LARGE_GRAPH", 1)
    monkeypatch.setattr(stored, "_LARGE", 2**12)
    monkeypatch.setattr("fadiff.converter.read.runtime._PIECE_BYTES", 2**17)


def test_repeated_blocks_are_a_network(blocks: Path) -> None:
    model = onnx.load(blocks, load_external_data=False)
    weights = [t for t in model.graph.initializer if uses_external_data(t)]
    assert len(weights) == 2 * len([t for t in weights if t.name.startswith("block0.")])
    onnx.checker.check_model(str(blocks))
    data = np.load(blocks.with_suffix(".inputs.npz"))["input"]
    first, second = (session(onnx.load(blocks)).run(None, {"input": x})[0] for x in data[:2])
    assert np.isfinite(first).all() and np.abs(first - second).max() > 0.1
    products = [layer for layer in convert(blocks).graph.tensor_core_layers if layer.op == "gemm"]
    assert len(products) == 2 * 6
    assert len({layer.name for layer in products}) == 12


@pytest.mark.usefixtures("everything_is_large")
def test_weights_stay_in_their_file(blocks: Path) -> None:
    model, weights, _ = load_model(blocks, {})
    assert len(weights) == 2 * 6
    assert all(place.file == blocks.parent / "gpt3.onnx.data" for place in weights.places.values())
    assert sum(len(tensor.raw_data) for tensor in model.graph.initializer) < blocks.stat().st_size
    whole = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(blocks).graph.initializer}
    for name, array in weights.items():
        assert isinstance(array, np.memmap)
        np.testing.assert_array_equal(array, whole[name])


def test_the_graph_is_the_same(blocks: Path, request: pytest.FixtureRequest) -> None:
    others = ["channel-scales", "choose-ranges", "correct-biases", "round-weights", "shift-zeros"]
    inline = convert(blocks, without=others)  # (what is tried with weights in memory only)
    request.getfixturevalue("everything_is_large")
    streamed = convert(blocks)
    assert not inline.float_weights and streamed.float_weights
    assert [layer.name for layer in streamed.graph.layers] == [layer.name for layer in inline.graph.layers]
    for name, tensor in inline.graph.tensors.items():
        other = streamed.graph.tensors[name]
        assert other.shape == tensor.shape
        assert (other.scale or 0) == pytest.approx(tensor.scale or 0, rel=1e-5)
        if tensor.data is not None and tensor.dtype == "int8":
            np.testing.assert_allclose(other.data, tensor.data, atol=1)  # the scale's last bit


@pytest.mark.usefixtures("everything_is_large")
def test_pieces_compute_what_the_whole_computes(blocks: Path) -> None:
    conversion = convert(blocks)
    (output,) = (value.name for value in conversion.float_model.graph.output)
    data = np.load(blocks.with_suffix(".inputs.npz"))["input"][:2]
    samples = [{"input": x} for x in data]
    found = dict(run_model(conversion.program, samples, {output}))
    for x, result in zip(data, found[output], strict=True):
        (whole,) = session(onnx.load(blocks)).run(None, {"input": x})
        np.testing.assert_allclose(result, whole, atol=1e-4)


@pytest.mark.usefixtures("everything_is_large")
def test_compiled_and_verified(blocks: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["compile", blocks, "--out", out, "--method", "layerwise", "--verify", "-q"]
    assert main([str(a) for a in arguments]) == 0
    reference = onnx.load(out / "verify" / "reference.onnx", load_external_data=False)
    assert any(uses_external_data(tensor) for tensor in reference.graph.initializer)
    assert (out / "verify" / "weights.bin").stat().st_size > 2 * 10 * 128 * 128


def test_weights_in_the_model_file_move_to_a_temporary_one(
    blocks: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "inline.onnx"
    onnx.save(onnx.load(blocks), path)
    request.getfixturevalue("everything_is_large")
    model, weights, _ = load_model(path, {})
    assert len(weights) == 2 * 6 and not any(t.name in weights for t in model.graph.initializer)
    whole = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(blocks).graph.initializer}
    for name, array in weights.items():
        np.testing.assert_array_equal(array, whole[name])
