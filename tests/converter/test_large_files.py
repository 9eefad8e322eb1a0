"""Large quantised files: weights stay where they are, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fadiff.converter import Conversion, convert
from fadiff.converter.ir import stored
from fadiff.converter.read import external_data
from fadiff.converter.read.load import load_model


@pytest.fixture
def quantised(tmp_path: Path) -> Path:
    """Rows of a table, then products with int8 weights of one scale and one per channel, and uint8 ones."""
    rng = np.random.default_rng(0)
    constants = {
        "one": np.float32(0.01),
        "zero": np.int8(0),
        "middle": np.uint8(128),
        "w_scale": np.float32(0.004),
        "c_scale": rng.uniform(0.002, 0.006, 24).astype(np.float32),
        "c_zero": np.zeros(24, np.int8),
        "table": rng.standard_normal((40, 16)).astype(np.float32),
        "w": rng.integers(-128, 128, (16, 32), dtype=np.int8),
        "c": rng.integers(-127, 128, (32, 24), dtype=np.int8),
        "u": rng.integers(0, 256, (24, 8), dtype=np.uint8),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], "look_up"),
        *_pair("rows"),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "zero"], ["w_f"], "w_dq"),
        helper.make_node("MatMul", ["rows_f", "w_f"], ["a"], "first"),
        *_pair("a"),
        helper.make_node("DequantizeLinear", ["c", "c_scale", "c_zero"], ["c_f"], "c_dq", axis=1),
        helper.make_node("MatMul", ["a_f", "c_f"], ["b"], "second"),
        *_pair("b"),
        helper.make_node("DequantizeLinear", ["u", "w_scale", "middle"], ["u_f"], "u_dq"),
        helper.make_node("MatMul", ["b_f", "u_f"], ["y"], "third"),
    ]
    graph = helper.make_graph(
        nodes,
        "quantised",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    path = tmp_path / "quantised.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def _pair(value: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("QuantizeLinear", [value, "one", "zero"], [f"{value}_q"]),
        helper.make_node("DequantizeLinear", [f"{value}_q", "one", "zero"], [f"{value}_f"]),
    ]


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "LARGE_MODEL", 1)
    monkeypatch.setattr(stored, "LARGE_WEIGHT", 1024)
    monkeypatch.setattr(stored, "_LARGE_INTEGERS", 1)
    monkeypatch.setattr(external_data, "SMALLEST_FILE", 1)
    monkeypatch.setattr(external_data, "_LARGE", 100)


def _content(conversion: Conversion) -> dict[str, tuple[object, ...]]:
    graph = conversion.graph
    weights = {layer.weight.tensor for layer in graph.tensor_core_layers}
    return {name: (graph.tensors[name].scale, graph.tensors[name].data.tobytes()) for name in sorted(weights)}


def test_integers_are_those_of_the_model_in_memory(quantised: Path, request: pytest.FixtureRequest) -> None:
    samples = [{"ids": np.array([i, 2 * i, 39 - i])} for i in range(4)]
    whole = convert(quantised, calibration=samples, without=("channel-scales",))  # none of what stays on disk
    request.getfixturevalue("in_place")
    model, weights, _ = load_model(quantised, {})
    assert set(weights) == {"table", "w_f", "c_f", "u_f"}
    assert all(place.file == quantised for place in weights.places.values())
    assert not {"w", "c", "u", "table"} & {tensor.name for tensor in model.graph.initializer}
    apart = convert(quantised, calibration=samples)
    found, wanted = _content(apart), _content(whole)
    assert len(found) == 3
    assert list(found.values()) == list(wanted.values())
    assert any("requantised per tensor" in note for note in apart.notes)


@pytest.mark.usefixtures("in_place")
def test_what_is_left_is_the_same_model(quantised: Path) -> None:
    content = external_data.slim_content(quantised)
    assert content is not None
    assert len(content) < quantised.stat().st_size - 16 * 32
    model = onnx.ModelProto.FromString(content)
    onnx.load_external_data_for_model(model, str(quantised.parent))
    for tensor in model.graph.initializer:
        if tensor.raw_data and tensor.HasField("data_location"):
            tensor.ClearField("data_location")
    assert model == onnx.load(quantised)


@pytest.mark.usefixtures("in_place")
@pytest.mark.parametrize("keep", [20, 300, 900, -40])
def test_damaged_files_are_left_to_the_parser(quantised: Path, keep: int) -> None:
    quantised.write_bytes(quantised.read_bytes()[:keep])
    assert external_data.slim_content(quantised) is None
