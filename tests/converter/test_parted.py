"""Parts of one product that are all used keep scales of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import Conversion, convert
from fadiff.converter.check.reference import run_reference
from fadiff.converter.check.storage import from_storage, store_inputs
from tests.converter.oracle import ints, model_of, session, sqnr_db, weights

SIZE = np.array([1.0] * 4 + [300.0] * 4 + [5.0] * 4, np.float32)
"""Of the columns: three parts of unlike size."""
PARTS = {
    "split": [helper.make_node("Split", ["h"], ["a", "b", "c"], axis=1)],
    "slice": [
        helper.make_node("Slice", ["h", "i0", "i4", "one"], ["a"]),
        helper.make_node("Slice", ["h", "i4", "i8", "one"], ["b"]),
        helper.make_node("Slice", ["h", "i8", "i12", "one"], ["c"]),
    ],
    "gather": [
        helper.make_node("Gather", ["h", f"at{name}"], [name], axis=1) for name in "abc"
    ],
}  # fmt: skip


def _heads(kind: str, product: str) -> onnx.ModelProto:
    """Mean, gate and value of one product: outputs of their own, one through a tanh."""
    shape = (1, -1, 1, 1) if product == "conv" else (-1,)
    first = {
        "gemm": [helper.make_node("Gemm", ["x", "w", "bias"], ["h"], transB=1)],
        "matmul": [
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("Add", ["bias", "p"], ["s"]),
            helper.make_node("Relu", ["s"], ["h"]),
        ],
        "conv": [
            helper.make_node("Conv", ["x", "w"], ["p"]),
            helper.make_node("Sub", ["p", "bias"], ["h"]),
        ],
    }[product]
    nodes = [
        *first,
        *PARTS[kind],
        helper.make_node("Identity", ["a"], ["mean"]),
        helper.make_node("Tanh", ["c"], ["gate"]),
        helper.make_node("Mul", ["b", "half"], ["value"]),
    ]
    w = {"gemm": weights(1, 12, 16), "matmul": weights(1, 16, 12), "conv": weights(1, 12, 16, 1, 1)}[product]
    along = (1, -1) if product == "matmul" else (-1, *(1 for _ in w.shape[1:]))
    constants: dict[str, np.ndarray] = {
        "w": 0.1 * w * SIZE.reshape(along),
        "bias": (weights(2, 12) * SIZE).reshape(shape),
        "half": np.array(0.5, np.float32),
        **{f"i{i}": ints(i) for i in (0, 4, 8, 12)},
        "one": ints(1),
        **{f"at{name}": ints(*range(4 * i, 4 * i + 4)) for i, name in enumerate("abc")},
    }
    read = {name for node in nodes for name in node.input}
    used = {name: array for name, array in constants.items() if name in read}
    shape_in: tuple[int, ...] = (1, 16, 3, 3) if product == "conv" else (1, 16)
    return model_of(nodes, {"x": shape_in}, {"mean": None, "gate": None, "value": None}, used)


def _figures(model: onnx.ModelProto, conversion: Conversion) -> dict[str, float]:
    """SQNR of every output, on 16 samples that calibration has not seen."""
    graph, names = conversion.graph, [value.name for value in model.graph.output]
    shape = tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    real, found = [list[np.ndarray]() for _ in names], [list[np.ndarray]() for _ in names]
    for seed in range(100, 116):
        feeds = {"x": weights(seed, *shape)}
        stored = run_reference(graph, store_inputs(graph, feeds))
        for i, value in enumerate(session(model).run(None, feeds)):
            real[i].append(value)
            found[i].append(
                from_storage(graph.tensors[graph.outputs[i]], stored[graph.outputs[i]], value.shape)
            )
    return {name: sqnr_db(np.array(real[i]), np.array(found[i])) for i, name in enumerate(names)}


@pytest.mark.parametrize("product", ["gemm", "matmul", "conv"])
@pytest.mark.parametrize("kind", PARTS)
def test_every_part_of_a_product_keeps_its_scale(kind: str, product: str, tmp_path: Path) -> None:
    model = _heads(kind, product)
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    shape = (1, 16, 3, 3) if product == "conv" else (1, 16)
    samples = [{"x": weights(i, *shape)} for i in range(12)]
    plain = convert(path, calibration=samples, without=["equalise-channels"])
    conversion = convert(path, calibration=samples)
    before, now = _figures(model, plain), _figures(model, conversion)
    assert before["mean"] < 12 and before["gate"] < 12
    assert now["mean"] > 30 and now["gate"] > 25 and now["value"] > before["value"] - 1
    assert len(conversion.graph.layers) == len(plain.graph.layers)
    floats = session(conversion.float_model)
    for expected, got in zip(*(net.run(None, samples[0]) for net in (session(model), floats)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_no_weight_becomes_larger_than_the_largest(tmp_path: Path) -> None:
    """A part that is small although its weights are not (its inputs are) stays as it is."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Split", ["h"], ["a", "b"], axis=1),
        helper.make_node("Tanh", ["a"], ["y"]),
        helper.make_node("Identity", ["b"], ["z"]),
    ]
    w = np.zeros((16, 8), np.float32)
    w[:8, :4], w[8:, 4:] = weights(1, 8, 4), weights(2, 8, 4)
    onnx.save(model_of(nodes, {"x": (1, 16)}, {"y": None, "z": None}, {"w": w}), tmp_path / "m.onnx")
    size = np.repeat(np.array([0.01, 1], np.float32), 8)
    samples = [{"x": weights(i, 1, 16) * size} for i in range(12)]
    conversion = convert(tmp_path / "m.onnx", calibration=samples, without=["fold-inputs"])
    assert not any("parts of one product" in note for note in conversion.notes)


JOINED: dict[str, list[onnx.NodeProto]] = {
    "inputs": [helper.make_node("Identity", ["v"], ["w0"])],
    "a table": [helper.make_node("Tanh", ["v"], ["w0"])],
    "a product": [
        helper.make_node("MatMul", ["v", "wv"], ["v1"]),
        helper.make_node("Add", ["v1", "bv"], ["v2"]),
        helper.make_node("Relu", ["v2"], ["w0"]),
    ],
    "others": [helper.make_node("Mul", ["v", "v"], ["w0"])],
}


@pytest.mark.parametrize("kind", JOINED)
def test_what_a_concat_joins_for_products_keeps_its_scale(kind: str, tmp_path: Path) -> None:
    """Positions in millimetres beside speeds in metres per second."""
    nodes = [
        *JOINED[kind],
        helper.make_node("Concat", ["p", "w0"], ["j"], axis=1),
        helper.make_node("Gemm", ["j", "w"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "u"], ["y"]),
        helper.make_node("MatMul", ["j", "w2"], ["z"]),
    ]
    row = np.repeat(np.array([1e-3, 1], np.float32), 3)
    constants = {"w": weights(1, 16, 6) * row, "u": weights(2, 16, 3), "w2": weights(5, 6, 4) * row[:, None]}
    if kind == "a product":
        constants |= {"wv": weights(3, 3, 3), "bv": weights(4, 3)}
    model = model_of(nodes, {"p": (1, 3), "v": (1, 3)}, {"y": None, "z": None}, constants)
    onnx.save(model, tmp_path / "m.onnx")
    samples = [{"p": 1000 * weights(i, 1, 3), "v": weights(500 + i, 1, 3)} for i in range(64)]
    plain = convert(tmp_path / "m.onnx", calibration=samples[:48], without=["equalise-channels"])
    conversion = convert(tmp_path / "m.onnx", calibration=samples[:48])
    names = ("y", "z")
    floats = session(conversion.float_model)
    for expected, got in zip(*(net.run(None, samples[0]) for net in (session(model), floats)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    figures = []
    for made in (plain, conversion):
        graph = made.graph
        real, found = [list[np.ndarray](), list[np.ndarray]()], [list[np.ndarray](), list[np.ndarray]()]
        for feeds in samples[48:]:
            stored = run_reference(graph, store_inputs(graph, feeds))
            for i, value in enumerate(session(model).run(list(names), feeds)):
                real[i].append(value)
                name = graph.outputs[i]
                found[i].append(from_storage(graph.tensors[name], stored[name], value.shape))
        figures.append([sqnr_db(np.array(real[i]), np.array(found[i])) for i in range(2)])
    assert max(figures[0]) < 15 and min(figures[1]) > 22
    assert len(conversion.graph.layers) <= len(plain.graph.layers) + (kind == "others")


UNITS = np.array([1000, 1, 0.01], np.float32)
LASTS: dict[str, list[onnx.NodeProto]] = {
    "in its own units": [helper.make_node("Gemm", ["r", "units", "bias"], ["y"])],
    "not negative": [
        helper.make_node("Gemm", ["r", "units", "bias"], ["h"]),
        helper.make_node("Relu", ["h"], ["y"]),
    ],
    "taken back": [
        helper.make_node("MatMul", ["r", "v"], ["h"]),
        helper.make_node("Mul", ["h", "std"], ["a"]),
        helper.make_node("Add", ["mean", "a"], ["y"]),
    ],
    "taken back, negative": [
        helper.make_node("MatMul", ["r", "v"], ["h"]),
        helper.make_node("Mul", ["h", "minus"], ["y"]),
    ],
    "taken back, one number": [
        helper.make_node("Gemm", ["r", "v"], ["h"]),
        helper.make_node("Div", ["h", "tenth"], ["a"]),
        helper.make_node("Sub", ["a", "far"], ["y"]),
    ],
}


@pytest.mark.parametrize("last", LASTS)
def test_outputs_in_units_of_their_own(last: str, tmp_path: Path) -> None:
    """A regression of a height, a speed and a share: what is small keeps its steps, and no layer is added."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Tanh", ["m"], ["r"]),
        *LASTS[last],
    ]
    constants = {
        "w": 0.3 * weights(1, 16, 16),
        "v": weights(2, 16, 3),
        "units": weights(2, 16, 3) * UNITS,
        "bias": weights(3, 3) * UNITS,
        "std": UNITS,
        "minus": -UNITS,
        "mean": np.array([5000, 20, 0.5], np.float32),
        "tenth": np.array(0.1, np.float32),
        "far": np.array(1000, np.float32),
    }
    read = {name for node in nodes for name in node.input}
    used = {name: array for name, array in constants.items() if name in read}
    model = model_of(nodes, {"x": (1, 16)}, {"y": None}, used)
    onnx.save(model, tmp_path / "m.onnx")
    conversion = convert(tmp_path / "m.onnx", calibration=[{"x": weights(i, 1, 16)} for i in range(96)])
    graph = conversion.graph
    assert [layer.op for layer in graph.layers] == ["gemm", "lookup", "gemm"]
    (name,) = graph.outputs
    assert graph.tensors[name].along is not None
    tests = [{"x": weights(seed, 1, 16)} for seed in range(200, 232)]
    real = np.array([session(model).run(None, feeds)[0] for feeds in tests])
    stored = [run_reference(graph, store_inputs(graph, feeds))[name] for feeds in tests]
    found = np.array([from_storage(graph.tensors[name], one, (1, 3)) for one in stored])
    quantised = np.array([session(conversion.quantized_model).run(None, feeds)[0] for feeds in tests])
    centre = real.mean(0)
    for column in range(3):
        varies = real[..., column] - centre[..., column]
        assert sqnr_db(varies, found[..., column] - centre[..., column]) > 20
        assert sqnr_db(varies, quantised[..., column] - centre[..., column]) > 20


def test_a_bias_is_no_meaning(tmp_path: Path) -> None:
    """What a product adds anyway, and one factor for all, leave an output its one scale."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["h"]),
        helper.make_node("Mul", ["h", "half"], ["y"]),
    ]
    constants = {"w": weights(1, 16, 4), "b": weights(2, 4), "half": np.array(0.5, np.float32)}
    onnx.save(model_of(nodes, {"x": (1, 16)}, {"y": None}, constants), tmp_path / "m.onnx")
    graph = convert(tmp_path / "m.onnx", calibration=[{"x": weights(i, 1, 16)} for i in range(12)]).graph
    assert graph.tensors[graph.outputs[0]].along is None and len(graph.tensor_core_layers) == 1


@pytest.mark.parametrize("order", ["part, head", "head, part"])
def test_queries_keys_and_values_of_one_product(order: str, tmp_path: Path) -> None:
    """Parted behind a Reshape, and a Transpose: values 50 times as small as what they stand beside."""
    heads = order == "head, part"
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "bias"], ["h1"]),
        helper.make_node("Reshape", ["h1", "shape"], ["h2"]),
        helper.make_node("Transpose", ["h2"], ["h3"], perm=[3, 0, 2, 1, 4] if heads else [2, 0, 3, 1, 4]),
        *(helper.make_node("Gather", ["h3", f"i{i}"], [name], axis=0) for i, name in enumerate("qkv")),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    size = np.array([1, 1, 0.02], np.float32)
    size = np.tile(np.repeat(size, 4), 2) if heads else np.repeat(size, 8)
    constants = {
        "w": 0.4 * weights(1, 16, 24) * size,
        "bias": 0.1 * weights(2, 24) * size,
        "shape": ints(1, 6, 2, 3, 4) if heads else ints(1, 6, 3, 2, 4),
        **{f"i{i}": np.array(i, np.int64) for i in range(3)},
    }
    model = model_of(nodes, {"x": (1, 6, 16)}, {"y": None}, constants)
    onnx.save(model, tmp_path / "m.onnx")
    samples = [{"x": weights(i, 1, 6, 16)} for i in range(12)]
    figures = []
    for without in (["equalise-channels"], []):
        graph = convert(tmp_path / "m.onnx", calibration=samples, without=without).graph
        real, found = [], []
        for seed in range(100, 108):
            feeds = {"x": weights(seed, 1, 6, 16)}
            real.append(session(model).run(None, feeds)[0])
            stored = run_reference(graph, store_inputs(graph, feeds))[graph.outputs[0]]
            found.append(from_storage(graph.tensors[graph.outputs[0]], stored, real[-1].shape))
        figures.append(sqnr_db(np.array(real), np.array(found)))
    assert figures[0] < 10 and figures[1] > 17


def test_parts_are_enlarged_without_calibration_data(tmp_path: Path) -> None:
    """Random inputs judge nothing, but that a part is small they show, too."""
    model = _heads("split", "matmul")
    onnx.save(model, tmp_path / "m.onnx")
    conversion = convert(tmp_path / "m.onnx")
    assert conversion.random_calibration and any("parts of one product" in note for note in conversion.notes)
    assert _figures(model, conversion)["mean"] > 15
    assert _figures(model, convert(tmp_path / "m.onnx", without=["equalise-channels"]))["mean"] < 5


@pytest.mark.parametrize("way", ["as it is", "transposed", "reshaped", "cut out"])
def test_images_in_units_of_their_own(way: str, tmp_path: Path) -> None:
    """Channels of an image lie last in memory: the meaning is along the axis that they have there."""
    moves, along = {
        "as it is": ([helper.make_node("Identity", ["c"], ["h"])], (1, 3, 1, 1)),
        "transposed": ([helper.make_node("Transpose", ["c"], ["h"], perm=[0, 2, 3, 1])], (3,)),
        "reshaped": ([helper.make_node("Reshape", ["c", "shape"], ["h"])], (3, 1)),
        "cut out": (
            [
                helper.make_node("Slice", ["c", "zero", "three", "one"], ["h"]),
                helper.make_node("Slice", ["c", "three", "six", "one"], ["rest"]),
                helper.make_node("Relu", ["rest"], ["z"]),
            ],
            (1, 3, 1, 1),
        ),
    }[way]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        *moves,
        helper.make_node("Mul", ["h", "std"], ["a"]),
        helper.make_node("Add", ["a", "mean"], ["y"]),
    ]
    count = {"cut out": 6}.get(way, 3)
    constants = {
        "w": weights(1, count, 8, 1, 1),
        "std": UNITS.reshape(along),
        "mean": np.array([5000, 20, 0.5], np.float32).reshape(along),
        "shape": ints(1, 3, 30),
        "zero": ints(0),
        "three": ints(3),
        "six": ints(6),
        "one": ints(1),
    }
    read = {name for node in nodes for name in node.input}
    used = {name: array for name, array in constants.items() if name in read}
    outputs = ["y", "z"] if way == "cut out" else ["y"]
    model = model_of(nodes, {"x": (1, 8, 5, 6)}, dict.fromkeys(outputs), used)
    onnx.save(model, tmp_path / "m.onnx")
    conversion = convert(tmp_path / "m.onnx", calibration=[{"x": weights(i, 1, 8, 5, 6)} for i in range(9)])
    graph = conversion.graph
    assert {layer.op for layer in graph.layers} <= {"conv", "copy", "lookup"}
    name = graph.outputs[0]
    feeds = {"x": weights(77, 1, 8, 5, 6)}
    real = session(model).run(["y"], feeds)[0]
    found = from_storage(
        graph.tensors[name], run_reference(graph, store_inputs(graph, feeds))[name], real.shape
    )
    axis = 3 if way == "transposed" else 1
    for channel in range(3):
        wanted, got = (np.take(array, channel, axis) for array in (real, found))
        assert sqnr_db(wanted - wanted.mean(), got - wanted.mean()) > 20
