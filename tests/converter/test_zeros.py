"""Zero points: which values get one, and that the integers with them are the network's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import fadiff
from fadiff.converter import Conversion, convert
from fadiff.converter.ir.program import program_of
from fadiff.converter.ir.scale import Scale
from fadiff.converter.plan.plan import plan
from fadiff.converter.quantise.prescribed import kept_zeros
from fadiff.converter.quantise.zeros import is_read_shifted, scale_of_all
from fadiff.pipeline import ModelOptions
from tests.converter.oracle import compare, model_of, session, sqnr_db, weights
from tests.converter.programs import program

# whatever else gains stays out: what is compared is the zero points
OTHERS = (
    "choose-ranges",
    "correct-biases",
    "round-weights",
    "equalise-channels",
)


def _network() -> onnx.ModelProto:
    """All but the first ReLU's result, which is read with padding, can have a zero point."""
    nodes = [
        helper.make_node("Conv", ["x", "a", "ab"], ["ca"]),
        helper.make_node("Relu", ["ca"], ["padded"]),
        helper.make_node("Conv", ["padded", "b"], ["cb"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["cb"], ["one_sided"]),
        helper.make_node("Conv", ["one_sided", "c", "cc"], ["before"], strides=[2, 2]),
        helper.make_node("Elu", ["before"], ["elu"]),
        helper.make_node("Conv", ["elu", "d", "db"], ["cd"], group=4),
        helper.make_node("Clip", ["cd", "low", "high"], ["clipped"]),
        helper.make_node("Flatten", ["clipped"], ["flat"]),
        helper.make_node("MatMul", ["flat", "e"], ["h"]),
        helper.make_node("Sigmoid", ["h"], ["gate"]),
        helper.make_node("Gemm", ["gate", "f"], ["y"], transB=1, alpha=0.7),
    ]
    constants = {
        "a": weights(0, 8, 3, 1, 1),
        "ab": weights(1, 8),
        "b": weights(2, 8, 8, 3, 3) / 6,
        "c": weights(3, 8, 8, 3, 3) / 4,
        "cc": weights(4, 8),
        "d": weights(5, 8, 2, 2, 2),
        "db": weights(6, 8),
        "low": np.float32(0),
        "high": np.float32(2.5),
        "e": weights(7, 32, 24),
        "f": weights(8, 6, 24),
    }
    return model_of(nodes, {"x": (1, 3, 7, 7)}, {"y": None}, constants)


def _samples(first: int, count: int) -> list[dict[str, np.ndarray]]:
    return [{"x": weights(first + i, 1, 3, 7, 7)} for i in range(count)]


def _converted(folder: Path, without: tuple[str, ...]) -> Conversion:
    onnx.save(_network(), folder / "model.onnx")
    return convert(folder / "model.onnx", calibration=_samples(100, 18), without=without)


def test_a_range_over_all_integers() -> None:
    assert scale_of_all(0, 2.55, rectified=False) == Scale(pytest.approx(0.01), -128)
    scale = scale_of_all(-1, 4.1, rectified=False)
    assert scale == Scale(pytest.approx(0.02), -78)
    assert (-128 - scale.zero) * scale.step == pytest.approx(-1, abs=scale.step / 2)
    assert scale_of_all(-3, 2.55, rectified=True) == Scale(pytest.approx(0.01), -128)
    assert scale_of_all(0, 0, rectified=True) is None


def test_values_that_products_and_tables_alone_touch(tmp_path: Path) -> None:
    conversion = _converted(tmp_path, OTHERS)
    assert any("zero points" in note for note in conversion.notes)
    zeros = {t.onnx_name: t.zero for t in conversion.graph.tensors.values() if t.data is None and t.onnx_name}
    assert zeros["x"] == zeros["padded"] == zeros["y"] == 0
    assert zeros["one_sided"] == zeros["gate"] == -128
    assert -128 < zeros["elu"] < 0
    assert zeros["before"] != 0
    assert zeros["clipped"] == 0  # a Flatten moves it


@pytest.mark.parametrize(
    ("shape", "pads"),
    [
        ((1, 2, 4, 6), False),
        ((1, 2, 5, 6), True),
        ((1, 2, 4, 7), True),
        ((1, 2, 4), False),
        ((1, 2, 5), True),
    ],
)
def test_windows_that_reach_beyond_the_image_read_no_zero_point(shape: tuple[int, ...], pads: bool) -> None:
    """Two by two elements in steps of two: where a size is odd, the last of them has a border."""
    plane = [2] * (len(shape) - 2)
    net = program(
        f'y = Conv <auto_pad = "SAME_UPPER", strides = {plane}> (x, w)',
        f"float{list(shape)} x",
        f"float{[1, 3, *(-(-n // 2) for n in shape[2:])]} y",
        w=weights(1, 3, 2, *plane),
    )
    (step,) = plan(net)
    assert is_read_shifted(net, step, "x") != pads
    assert is_read_shifted(net, step, "x", bordered=True)


def test_the_very_integers(tmp_path: Path) -> None:
    shifted, plain = _converted(tmp_path, OTHERS), _converted(tmp_path, (*OTHERS, "shift-zeros"))
    assert not any("zero points" in line for line in (*plain.notes, *plain.rewrites))
    assert all(tensor.zero == 0 for tensor in plain.graph.tensors.values())
    assert compare(shifted, np.random.default_rng(0)).lsb_to_quantized <= 1.01


def test_rectified_values_gain_a_bit(tmp_path: Path) -> None:
    nodes, constants = [], {}
    value = "x"
    for i in range(4):
        constants |= {f"w{i}": weights(i, 48, 48) / 7, f"b{i}": weights(9 + i, 48) / 9}
        nodes.append(helper.make_node("Gemm", [value, f"w{i}", f"b{i}"], [f"g{i}"]))
        nodes.append(helper.make_node("Relu", [f"g{i}"], [f"r{i}"]))
        value = f"r{i}"
    constants["v"] = weights(20, 48, 10)
    nodes.append(helper.make_node("MatMul", [value, "v"], ["y"]))
    onnx.save(model_of(nodes, {"x": (1, 48)}, {"y": None}, constants), tmp_path / "mlp.onnx")
    samples = [{"x": weights(100 + i, 1, 48)} for i in range(30)]
    found = []
    for without in (OTHERS, (*OTHERS, "shift-zeros")):
        conversion = convert(tmp_path / "mlp.onnx", calibration=samples, without=without)
        runs = [
            np.stack([session(model).run(None, sample)[0] for sample in samples])
            for model in (conversion.float_model, conversion.quantized_model)
        ]
        found.append(sqnr_db(*runs))
    assert found[0] > found[1] + 1


def test_the_device_computes_them(tmp_path: Path) -> None:
    onnx.save(_network(), tmp_path / "model.onnx")
    np.savez(tmp_path / "model.calibration.npz", x=np.stack([s["x"] for s in _samples(100, 18)]))
    result = fadiff.compile(
        tmp_path / "model.onnx", tmp_path / "out", reading=ModelOptions(without=OTHERS), verify=True
    )
    assert result.verification is not None
    assert result.verification.bit_exact
    assert any(tensor.zero for tensor in result.document.tensors)
    predicted = fadiff.load(tmp_path / "out").predict({"x": _samples(900, 1)[0]["x"]})
    expected = session(_network()).run(None, _samples(900, 1)[0])[0]
    assert sqnr_db(expected, predicted["y"]) > 20


@pytest.mark.parametrize("pads", [0, 1])
def test_rows_read_without_padding_keep_a_files_zero_point_where_a_relu_is_saturation(pads: int) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "a", "b"], ["c"], name="first"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "d"], ["y"], pads=[pads, pads], name="last"),
    ]
    constants = {"a": weights(0, 4, 3, 3), "b": weights(1, 4), "d": weights(2, 5, 4, 3)}
    model = model_of(nodes, {"x": (1, 3, 9)}, {"y": (1, 5, 5 + 2 * pads)}, constants)
    program = program_of(onnx.shape_inference.infer_shapes(model))
    steps = plan(program, "int8")
    kept = [kept_zeros(program, steps, {"r": Scale(0.5, zero)}, bordered=False) for zero in (-128, -120)]
    assert kept == [{} if pads else {"r": Scale(0.5, -128)}, {}]
