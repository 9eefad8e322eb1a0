"""Files that cannot be converted: one line, with file, node and remedy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fadiff.converter import ModelError, UnsupportedError, convert
from tests.converter.oracle import model_of, weights


def _linear(batch: int | str = 1) -> onnx.ModelProto:
    node = helper.make_node("Gemm", ["x", "w"], ["y"], name="fc")
    return model_of([node], {"x": (batch, 8)}, {"y": None}, {"w": weights(0, 8, 4)})


def _message(path: Path, **options: object) -> str:
    with pytest.raises(ModelError) as caught:
        convert(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


def test_missing_file(tmp_path: Path) -> None:
    assert "cannot read" in _message(tmp_path / "none.onnx")


@pytest.mark.parametrize("keep", [10, 60, 150])
def test_truncated_file(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "cut.onnx"
    content = _linear().SerializeToString()
    path.write_bytes(content[: len(content) - keep])
    assert "truncated" in _message(path)


@pytest.mark.parametrize("content", [b"", b"hello world, this is no model", b"PK\x03\x04zip", b"\x89PNG\r\n"])
def test_not_onnx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "text.onnx"
    path.write_bytes(content)
    assert "not an ONNX" in _message(path)


def test_unbound_symbolic_batch(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_linear("batch"), path)
    message = _message(path)
    assert "--dim batch=1" in message
    assert "x" in message
    graph = convert(path, dims={"batch": 3}).graph
    assert graph.tensor_core_layers[0].dims.P == 3


def test_unknown_dimension_name(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_linear(), path)
    assert "--dim n: no input has" in _message(path, dims={"n": 2})
    assert "leave it out" in _message(path, dims={"n": 2})
    onnx.save(_linear("batch"), path)
    assert "there are batch" in _message(path, dims={"batch": 1, "n": 2})


def test_a_sequence_as_an_input(tmp_path: Path) -> None:
    path, model = tmp_path / "m.onnx", _linear()
    model.graph.input.append(helper.make_tensor_sequence_value_info("boxes", TensorProto.FLOAT, None))
    onnx.save(model, path)
    assert "input boxes is no tensor" in _message(path)


def test_missing_external_data(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_linear(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    convert(path)
    (tmp_path / "m.data").unlink()
    conversion = convert(path)
    assert "no numbers" in str((conversion.notes, conversion.warnings))


def test_short_external_data(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_linear(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").write_bytes(b"1234")
    assert "4 bytes" in _message(path)


def test_all_unsupported_operators_in_one_message(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Det", ["x"], ["a"], name="first"),
        helper.make_node("Exotic", ["x"], ["b"], name="second", domain="org.example"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4, 4])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "ab"],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("org.example", 1)]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    with pytest.raises(UnsupportedError) as caught:
        convert(path)
    assert [(p.node, p.op) for p in caught.value.problems] == [("first", "Det"), ("second", "Exotic")]
    assert "org.example.Exotic" in str(caught.value)


def test_calibration_of_another_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_linear(), path)
    np.savez(tmp_path / "c.npz", y=np.zeros((2, 1, 8), np.float32))
    with pytest.raises(ModelError, match=r"no array named 'x'"):
        convert(path, calibration=tmp_path / "c.npz")
    np.savez(tmp_path / "c.npz", x=np.zeros((2, 1, 9), np.float32))
    with pytest.raises(ModelError, match=r"expected"):
        convert(path, calibration=tmp_path / "c.npz")


def test_missing_calibration_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_linear(), path)
    assert "calibration" in convert(path).warnings[0]


def test_what_no_output_depends_on_is_left_out(tmp_path: Path) -> None:
    """An auxiliary head whose output was cut off the graph."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"]),
        helper.make_node("Conv", ["y", "v"], ["head"]),
        helper.make_node("Relu", ["head"], ["nowhere"]),
    ]
    constants = {"w": weights(0, 4, 3, 3, 3), "v": weights(1, 4, 4, 3, 3)}
    onnx.save(model_of(nodes, {"x": (1, 3, 8, 8)}, {"y": None}, constants), tmp_path / "m.onnx")
    assert [layer.op for layer in convert(tmp_path / "m.onnx").graph.layers] == ["conv"]


def _with_sizes(path: Path, *sizes: tuple[int | str | None, ...]) -> Path:
    """The sum of inputs a, b, c... of these shapes."""
    names = "abc"[: len(sizes)]
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s))
        for n, s in zip(names, sizes, strict=True)
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [helper.make_node("Concat", list(names), ["y"], axis=-1)]
    graph = helper.make_graph(nodes, "g", inputs, [output])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("unnamed", [None, "?", ""])
def test_dimensions_without_a_name_are_bound_by_place(tmp_path: Path, unnamed: str | None) -> None:
    """Equal marks are not equal sizes."""
    path = _with_sizes(tmp_path / "m.onnx", (1, unnamed), (1, unnamed))
    message = _message(path)
    assert "--dim a.1=1 --dim b.1=1" in message and "'?'" not in message
    graph = convert(path, dims={"a.1": 3, "b.1": 5}, calibrate=False).graph
    assert [graph.tensors[name].shape for name in graph.inputs] == [(1, 3), (1, 5)]


def test_sums_are_computed_from_bound_parts(tmp_path: Path) -> None:
    path = _with_sizes(tmp_path / "m.onnx", (1, "past"), (1, "past + seq"), (1, "2*seq-1"))
    assert "--dim past=1 --dim seq=1" in _message(path)
    assert "'past + seq'" in _message(path, dims={"past": 4}) and "--dim seq=1" in _message(path)
    graph = convert(path, dims={"past": 4, "seq": 3}, calibrate=False).graph
    assert [graph.tensors[name].shape[1] for name in graph.inputs] == [4, 7, 5]
    graph = convert(path, dims={"past": 4, "seq": 3, "past + seq": 9}, calibrate=False).graph
    assert graph.tensors[graph.inputs[1]].shape[1] == 9
    assert "would be 0" in _message(_with_sizes(path, (1, "n - n")), dims={"n": 2})


def test_a_misspelt_dimension_is_named(tmp_path: Path) -> None:
    """Also where others are still open."""
    path = _with_sizes(tmp_path / "m.onnx", ("batch", "sequence"))
    message = _message(path, dims={"sequense": 4})
    assert "--dim sequense: no input has a dimension of this name; did you mean sequence?" in message
    assert "did you mean a.1?" in _message(path, dims={"a.7": 4})
