"""Inputs in their own units: what their integers mean is said column by column, weights take it back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import Conversion, convert
from fadiff.converter.check.reference import run_reference
from fadiff.converter.check.storage import from_storage, store_inputs
from fadiff.converter.errors import ModelError
from fadiff.converter.ir.scale import AxisScales, Part
from fadiff.converter.read.interface import InputType, InputTypes
from tests.converter.oracle import model_of, session, sqnr_db, weights

MEAN = np.array([101325, 25, 0.5, 0.02], np.float32)
SPREAD = np.array([500, 5, 0.1, 0.01], np.float32)


def test_a_number_without_axes(tmp_path: Path) -> None:
    """An affine function of a scalar is what its integer means; it is stored along one axis."""
    nodes = [helper.make_node("Mul", ["x", "two"], ["m"]), helper.make_node("Add", ["m", "one"], ["y"])]
    model = model_of(nodes, {"x": ()}, {"y": ()}, {"two": np.float32(2), "one": np.float32(1)})
    onnx.save(model, tmp_path / "m.onnx")
    samples = [{"x": np.array(i / 4 - 1, np.float32)} for i in range(9)]
    graph = convert(tmp_path / "m.onnx", calibration=samples).graph
    assert graph.tensors["x"].shape == (1,)
    found = run_reference(graph, store_inputs(graph, samples[7]))[graph.outputs[0]]
    real = from_storage(graph.tensors[graph.outputs[0]], found, ())
    assert real.shape == () and abs(float(real) - 2.5) < 0.02


def test_a_zero_point_of_a_file_lies_along_the_last_axis(tmp_path: Path) -> None:
    """Its integers 0 to 255 mean -50 to 77.5; ours are 128 less."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        net (float[3,5] x) => (float[3,4] y)
        <float s = {0.5}, float t = {2.0}, uint8 zero = {100}, uint8 middle = {128}> {
            q = QuantizeLinear (x, s, zero)
            d = DequantizeLinear (q, s, zero)
            m = MatMul (d, w)
            p = QuantizeLinear (m, t, middle)
            y = DequantizeLinear (p, t, middle)
        }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights(1, 5, 4), "w"))
    onnx.save(model, tmp_path / "m.onnx")
    tensor = convert(tmp_path / "m.onnx").graph.tensors["x"]
    assert tensor.shape == (3, 5) and tensor.zero == -28
    assert tensor.along == AxisScales(1, (Part(5, 0.5, 14.0),))


def test_a_meaning_needs_no_copy_where_only_axes_of_one_differ(tmp_path: Path) -> None:
    """Neither does it where a product with one row is an output without rows."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Reshape", ["m", "flat"], ["r"]),
        helper.make_node("Mul", ["r", "slope"], ["s"]),
        helper.make_node("Add", ["s", "shift"], ["y"]),
    ]
    slope, shift = np.float32([1, 2, 40]), np.float32([5, -3, 100])
    constants = {"w": weights(1, 4, 3), "flat": np.array([3]), "slope": slope, "shift": shift}
    model = model_of(nodes, {"x": (1, 4)}, {"y": (3,)}, constants)
    onnx.save(model, tmp_path / "m.onnx")
    samples = [{"x": weights(i, 1, 4)} for i in range(12)]
    conversion = convert(tmp_path / "m.onnx", calibration=samples)
    assert [layer.op for layer in conversion.graph.layers] == ["gemm"]
    along = conversion.graph.tensors[conversion.graph.outputs[0]].along
    assert along is not None and [part.offset for part in along.parts] == pytest.approx(shift.tolist())
    assert _quality(model, conversion, samples)[0] > 30


def _samples(seed: int, count: int, mean: np.ndarray, spread: np.ndarray) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(seed)
    return [
        {"x": (mean + spread * generator.standard_normal((1, 4))).astype(np.float32)} for _ in range(count)
    ]


def _quality(
    model: onnx.ModelProto, conversion: Conversion, tests: list[dict[str, np.ndarray]]
) -> tuple[float, float]:
    """SQNR of the integers against the file, and how far the float model is from it, in parts."""
    graph, floats, file = conversion.graph, session(conversion.float_model), session(model)
    (name,) = graph.outputs
    real, found, normalised = [], [], []
    for feeds in tests:
        real.append(file.run(None, feeds)[0])
        types = {value.name: np.int32 for value in floats.get_inputs() if value.type == "tensor(int32)"}
        whole = {name: array.astype(types.get(name, array.dtype)) for name, array in feeds.items()}
        normalised.append(floats.run(None, whole)[0])
        stored = run_reference(graph, store_inputs(graph, feeds))[name]
        found.append(from_storage(graph.tensors[name], stored, real[-1].shape))
    drift = np.abs(np.array(real) - np.array(normalised)).max() / np.abs(real).max()
    return sqnr_db(np.array(real), np.array(found)), float(drift)


def test_a_normaliser_in_front_is_what_the_integers_mean(tmp_path: Path) -> None:
    """(x - mean) / std of a sensor model: no layer; by hand x = mean + std * scale * q."""
    nodes = [
        helper.make_node("Sub", ["x", "mean"], ["a"]),
        helper.make_node("Div", ["a", "std"], ["n"]),
        helper.make_node("Gemm", ["n", "w", "b"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v"], ["y"]),
    ]
    constants = {
        "mean": MEAN[None],
        "std": SPREAD[None],
        "w": weights(1, 4, 16),
        "b": weights(2, 16),
        "v": weights(3, 16, 3),
    }
    model = model_of(nodes, {"x": (1, 4)}, {"y": None}, constants)
    onnx.save(model, tmp_path / "m.onnx")
    conversion = convert(tmp_path / "m.onnx", calibration=_samples(0, 48, MEAN, SPREAD))
    graph = conversion.graph
    assert [layer.op for layer in graph.layers] == ["gemm", "gemm"]
    tensor = graph.tensors[graph.inputs[0]]
    assert tensor.along is not None and tensor.along.axis == 1
    np.testing.assert_allclose([part.offset for part in tensor.along.parts], MEAN, rtol=1e-6)
    scales = np.array([part.scale for part in tensor.along.parts])
    np.testing.assert_allclose(scales / scales[0], SPREAD / SPREAD[0], rtol=1e-6)
    decibels, drift = _quality(model, conversion, _samples(1, 16, MEAN, SPREAD))
    assert decibels > 24 and drift < 1e-5
    plain = convert(tmp_path / "m.onnx", calibration=_samples(0, 48, MEAN, SPREAD), without=["fold-inputs"])
    assert len(plain.graph.layers) == 4 and _quality(model, plain, _samples(1, 16, MEAN, SPREAD))[0] < 5


@pytest.mark.parametrize("kind", ["gemm", "gemm with alpha", "gemm with both", "matmul", "matmul, add"])
def test_raw_columns_of_unlike_range(kind: str, tmp_path: Path) -> None:
    """As a driving policy reads its states: the weights expect them as they are."""
    mean, spread = np.array([0, 0.1, 20, -3], np.float32), np.array([0.01, 0.3, 35, 5], np.float32)
    w = weights(1, 4, 32) / spread[:, None]
    first = {
        "gemm": [helper.make_node("Gemm", ["x", "w", "b"], ["a"])],
        "gemm with alpha": [helper.make_node("Gemm", ["x", "w"], ["a"], transB=1, alpha=0.5, beta=3.0)],
        "gemm with both": [helper.make_node("Gemm", ["x", "w", "b"], ["a"], alpha=0.5, beta=3.0)],
        "matmul": [
            helper.make_node("Sub", ["x", "one"], ["less"]),
            helper.make_node("Div", ["less", "two"], ["half"]),
            helper.make_node("MatMul", ["half", "w"], ["a"]),
        ],
        "matmul, add": [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Add", ["b", "m"], ["a"]),
        ],
    }[kind]
    nodes = [
        *first,
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    transposed = kind == "gemm with alpha"
    constants = {"w": w.T.copy() if transposed else w, "b": weights(2, 32), "v": weights(3, 32, 5)}
    constants |= {"one": np.ones(1, np.float32), "two": np.full(1, 2, np.float32)} if kind == "matmul" else {}
    model = model_of(nodes, {"x": (1, 4)}, {"y": None}, constants)
    onnx.save(model, tmp_path / "m.onnx")
    cases: dict[InputType, list[str]] = {"int8": [], "float32": ["binary", "binary", "to_int8"]}
    for input_type, in_front in cases.items():
        conversion = convert(
            tmp_path / "m.onnx", calibration=_samples(0, 200, mean, spread), input_type=input_type
        )
        decibels, drift = _quality(model, conversion, _samples(1, 32, mean, spread))
        assert decibels > 25 and drift < 1e-5
        assert conversion.graph.tensors[conversion.graph.inputs[0]].dtype == input_type
        assert [layer.op for layer in conversion.graph.layers if layer.op != "formula"] == [
            *in_front,
            "gemm",
            "gemm",
        ]
        assert not any("keep-float" in note for note in conversion.notes)


@pytest.mark.parametrize("padded", [False, True])
def test_pixels_have_an_offset_where_nothing_is_padded(padded: bool, tmp_path: Path) -> None:
    """From 0 to 1: all 255 steps, unless a border must stay zero."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[int(padded)] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    constants = {"w": weights(1, 8, 3, 3, 3), "b": weights(2, 8)}
    model = model_of(nodes, {"x": (1, 3, 16, 16)}, {"y": None}, constants)
    onnx.save(model, tmp_path / "m.onnx")
    generator = np.random.default_rng(0)
    samples = [{"x": generator.random((1, 3, 16, 16), np.float32)} for _ in range(12)]
    conversion = convert(tmp_path / "m.onnx", calibration=samples[:8])
    along = conversion.graph.tensors[conversion.graph.inputs[0]].along
    assert (along is None) == padded
    if along is not None:
        (part,) = along.parts
        assert part.count == 3 and part.offset == pytest.approx(0.5, abs=0.01)
        assert part.scale == pytest.approx(1 / 254, rel=0.04)
    assert _quality(model, conversion, samples[8:])[0] > 35


def test_channels_of_groups(tmp_path: Path) -> None:
    size = np.array([1, 100, 0.1, 5], np.float32)
    w = weights(1, 8, 2, 1, 1) / np.repeat(size.reshape(2, 2), 4, 0).reshape(8, 2, 1, 1)
    model = model_of(
        [helper.make_node("Conv", ["x", "w"], ["y"], group=2)], {"x": (1, 4, 8, 8)}, {"y": None}, {"w": w}
    )
    onnx.save(model, tmp_path / "m.onnx")
    samples = [{"x": size.reshape(1, 4, 1, 1) * weights(i, 1, 4, 8, 8)} for i in range(12)]
    conversion = convert(tmp_path / "m.onnx", calibration=samples[:8])
    decibels, drift = _quality(model, conversion, samples[8:])
    assert decibels > 25 and drift < 1e-5


def test_columns_that_never_moved_keep_room(tmp_path: Path) -> None:
    """A flag that calibration saw at 0 only is not given a scale that makes 1 saturate."""
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": (1, 4)},
        {"y": None},
        {"w": np.eye(4, dtype=np.float32)},
    )
    onnx.save(model, tmp_path / "m.onnx")
    still = np.array([1, 1, 0, 1e-3], np.float32)
    conversion = convert(tmp_path / "m.onnx", calibration=_samples(0, 64, 0 * still, still))
    graph = conversion.graph
    tensor = graph.tensors[graph.inputs[0]]
    stored = store_inputs(graph, {"x": np.array([[0, 0, 1, 0]], np.float32)})[tensor.name]
    assert from_storage(tensor, stored, (1, 4))[0, 2] == pytest.approx(1, abs=0.02)


PIXEL_MEAN, PIXEL_DEVIATION = (
    np.array(v, np.float32).reshape(1, 3, 1, 1) for v in ([124, 116, 104], [58, 57, 59])
)


def _camera(element: int, pads: int, normalised: str) -> onnx.ModelProto:
    """An image through (x - mean) / std, x / 255 or nothing, and two convolutions."""
    nodes = [helper.make_node("Cast", ["x"], ["f"], to=onnx.TensorProto.FLOAT)]
    nodes = nodes if element == onnx.TensorProto.UINT8 else [helper.make_node("Identity", ["x"], ["f"])]
    nodes += {
        "by channel": [
            helper.make_node("Sub", ["f", "mean"], ["a"]),
            helper.make_node("Div", ["a", "std"], ["n"]),
        ],
        "by 255": [helper.make_node("Div", ["f", "most"], ["n"])],
        "not": [helper.make_node("Identity", ["f"], ["n"])],
    }[normalised]
    nodes += [
        helper.make_node("Conv", ["n", "w", "b"], ["c"], pads=[pads] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["y"]),
    ]
    constants = {
        "mean": PIXEL_MEAN,
        "std": PIXEL_DEVIATION,
        "most": np.array(255, np.float32),
        "w": weights(1, 8, 3, 3, 3),
        "b": weights(2, 8),
        "v": weights(3, 4, 8, 1, 1),
    }
    read = {name for node in nodes for name in node.input}
    kept = {name: array for name, array in constants.items() if name in read}
    model = model_of(nodes, {"x": (1, 3, 16, 16)}, {"y": None}, kept)
    model.graph.input[0].type.tensor_type.elem_type = element
    return model


@pytest.mark.parametrize("normalised", ["by channel", "by 255", "not"])
@pytest.mark.parametrize("pads", [0, 1])
@pytest.mark.parametrize("element", [onnx.TensorProto.UINT8, onnx.TensorProto.FLOAT], ids=["file", "option"])
def test_bytes_are_pixels_as_they_come(element: int, pads: int, normalised: str, tmp_path: Path) -> None:
    """The caller stores the pixel; tables, one for each channel of its own, are all that the core does."""
    model = _camera(element, pads, normalised)
    onnx.save(model, tmp_path / "m.onnx")
    generator = np.random.default_rng(0)
    kind = np.uint8 if element == onnx.TensorProto.UINT8 else np.float32
    samples = [{"x": generator.integers(0, 256, (1, 3, 16, 16)).astype(kind)} for _ in range(12)]
    conversion = convert(tmp_path / "m.onnx", calibration=samples[:8], input_type="uint8")
    graph = conversion.graph
    tensor = graph.tensors[graph.inputs[0]]
    assert tensor.dtype == "uint8" and (tensor.scale, tensor.zero, tensor.along) == (1, 0, None)
    assert [layer.op for layer in graph.layers] == ["lookup"] * (3 if normalised == "by channel" else 1) + [
        "conv",
        "conv",
    ]
    stored = store_inputs(graph, samples[8])[tensor.name]
    np.testing.assert_array_equal(stored, samples[8]["x"].transpose(0, 2, 3, 1))
    decibels, drift = _quality(model, conversion, samples[8:])
    assert decibels > 32
    assert drift < 1e-5
    quantised = session(conversion.quantized_model).run(None, samples[8])[0]
    (name,) = graph.outputs
    real = from_storage(
        graph.tensors[name], run_reference(graph, {tensor.name: stored})[name], quantised.shape
    )
    assert sqnr_db(quantised, real) > 40


@pytest.mark.parametrize(
    ("low", "high", "scale", "zero"),
    [(0, 1, 1 / 255, 0), (-1, 1, 2 / 255, 128), (-2, 3, 5 / 255, 102), (0, 200, 1, 0)],
)
def test_what_a_byte_means_by_calibration(
    low: float, high: float, scale: float, zero: int, tmp_path: Path
) -> None:
    model = _camera(onnx.TensorProto.FLOAT, 1, "not")
    onnx.save(model, tmp_path / "m.onnx")
    generator = np.random.default_rng(0)
    samples = [{"x": generator.uniform(low, high, (1, 3, 16, 16)).astype(np.float32)} for _ in range(9)]
    samples[0]["x"][0, 0, 0, :2] = low, high
    conversion = convert(tmp_path / "m.onnx", calibration=samples, input_type={"x": "uint8"})
    tensor = conversion.graph.tensors[conversion.graph.inputs[0]]
    assert tensor.scale == pytest.approx(scale, rel=1e-6) and tensor.zero == zero
    assert (tensor.along is None) == (zero == 0)
    assert _quality(model, conversion, samples)[0] > 30


def _time_step() -> onnx.ModelProto:
    """A diffusion network's way to read its step, which the file declares as a float."""
    nodes = [
        helper.make_node("Mul", ["t", "f"], ["angle"]),
        helper.make_node("Sin", ["angle"], ["s"]),
        helper.make_node("Cos", ["angle"], ["c"]),
        helper.make_node("Concat", ["s", "c"], ["e"], axis=1),
        helper.make_node("Add", ["e", "x"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    frequencies = np.exp(-np.arange(8) / 8 * 9).astype(np.float32)[None]
    return model_of(
        nodes, {"t": (1, 1), "x": (1, 16)}, {"y": None}, {"f": frequencies, "w": weights(1, 16, 8)}
    )


def test_whole_numbers_in_floats(tmp_path: Path) -> None:
    model = _time_step()
    onnx.save(model, tmp_path / "m.onnx")
    generator = np.random.default_rng(0)
    samples = [
        {"t": generator.integers(0, 1000, (1, 1)).astype(np.float32), "x": weights(i, 1, 16)}
        for i in range(32)
    ]
    samples[0]["t"][:] = 999
    plain = convert(tmp_path / "m.onnx", calibration=samples[:24])
    assert _quality(model, plain, samples[24:])[0] < 10
    assert any("--input-type t=int32" in doubt for doubt in plain.doubts)
    conversion = convert(tmp_path / "m.onnx", calibration=samples[:24], input_type={"t": "int32"})
    assert [conversion.graph.tensors[name].dtype for name in conversion.graph.inputs] == ["int32", "int8"]
    assert any("t (0 to 1023)" in note for note in conversion.notes)
    assert _quality(model, conversion, samples[24:])[0] > 30 and not conversion.doubts


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("int32", "say which of t, x holds whole numbers"),
        ({"z": "int8"}, "z is no float input of the model; it has t, x"),
    ],
)
def test_types_that_fit_no_input(wanted: InputTypes, says: str, tmp_path: Path) -> None:
    onnx.save(_time_step(), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=says):
        convert(tmp_path / "m.onnx", input_type=wanted)


MOVES = {
    "unsqueeze": ([helper.make_node("Unsqueeze", ["x", "axes"], ["u"])], (1, 4), (1, 1, 1, 4)),
    "reshape": ([helper.make_node("Reshape", ["x", "shape"], ["u"])], (1, 2, 4), (2, 4)),
    "transpose": ([helper.make_node("Transpose", ["x"], ["u"], perm=[0, 2, 1])], (1, 4, 6), (1, 6, 4)),
    "several": (
        [
            helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
            helper.make_node("Unsqueeze", ["t", "axes"], ["u"]),
        ],
        (4, 3),
        (1, 1, 3, 4),
    ),
}


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("moves", MOVES)
def test_normalised_behind_moves(moves: str, raw: bool, tmp_path: Path) -> None:
    """By the file, or by the weights that read the input; nothing is computed either way."""
    between, shape, moved = MOVES[moves]
    w = weights(1, 4, 16)
    bias = (-(MEAN / SPREAD).astype(np.float64) @ w).astype(np.float32)
    first = (
        [helper.make_node("MatMul", ["u", "raw"], ["p"]), helper.make_node("Add", ["p", "bias"], ["h"])]
        if raw
        else [
            helper.make_node("Sub", ["u", "mean"], ["a"]),
            helper.make_node("Div", ["a", "std"], ["n"]),
            helper.make_node("MatMul", ["n", "w"], ["h"]),
        ]
    )
    nodes = [
        *between,
        *first,
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    constants = {
        "mean": MEAN.reshape(-1),
        "std": SPREAD,
        "w": w,
        "raw": w / SPREAD[:, None],
        "bias": bias,
        "v": weights(3, 16, 3),
        "axes": np.array([0, 1], np.int64),
        "shape": np.array(moved, np.int64),
    }
    read = {name for node in nodes for name in node.input}
    used = {name: array for name, array in constants.items() if name in read}
    model = model_of(nodes, {"x": shape}, {"y": None}, used)
    onnx.save(model, tmp_path / "m.onnx")
    axis = shape.index(4)
    along = [-1 if i == axis else 1 for i in range(len(shape))]
    generator = np.random.default_rng(0)
    mean, spread = MEAN.reshape(along), SPREAD.reshape(along)
    samples = [
        {"x": (mean + spread * generator.uniform(-2, 2, shape)).astype(np.float32)} for _ in range(112)
    ]
    conversion = convert(tmp_path / "m.onnx", calibration=samples[:96])
    assert [layer.op for layer in conversion.graph.layers if layer.op != "copy"] == ["gemm", "gemm"]
    assert _quality(model, conversion, samples[96:])[0] > 25


PARTS = {
    "one by one": ([1, 1, 1, 1], None),
    "in groups": ([2, 2], None),
    "picked in another order": ([2, 2], [[0, 3], [2, 1]]),
    "one left as it is": ([1, 2, 1], None),
}


@pytest.mark.parametrize("how", PARTS)
def test_parts_that_are_normalised_one_by_one(how: str, tmp_path: Path) -> None:
    """Split or Gather, (x - mean) / std of each, Concat: the same as of all columns at once."""
    sizes, columns = PARTS[how]
    ends = np.cumsum(sizes)
    taken = columns or [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    names = [f"p{i}" for i in range(len(sizes))]
    spread = SPREAD.copy()
    constants = {"sizes": np.array(sizes), "w": weights(1, 4, 16), "v": weights(3, 16, 3)}
    parting = [helper.make_node("Split", ["x", "sizes"], names, axis=1)]
    if columns:
        constants |= {f"at{i}": np.array(at) for i, at in enumerate(columns)}
        del constants["sizes"]
        parting = [helper.make_node("Gather", ["x", f"at{i}"], [f"p{i}"], axis=1) for i in range(len(sizes))]
    normalising, joined = [], []
    for i, at in enumerate(taken):
        if how == "one left as it is" and i == 2:
            spread[at] = 1.0
            joined.append(f"p{i}")
            continue
        constants |= {f"mean{i}": MEAN[at], f"std{i}": SPREAD[at]}
        normalising += [
            helper.make_node("Sub", [f"p{i}", f"mean{i}"], [f"d{i}"]),
            helper.make_node("Div", [f"d{i}", f"std{i}"], [f"n{i}"]),
        ]
        joined.append(f"n{i}")
    nodes = [
        *parting,
        *normalising,
        helper.make_node("Concat", joined, ["n"], axis=1),
        helper.make_node("MatMul", ["n", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    model = model_of(nodes, {"x": (1, 4)}, {"y": None}, constants)
    onnx.save(model, tmp_path / "m.onnx")
    mean = np.where(spread == SPREAD, MEAN, 0).astype(np.float32)
    conversion = convert(tmp_path / "m.onnx", calibration=_samples(0, 96, mean, spread))
    decibels, drift = _quality(model, conversion, _samples(1, 16, mean, spread))
    assert decibels > 24 and drift < 1e-5
    moved = ("copy", "concat", "gather")
    assert [layer.op for layer in conversion.graph.layers if layer.op not in moved] == ["gemm", "gemm"]


@pytest.mark.parametrize("kind", ["split", "slice"])
def test_columns_that_different_products_read(kind: str, tmp_path: Path) -> None:
    """Positions in millimetres and speeds in metres per second, each for a product of its own."""
    parts = {
        "split": [helper.make_node("Split", ["x"], ["p", "v"], axis=1)],
        "slice": [
            helper.make_node("Slice", ["x", "zero", "two", "one"], ["p"]),
            helper.make_node("Slice", ["x", "two", "four", "one"], ["v"]),
        ],
    }[kind]
    nodes = [
        *parts,
        helper.make_node("Gemm", ["p", "wp"], ["a"]),
        helper.make_node("Gemm", ["v", "wv", "b"], ["c"], transB=1),
        helper.make_node("Add", ["a", "c"], ["s"]),
        helper.make_node("Relu", ["s"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    constants = {
        "wp": weights(1, 2, 8) / np.float32(1000),
        "wv": weights(2, 8, 2),
        "b": weights(3, 8),
        "w": weights(4, 8, 3),
        "zero": np.array([0], np.int64),
        "one": np.array([1], np.int64),
        "two": np.array([2], np.int64),
        "four": np.array([4], np.int64),
    }
    read = {name for node in nodes for name in node.input}
    used = {name: array for name, array in constants.items() if name in read}
    model = model_of(nodes, {"x": (1, 4)}, {"y": None}, used)
    onnx.save(model, tmp_path / "m.onnx")
    size = np.array([1000, 1000, 1, 1], np.float32)
    conversion = convert(tmp_path / "m.onnx", calibration=_samples(0, 64, 0 * size, size))
    decibels, drift = _quality(model, conversion, _samples(1, 32, 0 * size, size))
    assert decibels > 25 and drift < 1e-5


def test_raw_columns_joined_with_features(tmp_path: Path) -> None:
    """Speed, pressure and yaw beside what a camera's convolution makes, and a second such input."""
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"]),
        helper.make_node("Relu", ["c"], ["f"]),
        helper.make_node("GlobalAveragePool", ["f"], ["g"]),
        helper.make_node("Flatten", ["g"], ["h"]),
        helper.make_node("Concat", ["s", "h", "t"], ["j"], axis=1),
        helper.make_node("Gemm", ["j", "w", "b"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    sizes = {"s": np.float32([10, 900, 0.05]), "t": np.float32([1e-3, 2])}
    middles = {"s": np.float32([35, 3000, 0]), "t": np.float32([0, 500])}
    columns = np.concatenate([1 / sizes["s"], np.full(12, 5), 1 / sizes["t"]])
    constants = {
        "k": weights(1, 12, 3, 3, 3) / 3,
        "w": weights(2, 17, 16) * columns.astype(np.float32)[:, None],
        "b": weights(3, 16),
        "v": weights(4, 16, 3),
    }
    model = model_of(nodes, {"x": (1, 3, 8, 8), "s": (1, 3), "t": (1, 2)}, {"y": None}, constants)
    onnx.save(model, tmp_path / "m.onnx")
    generator = np.random.default_rng(0)

    def samples(count: int) -> list[dict[str, np.ndarray]]:
        return [
            {"x": generator.standard_normal((1, 3, 8, 8)).astype(np.float32)}
            | {
                k: (middles[k] + sizes[k] * generator.standard_normal((1, sizes[k].size))).astype("f")
                for k in sizes
            }
            for _ in range(count)
        ]

    conversion = convert(tmp_path / "m.onnx", calibration=samples(48))
    decibels, drift = _quality(model, conversion, samples(32))
    assert decibels > 24 and drift < 1e-5


def test_inputs_that_are_normalised_where_they_are_joined(tmp_path: Path) -> None:
    """torch.cat of two inputs, then the mean and the deviation of all columns."""
    nodes = [
        helper.make_node("Unsqueeze", ["b", "zero"], ["b1"]),
        helper.make_node("Concat", ["a", "b1"], ["j"], axis=1),
        helper.make_node("Sub", ["j", "mean"], ["d"]),
        helper.make_node("Div", ["d", "std"], ["n"]),
        helper.make_node("MatMul", ["n", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    constants = {
        "mean": MEAN,
        "std": SPREAD,
        "w": weights(1, 4, 16),
        "v": weights(2, 16, 3),
        "zero": np.array([0], np.int64),
    }
    model = model_of(nodes, {"a": (1, 3), "b": (1,)}, {"y": None}, constants)
    onnx.save(model, tmp_path / "m.onnx")

    def samples(seed: int, count: int) -> list[dict[str, np.ndarray]]:
        rows = [sample["x"] for sample in _samples(seed, count, MEAN, SPREAD)]
        return [{"a": row[:, :3], "b": row[0, 3:]} for row in rows]

    conversion = convert(tmp_path / "m.onnx", calibration=samples(0, 96))
    decibels, drift = _quality(model, conversion, samples(1, 16))
    assert decibels > 24 and drift < 1e-5
