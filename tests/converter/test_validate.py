"""What is wrong with a model is said at the door, in one line, by what a mutated file can hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from fadiff.converter import ModelError, convert
from fadiff.converter.read import validate


def _network() -> onnx.ModelProto:
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]> net (float[1,4,8,8] x) => (float[1,4,8,8] y) {
            a = Conv <kernel_shape = [1, 1]> (x, w)
            y = Relu (a)
        }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 4, 1, 1), np.float32), "w"))
    for node in model.graph.node:
        node.name = f"the_{node.op_type}"
    return model


def _message(model: onnx.ModelProto | bytes, path: Path) -> str:
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    with pytest.raises(ModelError) as caught:
        convert(path, calibrate=False)
    message = str(caught.value)
    assert message.isprintable() and str(path) in message
    return message


def _body(model: onnx.ModelProto, op: str, **attributes: object) -> None:
    model.graph.node[1].CopyFrom(helper.make_node(op, ["a"], ["y"], "the_control", **attributes))


Change = Callable[[onnx.ModelProto], object]


def _weight(model: onnx.ModelProto) -> TensorProto:
    return model.graph.initializer[0]


CHANGES: dict[str, tuple[Change, str]] = {
    "unknown type": (lambda m: setattr(_weight(m), "data_type", 99), "element type 99"),
    "no type": (lambda m: setattr(_weight(m), "data_type", 0), "element type 0"),
    "more data than sizes": (lambda m: _weight(m).dims.__setitem__(0, 2), "need"),
    "less data than sizes": (lambda m: _weight(m).dims.append(2), "need"),
    "negative size": (lambda m: _weight(m).dims.append(-1), "negative size"),
    "huge size": (lambda m: _weight(m).dims.append(2**60), "need"),
    "wrong field": (
        lambda m: (_weight(m).ClearField("raw_data"), _weight(m).float_data.extend([1])),
        "numbers",
    ),
    "type of an input": (lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 77), "77"),
    "no branches": (lambda m: _body(m, "If"), "_branch"),
    "no body": (lambda m: _body(m, "Loop"), "Loop needs"),
    "no scan body": (lambda m: _body(m, "Scan", num_scan_inputs=1), "body"),
    "empty body": (
        lambda m: _body(m, "Scan", num_scan_inputs=1, body=helper.make_graph([], "b", [], [])),
        "same values in and out",
    ),
    "input left out": (lambda m: m.graph.node[0].input.pop(), "inputs"),
    "attribute of another type": (
        lambda m: m.graph.node[0].attribute[0].CopyFrom(helper.make_attribute("kernel_shape", "one")),
        "another type",
    ),
    "attribute without a type": (lambda m: m.graph.node[0].attribute[0].ClearField("type"), "no type"),
    "a stride of zero": (
        lambda m: m.graph.node[0].attribute.append(helper.make_attribute("strides", [0, 1])),
        "strides",
    ),
    "no groups": (lambda m: m.graph.node[0].attribute.append(helper.make_attribute("group", 0)), "group"),
    "a value": (lambda m: m.graph.node.append(helper.make_node("Constant", [], ["c"])), "Constant"),
    "a text": (
        lambda m: m.graph.node[0].attribute.append(helper.make_attribute("auto_pad", b"\xff")),
        "not UTF-8",
    ),
    "a value from nowhere": (lambda m: m.graph.node[0].input.__setitem__(0, "z"), "nothing computes z"),
    "an input's name": (
        lambda m: (setattr(m.graph.input[0], "name", "x\0"), m.graph.node[0].input.__setitem__(0, "x\0")),
        "x\\x00",
    ),
    "a value's name": (lambda m: m.graph.node[1].output.append("\x1b[31m"), "\\x1b"),
    "a larger window than image": (
        lambda m: m.graph.node[0].attribute.append(helper.make_attribute("pads", [-4, -4, -4, -4])),
        "",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_contradicts_itself_is_refused(tmp_path: Path, name: str) -> None:
    change, says = CHANGES[name]
    model = _network()
    change(model)
    assert says in _message(model, tmp_path / "m.onnx")


@pytest.mark.parametrize("name", [b"the_Conv", b"kernel_shape", b"net"])
def test_names_that_are_no_text(tmp_path: Path, name: bytes) -> None:
    content = _network().SerializeToString()
    assert name in content
    _message(content.replace(name, b"\xff" * len(name)), tmp_path / "m.onnx")


def test_names_of_nodes_become_printable(tmp_path: Path) -> None:
    model = _network()
    model.graph.node[0].name = "turn\u202earound\x1b[31m\n"
    onnx.save(model, tmp_path / "m.onnx")
    (layer,) = convert(tmp_path / "m.onnx", calibrate=False).graph.layers
    assert layer.name.isprintable() and layer.onnx_nodes == ("turn\\u202earound\\x1b[31m\\n", "the_Relu")


@pytest.mark.parametrize(
    ("text", "constants"),
    [
        ("y = ConvTranspose <strides = [2, 2147483647]> (x, w)", {}),
        ("c = ConstantOfShape (s) y = Add (x, c)", {"s": np.array([2**40])}),
        ("y = Conv <pads = [268435456, 268435456, 268435456, 268435456]> (x, w)", {}),
        (
            "r = Range (s, t, s) c = Cast <to = 1> (r) y = Add (x, c)",
            {"s": np.array(1), "t": np.array(2**36)},
        ),
    ],
)
def test_a_value_that_no_memory_holds(tmp_path: Path, text: str, constants: dict[str, np.ndarray]) -> None:
    model = parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 17]> net (float[1,4,8,8] x) => (float[n] y) {{ {text} }}'
    )
    for name, array in {"w": np.ones((4, 4, 3, 3), np.float32), **constants}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    assert "memory" in _message(model, tmp_path / "m.onnx")


@pytest.mark.parametrize(("steps", "says"), [(2**40, "memory"), (2**20, "1048576 time steps")])
def test_sequences_without_end(tmp_path: Path, steps: int, says: str) -> None:
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]> net (float[{steps},1,4] x) => (float y) {{
            y = LSTM <hidden_size = 4> (x, w, r)
        }}"""
    )
    for name in ("w", "r"):
        model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 16, 4), np.float32), name))
    assert says in _message(model, tmp_path / "m.onnx")


def test_a_failure_behind_the_door_is_the_models_fault_or_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime decides: what it loads and we fail on is a bug, and stays one."""

    def failing(*_: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("fadiff.converter.pipeline.simplify", failing)
    model = _network()
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(KeyError):
        convert(tmp_path / "m.onnx")
    model.graph.node[1].output[0] = "a"
    assert "two nodes compute a" in _message(model, tmp_path / "m.onnx")
    model.graph.node[1].output[0] = "y"
    model.graph.node[1].op_type = "Rely"
    assert "Rely" in _message(model, tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("y = Conv <group = 2, kernel_shape = [1, 1]> (x, w)", "do not fit 4 channels"),
        ("y, z = Split <axis = 1> (x, p)", "does not fall into"),
        ("y = PRelu (x, w)", "do not broadcast"),
        ("y, z = Split <axis = 1, num_outputs = 1> (x)", "num_outputs is 1"),
        ("y = Unsqueeze (x, p)", "cannot become"),
    ],
)
def test_what_onnx_runtime_finds_only_when_it_runs(tmp_path: Path, text: str, says: str) -> None:
    """Declared shapes are all that is known behind sizes that are inputs, and may be wrong."""
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        net (float[1,4,8,8] x, int64[2] p) => (float[1,2,8] y, float[1] z) {{ {text} }}"""
    )
    if "z" not in text.partition("=")[0]:
        del model.graph.output[1]
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 4, 1, 3), np.float32), "w"))
    assert says in _message(model, tmp_path / "m.onnx")


def test_an_input_that_is_an_output(tmp_path: Path) -> None:
    model = _network()
    model.graph.output.append(model.graph.input[0])
    onnx.save(model, tmp_path / "m.onnx")
    assert len(convert(tmp_path / "m.onnx", calibrate=False).graph.outputs) == 2


def test_good_models_of_all_kinds_pass() -> None:
    """Optional inputs left out, packed 4-bit weights, constants in typed fields, functions, subgraphs."""
    model = _network()
    model.graph.initializer.append(helper.make_tensor("int4", TensorProto.INT4, [3], [1, -2, 3]))
    model.graph.initializer.append(helper.make_tensor("half", TensorProto.FLOAT16, [2], [1.0, 2.0]))
    model.graph.initializer.append(helper.make_tensor("pair", TensorProto.COMPLEX64, [2], [1j, 2.0]))
    model.graph.initializer.append(helper.make_tensor("text", TensorProto.STRING, [1], [b"text"]))
    model.graph.initializer.append(helper.make_tensor("none", TensorProto.FLOAT, [0], []))
    model.graph.node.append(helper.make_node("Clip", ["y", "", "w"], ["clipped"]))
    model.graph.node.append(helper.make_node("Own", [], [], domain="org.example", what=b"\xff"))
    branch = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "b", [], model.graph.output[:1])
    model.graph.node.append(helper.make_node("If", ["x"], ["i"], then_branch=branch, else_branch=branch))
    validate.check_model(Path("m.onnx"), model)
