"""Graph rewrites keep every number, and can be switched off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import Conversion, Graph, convert
from fadiff.converter.check.reference import run_reference
from fadiff.converter.rewrites import (
    BORDER_ZEROS,
    CHANNEL_SCALES,
    CHOOSE_RANGES,
    CORRECT_BIASES,
    EQUALISE_CHANNELS,
    FOLD_NORMS,
    NAMES,
    REWRITES,
    ROUND_WEIGHTS,
    SHIFT_ZEROS,
    rewrite,
)
from tests.converter.oracle import compare, model_of, weights


def _branches() -> onnx.ModelProto:
    """Two branches and a copy of the first, concatenated, then a convolution."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1], name="a"),
        helper.make_node("Conv", ["x", "w2"], ["b"], name="b"),
        helper.make_node("Relu", ["b"], ["rb"], name="rb"),
        helper.make_node("Concat", ["a", "rb"], ["k"], axis=1, name="k"),
        helper.make_node("Conv", ["k", "w3"], ["y"], name="c"),
    ]
    constants = {
        "w1": weights(1, 4, 3, 3, 3) / 3,
        "w2": weights(2, 6, 3, 1, 1),
        "w3": weights(3, 5, 10, 1, 1),
    }
    return model_of(nodes, {"x": (2, 3, 6, 7)}, {"y": None}, constants)


def _run(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    feeds = {n: generator.integers(-128, 128, graph.tensors[n].shape).astype(np.int8) for n in graph.inputs}
    found = run_reference(graph, feeds)
    return [found[name] for name in graph.outputs]


def test_a_concatenation_is_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_branches(), path)
    plain = convert(path, without=list(REWRITES))
    better = convert(path)
    assert [layer.op for layer in plain.graph.layers].count("copy") == 2
    assert [layer.op for layer in better.graph.layers] == ["conv", "conv", "conv"]
    first, second, third = better.graph.tensor_core_layers
    assert first.output.tensor == second.output.tensor == third.input.tensor
    assert (first.output.offset, second.output.offset) == (0, 4)
    assert any(line.startswith("write-in-place") for line in better.rewrites)
    np.testing.assert_array_equal(_run(plain.graph), _run(better.graph))


def test_duplicates_are_merged(tmp_path: Path) -> None:
    """Common sub-expressions, by ONNX Runtime as it folds constants."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="a"),
        helper.make_node("Conv", ["x", "w"], ["b"], name="b"),
        helper.make_node("Sigmoid", ["a"], ["sa"], name="sa"),
        helper.make_node("Tanh", ["b"], ["tb"], name="tb"),
        helper.make_node("Add", ["sa", "tb"], ["y"], name="add"),
    ]
    path = tmp_path / "m.onnx"
    onnx.save(model_of(nodes, {"x": (1, 3, 4, 4)}, {"y": None}, {"w": weights(1, 4, 3, 1, 1)}), path)
    assert len(convert(path).graph.tensor_core_layers) == 1


def test_unknown_rewrites_are_named() -> None:
    with pytest.raises(ValueError, match="write-in-place"):
        rewrite(Graph("g", {}, (), (), ()), without=["fuse"])


_EVERYTHING = """
    <ir_version: 8, opset_import: ["": 17]>
    net (float[1,3,6,6] x) => (float[1,36,5] y, float[1,4,1,1] z, float[1,4,6,6] o)
    <int64[3] flat = {1, 8, 36}, float two = {2}, float tiny = {0.001}> {
        centred = Sub (x, mean)
        pixels = Div (centred, deviation)
        a = Conv <pads = [1, 1, 1, 1]> (pixels, w1, b1)
        ra = Relu (a)
        c = Conv (ra, w2, b2)
        s = Sigmoid (c)
        m = Mul (c, s)
        k = Concat <axis = 1> (m, s)
        f = Reshape (k, flat)
        t = Transpose <perm = [0, 2, 1]> (f)
        e = ReduceMean <axes = [-1]> (t)
        d = Sub (t, e)
        q = Pow (d, two)
        v = ReduceMean <axes = [-1]> (q)
        w = Add (v, tiny)
        r = Sqrt (w)
        n = Div (d, r)
        y = MatMul (n, w3)
        g = GlobalAveragePool (m)
        z = Conv <pads = [1, 1, 1, 1]> (g, w4)
        h = Conv (pixels, w5)
        j = Concat <axis = 1> (h, m)
        o = Conv (j, w6)
    }"""
"""Something for every rewrite, but for those of quantised files."""
_QUANTISED = """
    <ir_version: 8, opset_import: ["": 17]>
    net (float[1,3,6,6] x) => (float[1,4,6,6] y)
    <float one = {0.02}, float two = {0.05}, uint8 middle = {128}, uint8 low = {0}, int8 none = {0},
     float[4] steps = {0.002, 0.01, 0.005, 0.001}> {
        xq = QuantizeLinear (x, one, middle)
        xd = DequantizeLinear (xq, one, middle)
        w1 = DequantizeLinear <axis = 0> (w1q, steps)
        a = Conv (xd, w1)
        ra = Relu (a)
        aq = QuantizeLinear (ra, two, low)
        ad = DequantizeLinear (aq, two, low)
        y = Conv <pads = [1, 1, 1, 1]> (ad, w2)
    }"""


def _constants_of_everything() -> dict[str, np.ndarray]:
    unlike = np.float32(2) ** np.arange(-4, 4, dtype=np.float32).reshape(8, 1, 1, 1)
    return {
        "mean": np.array([0.4, 0.5, 0.6], np.float32).reshape(3, 1, 1),
        "deviation": np.array([0.2, 0.3, 0.2], np.float32).reshape(3, 1, 1),
        "w1": unlike * weights(1, 8, 3, 3, 3) / 5,
        "b1": unlike.reshape(8) * weights(2, 8),
        "w2": weights(3, 4, 8, 1, 1) / 2 / unlike.reshape(1, 8, 1, 1),
        "b2": weights(4, 4),
        "w3": weights(5, 8, 5) / 3,
        "w4": weights(6, 4, 4, 3, 3) / 3,
        "w5": weights(7, 4, 3, 1, 1) / 3,
        "w6": weights(8, 4, 8, 1, 1) / 3,
    }


def _written(path: Path, text: str, constants: dict[str, np.ndarray]) -> Path:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in constants.items())
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.save(model, path)
    return path


_PARTS = """
    <ir_version: 8, opset_import: ["": 17]>
    net (float[1,16] x) => (float[1,4] a, float[1,8] b) {
        h = MatMul (x, w)
        a, b = Split <axis = 1> (h, sizes)
    }"""
_BLOCKS = """
    <ir_version: 8, opset_import: ["": 17]>
    net (float[1,16] x) => (float[1,8] y) {
        h = MatMul (x, w1)
        y = MatMul (h, w2)
    }"""


def _models(folder: Path) -> dict[str, Path]:
    """What the rewrites are shown on."""
    integers = np.random.default_rng(1).integers(-127, 128, (4, 3, 1, 1), dtype=np.int8)
    small_part = np.repeat(np.float32([0.1, 1]), [4, 8])
    loud = np.repeat(np.float32([1, 20]), [45, 3])
    columns = {"w1": weights(1, 16, 48) * loud, "w2": weights(2, 48, 8) / loud[:, None]}
    return {
        "plain": _written(folder / "plain.onnx", _EVERYTHING, _constants_of_everything()),
        "quantised": _written(
            folder / "quantised.onnx", _QUANTISED, {"w1q": integers, "w2": weights(2, 4, 4, 3, 3)}
        ),
        "parts": _written(
            folder / "parts.onnx", _PARTS, {"w": weights(1, 16, 12) * small_part, "sizes": np.array([4, 8])}
        ),
        "blocks": _written(folder / "blocks.onnx", _BLOCKS, columns),
    }


SHOWN = [
    *((name, "plain") for name in NAMES if name not in (BORDER_ZEROS, CHANNEL_SCALES)),
    *((name, "quantised") for name in (BORDER_ZEROS, CHANNEL_SCALES, SHIFT_ZEROS)),
    (EQUALISE_CHANNELS, "parts"),
    (CHANNEL_SCALES, "blocks"),
]
"""Every rewrite, and a model for each place where it does something."""


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Conversion]]:
    """The models, and what becomes of them with all rewrites."""
    paths = _models(tmp_path_factory.mktemp("everything"))
    return {name: (path, _converted(path)) for name, path in paths.items()}


def _converted(path: Path, *without: str) -> Conversion:
    shape = [dim.dim_value for dim in onnx.load(path).graph.input[0].type.tensor_type.shape.dim]
    samples = np.random.default_rng(0).standard_normal((9, *shape)).astype(np.float32)
    return convert(path, calibration=[{"x": x} for x in samples], without=without)


def _is_seen(name: str, model: str, every: Conversion, fewer: Conversion) -> bool:
    """Whether a rewrite did what it is for in the one conversion, and did not in the other."""
    notes = {
        CHOOSE_RANGES: "least squares",
        CORRECT_BIASES: "biases",
        ROUND_WEIGHTS: "rounded",
        SHIFT_ZEROS: "zero points",
        EQUALISE_CHANNELS: f"{EQUALISE_CHANNELS}: ",
    }
    if name not in notes or model != "plain":
        return every.graph.layers != fewer.graph.layers
    done, left = (any(notes[name] in line for line in found.rewrites) for found in (every, fewer))
    return done and not left


@pytest.mark.parametrize(("name", "model"), SHOWN)
def test_every_rewrite_can_be_left_out(
    name: str, model: str, everything: dict[str, tuple[Path, Conversion]]
) -> None:
    """It changes the layers, or what calibration tries; int8 still computes the model, without two it does so
    coarsely."""
    path, every = everything[model]
    fewer = _converted(path, name)
    assert len(fewer.graph.layers) >= len(every.graph.layers) or model != "plain"
    assert compare(fewer, np.random.default_rng(0)).sqnr_db > (
        5 if name in (EQUALISE_CHANNELS, FOLD_NORMS) else 20
    )
    assert _is_seen(name, model, every, fewer)


def test_a_switch_that_does_nothing_is_seen(everything: dict[str, tuple[Path, Conversion]]) -> None:
    """Conversions are the same each time: what the test above sees is what was left out."""
    again = {model: _converted(path) for model, (path, _) in everything.items()}
    for name, model in SHOWN:
        _, every = everything[model]
        assert every.graph.layers == again[model].graph.layers
        assert not _is_seen(name, model, every, again[model])


def _dense_block() -> onnx.ModelProto:
    """Each layer reads everything before it through a batch norm, and adds four channels."""
    nodes, constants = [], {}
    value, channels = "x0", 6
    nodes.append(helper.make_node("Conv", ["x", "w"], ["x0"], name="first"))
    constants["w"] = weights(0, channels, 3, 1, 1)
    for i in range(1, 4):
        for j, name in enumerate(("scale", "bias", "mean", "var")):
            constants[f"{name}{i}"] = np.abs(weights(10 * i + j, channels)) + (0.5 if name == "var" else 0)
        norm = [f"{name}{i}" for name in ("scale", "bias", "mean", "var")]
        nodes += [
            helper.make_node("BatchNormalization", [value, *norm], [f"n{i}"], name=f"norm{i}"),
            helper.make_node("Relu", [f"n{i}"], [f"r{i}"], name=f"relu{i}"),
            helper.make_node("Conv", [f"r{i}", f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1], name=f"conv{i}"),
            helper.make_node("Concat", [value, f"c{i}"], [f"x{i}"], axis=1, name=f"join{i}"),
        ]
        constants[f"w{i}"] = weights(i, 4, channels, 3, 3) / (3 * channels)
        value, channels = f"x{i}", channels + 4
    nodes.append(helper.make_node("Conv", [value, "last"], ["y"], name="last"))
    constants["last"] = weights(9, 5, channels, 1, 1)
    return model_of(nodes, {"x": (2, 3, 6, 7)}, {"y": None}, constants)


def test_what_others_read_as_well_is_written_in_place(tmp_path: Path) -> None:
    """A dense block: every skip is read where the last concatenation has it."""
    path = tmp_path / "m.onnx"
    onnx.save(_dense_block(), path)
    plain, better = convert(path, without=["write-in-place"]), convert(path)
    copies = [[layer.op for layer in c.graph.layers].count("copy") for c in (plain, better)]
    assert copies[0] >= 6 and copies[1] == 0
    np.testing.assert_array_equal(_run(plain.graph), _run(better.graph))
    assert compare(better, np.random.default_rng(0)).lsb_to_quantized <= 2


def test_the_border_of_a_padded_tensor_is_filled_before_its_inside_is_written(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="a"),
        helper.make_node("Pad", ["a", "pads", "value"], ["p"], name="p"),
        helper.make_node("Conv", ["p", "w2"], ["y"], name="c"),
    ]
    constants = {
        "w1": weights(1, 4, 3, 1, 1),
        "w2": weights(2, 5, 4, 3, 3) / 4,
        "pads": np.array([0, 0, 1, 2, 0, 0, 2, 1]),
        "value": np.float32(0.5),
    }
    path = tmp_path / "m.onnx"
    onnx.save(model_of(nodes, {"x": (1, 3, 5, 6)}, {"y": None}, constants), path)
    conversion = convert(path)
    assert any("write into" in line for line in conversion.rewrites)
    checked = compare(conversion, np.random.default_rng(1))
    assert checked.lsb_to_quantized <= 1.01
    assert checked.sqnr_db > 20
