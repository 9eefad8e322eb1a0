"""Values share a scale only where that costs neither of them its precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fadiff.converter import convert
from fadiff.converter.ir.program import program_of
from fadiff.converter.quantise.ranges import channel_maxima
from fadiff.converter.quantise.scales import saturates_at
from tests.converter.oracle import check, compare, model_of, weights

ROWS, WIDTH = 6, 16
GOOD_DB = 28.0


def _product(weight: float, output: str) -> tuple[onnx.NodeProto, np.ndarray]:
    return helper.make_node("MatMul", ["x", output + "w"], [output]), weight * weights(2, WIDTH, WIDTH)


def test_a_sum_with_rows_of_a_table_keeps_the_scale_of_the_other_operand(tmp_path: Path) -> None:
    """Every decoder begins so: token embeddings, plus what the first attention makes of them."""
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["e"]),
        helper.make_node("MatMul", ["e", "w"], ["a"]),
        helper.make_node("Add", ["e", "a"], ["y"]),
    ]
    constants = {"table": 0.02 * weights(0, 9, WIDTH), "w": 0.2 * weights(1, WIDTH, WIDTH)}
    model = model_of(nodes, {}, {"y": None}, constants)
    model.graph.input.append(helper.make_tensor_value_info("tokens", TensorProto.INT64, (ROWS,)))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    conversion = convert(path)
    scales = {name: tensor.scale for name, tensor in conversion.graph.tensors.items()}
    assert scales["e"] == pytest.approx(np.abs(constants["table"]).max() / 127, rel=1e-6)
    assert scales["a"] < 0.01  # of values below 0.2
    assert compare(conversion, np.random.default_rng(1)).sqnr_db > GOOD_DB


@pytest.mark.parametrize("readers", [1, 2])
def test_a_sum_with_zeros_keeps_the_scale_of_the_other_operand(readers: int, tmp_path: Path) -> None:
    """The state that a recurrent network starts from, a mask that hides nothing."""
    product, w = _product(0.001, "a")
    nodes = [product, helper.make_node("Sub", ["z", "z"], ["zeros"])]
    nodes.append(helper.make_node("Add", ["a", "zeros"], ["y"]))
    nodes.append(helper.make_node("Transpose", ["zeros"], ["also"]))
    outputs = dict.fromkeys(("y", "also")[:readers])
    model = model_of(nodes[: 2 + readers], {"x": (ROWS, WIDTH), "z": (ROWS, WIDTH)}, outputs, {"aw": w})
    assert check(model, tmp_path).sqnr_db > GOOD_DB


@pytest.mark.parametrize("joined", ["Add", "Concat"])
def test_a_multiple_of_a_value_lends_no_scale(joined: str, tmp_path: Path) -> None:
    """A factor costs nothing, so its result has the scale of what it multiplies."""
    product, w = _product(0.0002, "b")
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"]),
        helper.make_node("Mul", ["s", "factor"], ["a"]),
        product,
        helper.make_node(joined, ["a", "b"], ["y"], **({"axis": 0} if joined == "Concat" else {})),
    ]
    constants = {"factor": np.float32(0.001), "bw": w}
    checked = check(model_of(nodes, {"x": (ROWS, WIDTH)}, {"y": None}, constants), tmp_path)
    assert checked.sqnr_db > GOOD_DB


def test_rows_of_a_quantised_table_keep_its_scale(tmp_path: Path) -> None:
    """Also where its integers leave the ends of the range unused."""
    table = np.random.default_rng(3).integers(-60, 61, (9, WIDTH)).astype(np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["table", "scale"], ["t"]),
        helper.make_node("Gather", ["t", "tokens"], ["e"]),
        helper.make_node("MatMul", ["e", "w"], ["y"]),
    ]
    constants = {"table": table, "scale": np.float32(0.5), "w": weights(1, WIDTH, 4)}
    model = model_of(nodes, {}, {"y": None}, constants)
    model.graph.input.append(helper.make_tensor_value_info("tokens", TensorProto.INT64, (ROWS,)))
    onnx.save(model, tmp_path / "model.onnx")
    conversion = convert(tmp_path / "model.onnx")
    assert conversion.graph.tensors["e"].scale == 0.5
    assert compare(conversion, np.random.default_rng(1)).sqnr_db > GOOD_DB


@pytest.mark.parametrize("parts", ["Slice", "Split"])
def test_a_slice_in_a_concatenation_leaves_the_others_their_scale(parts: str, tmp_path: Path) -> None:
    """Detection heads: of one sigmoid the scores stay, boxes become pixels, and all are concatenated."""
    ends = {"zero": np.array([0]), "middle": np.array([8]), "end": np.array([16]), "axis": np.array([1])}
    slices = [
        helper.make_node("Slice", ["s", "zero", "middle", "axis"], ["boxes"]),
        helper.make_node("Slice", ["s", "middle", "end", "axis"], ["scores"]),
    ]
    split = [helper.make_node("Split", ["s"], ["boxes", "scores"], axis=1)]
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"]),
        *(slices if parts == "Slice" else split),
        helper.make_node("Mul", ["boxes", "stride"], ["b"]),
        helper.make_node("Add", ["b", "grid"], ["pixels"]),
        helper.make_node("Concat", ["pixels", "scores"], ["y"], axis=1),
        helper.make_node("Mul", ["boxes", "boxes"], ["z"]),
    ]
    constants = {"stride": np.float32(64), "grid": 8 * np.arange(8, dtype=np.float32)}
    constants |= ends if parts == "Slice" else {}
    model = model_of(nodes, {"x": (ROWS, 16)}, {"y": None, "z": None}, constants)
    checked = check(model, tmp_path)
    assert checked.lsb_to_quantized <= 1.01
    assert checked.sqnr_db > GOOD_DB


def test_saturation_stands_for_a_clip_up_to_half_a_step() -> None:
    """127 steps may pass the bound by what rounds to it, and end before it."""
    assert saturates_at(6.0, 6 / 127) and saturates_at(6.0, 3 / 127) and saturates_at(6.0, 6.02 / 127)
    assert not saturates_at(6.0, 6.03 / 127) and not saturates_at(6.0, 12 / 127)


def test_channels_reach_what_the_loudest_sample_does(tmp_path: Path) -> None:
    """The second axis stays, the others and all samples do not: against numbers put there by hand."""
    model = model_of([helper.make_node("Neg", ["x"], ["y"])], {"x": (2, 3, 2, 2)}, {"y": (2, 3, 2, 2)})
    first, second = np.zeros((2, 2, 3, 2, 2), np.float32)
    first[0, 0, 1, 1], first[1, 1, 0, 1], second[1, 0, 0, 0], second[0, 2, 1, 0] = 3, -5, -7, 2
    found = channel_maxima("m.onnx", program_of(model), [{"x": first}, {"x": second}], ["y"])
    np.testing.assert_array_equal(found["y"], [7, 5, 2])


def test_what_picks_from_a_multiple_has_its_scale_also_where_a_sum_made_it_coarser(tmp_path: Path) -> None:
    """a takes the scale of b, which it is added to; 3 a follows, and so do the maxima of 3 a."""
    nodes = [
        helper.make_node("MatMul", ["x", "wa"], ["a"], name="a"),
        helper.make_node("MatMul", ["x", "wb"], ["b"], name="b"),
        helper.make_node("Add", ["a", "b"], ["s"], name="sum"),
        helper.make_node("Mul", ["a", "three"], ["m"], name="multiple"),
        helper.make_node("ReduceMax", ["m"], ["t"], name="maxima", axes=[1], keepdims=0),
    ]
    constants = {"wa": weights(1, WIDTH, WIDTH), "wb": 1.5 * weights(2, WIDTH, WIDTH)}
    constants["three"] = np.array(3, np.float32)
    model = model_of(nodes, {"x": (ROWS, WIDTH)}, {"s": (ROWS, WIDTH), "t": (ROWS,)}, constants)
    checked = check(model, tmp_path)
    assert checked.lsb_to_quantized <= 1.01 and checked.sqnr_db > GOOD_DB
    graph = checked.conversion.graph
    first, second = (graph.tensors[layer.output.tensor].scale for layer in graph.tensor_core_layers)
    assert first is not None and first == second
    (maxima,) = (layer for layer in graph.layers if layer.name == "maxima")
    np.testing.assert_allclose(graph.tensors[maxima.outputs[0]].scale, 3 * first, rtol=1e-6)
