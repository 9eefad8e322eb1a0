"""Models that a quantisation tool wrote: every placement and scheme converts, accuracy stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from fadiff.converter import Conversion, ModelError, convert
from tests.converter.oracle import Calibration, compare, model_of, session, sqnr_db, weights

SYMMETRIC = {"ActivationSymmetric": True, "WeightSymmetric": True}
SCHEMES = {
    "qdq symmetric": (QuantFormat.QDQ, QuantType.QInt8, QuantType.QInt8, False, SYMMETRIC),
    "qdq uint8": (QuantFormat.QDQ, QuantType.QUInt8, QuantType.QInt8, False, {}),
    "qdq int8 zero points": (QuantFormat.QDQ, QuantType.QInt8, QuantType.QInt8, False, {}),
    "qdq per channel": (QuantFormat.QDQ, QuantType.QUInt8, QuantType.QInt8, True, {}),
    "operators symmetric": (QuantFormat.QOperator, QuantType.QInt8, QuantType.QInt8, False, SYMMETRIC),
    "operators uint8": (QuantFormat.QOperator, QuantType.QUInt8, QuantType.QUInt8, False, {}),
    "operators per channel": (QuantFormat.QOperator, QuantType.QUInt8, QuantType.QInt8, True, {}),
}


def _float_model() -> onnx.ModelProto:
    """Everything the quantiser has its own operators for."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1], name="c1"),
        helper.make_node("Relu", ["c1"], ["r1"], name="r1"),
        helper.make_node("MaxPool", ["r1"], ["p"], kernel_shape=[2, 2], strides=[2, 2], name="p"),
        helper.make_node("Conv", ["p", "w2"], ["c2"], pads=[1, 1, 1, 1], name="c2"),
        helper.make_node("Add", ["c2", "p"], ["a"], name="a"),
        helper.make_node("LeakyRelu", ["a"], ["l"], alpha=0.1, name="l"),
        helper.make_node("Concat", ["l", "p"], ["k"], axis=1, name="k"),
        helper.make_node("Sigmoid", ["k"], ["s"], name="s"),
        helper.make_node("Mul", ["k", "s"], ["m"], name="m"),
        helper.make_node("GlobalAveragePool", ["m"], ["g"], name="g"),
        helper.make_node("Flatten", ["g"], ["f"], name="f"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], name="fc"),
    ]
    constants = {
        "w1": weights(1, 8, 3, 3, 3),
        "b1": weights(2, 8),
        "w2": weights(3, 8, 8, 3, 3) / 8,
        "w3": weights(4, 16, 10),
        "b3": weights(5, 10),
    }
    return model_of(nodes, {"x": (1, 3, 12, 12)}, {"y": (1, 10)}, constants)


def _input(seed: int) -> np.ndarray:
    return np.random.default_rng(100 + seed).standard_normal((1, 3, 12, 12)).astype(np.float32)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_of_onnxruntime(scheme: str, tmp_path: Path) -> None:
    source, path = tmp_path / "float.onnx", tmp_path / "quantised.onnx"
    onnx.save(_float_model(), source)
    form, activation, weight, per_channel, extra = SCHEMES[scheme]
    quantize_static(
        source,
        path,
        Calibration({"x": _input(i)} for i in range(8)),
        quant_format=form,
        activation_type=activation,
        weight_type=weight,
        per_channel=per_channel,
        extra_options=extra,
    )
    conversion = convert(path)
    assert not conversion.warnings  # nothing had to be calibrated
    x = _input(50)
    theirs = session(onnx.load(path)).run(None, {"x": x})[0]
    ours = session(conversion.quantized_model).run(None, {"x": x})[0]
    assert sqnr_db(theirs, ours) > 17
    checked = compare(conversion, np.random.default_rng(7))
    assert checked.lsb_to_quantized <= 4
    lossless = "symmetric" in scheme
    assert any("not bit-exact" in note for note in conversion.notes) != lossless


def test_dynamic_quantisation_is_calibrated(tmp_path: Path) -> None:
    source, path = tmp_path / "float.onnx", tmp_path / "dynamic.onnx"
    onnx.save(_float_model(), source)
    quantize_dynamic(source, path)
    conversion = convert(path, calibration=[{"x": _input(i)} for i in range(8)])
    assert any("dynamically" in note for note in conversion.notes)
    x = _input(50)
    theirs = session(onnx.load(path)).run(None, {"x": x})[0]
    assert sqnr_db(theirs, session(conversion.quantized_model).run(None, {"x": x})[0]) > 17


def test_symmetric_scales_and_integers_are_kept(tmp_path: Path) -> None:
    """A QDQ convolution in the form Gemmini executes: not one number changes."""
    integers = np.random.default_rng(0).integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
    integers.flat[0] = 90  # the largest is not 127: a new scale would change them
    integers = np.clip(integers, -90, 90)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "z"], ["wd"]),
        helper.make_node("Conv", ["xd", "wd"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "ys", "z"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "ys", "z"], ["y"]),
    ]
    scales = {n: np.array(v, np.float32) for n, v in (("xs", 0.03), ("ws", 0.002), ("ys", 0.05))}
    constants = {"w": integers, "z": np.array(0, np.int8), **scales}
    model = model_of(nodes, {"x": (1, 3, 8, 8)}, {"y": (1, 4, 6, 6)}, constants)
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    conversion = convert(path, quantize="none", calibration=[{"x": _input(0)[..., :8, :8]}])
    assert len(conversion.samples) == 1, "no range comes of it, but the verdict"
    graph = conversion.graph
    (layer,) = graph.tensor_core_layers
    tensors = graph.tensors
    assert tensors[layer.input.tensor].scale == np.float32(0.03)
    assert tensors[layer.weight.tensor].scale == np.float32(0.002)
    assert tensors[layer.output.tensor].scale == np.float32(0.05)
    np.testing.assert_array_equal(tensors[layer.weight.tensor].data[0], integers.transpose(2, 3, 1, 0))
    assert layer.scale == (np.float32(0.03) * np.float32(0.002)) / np.float32(0.05)


def test_relu_hidden_in_the_zero_point_returns(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("QuantizeLinear", ["c", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    constants = {"w": weights(1, 4, 3, 1, 1), "s": np.array(0.02, np.float32), "z": np.array(0, np.uint8)}
    path = tmp_path / "m.onnx"
    onnx.save(model_of(nodes, {"x": (1, 3, 4, 4)}, {"y": (1, 4, 4, 4)}, constants), path)
    kept, symmetric = (convert(path, without=without).graph for without in ((), ("shift-zeros",)))
    assert kept.tensors[kept.outputs[0]].zero == -128  # below it there is nothing
    (layer,) = symmetric.layers
    assert layer.activation == "relu"  # type: ignore[union-attr]


def test_none_demands_a_quantised_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_float_model(), path)
    with pytest.raises(ModelError, match="not quantised"):
        convert(path, quantize="none")


def test_runtime_scale_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="quantise"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        [numpy_helper.from_array(np.array(0, np.int8), "z")],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with pytest.raises(ModelError, match=r"quantise.*computed at run time"):
        convert(path)


def _convert_and_compare(model: onnx.ModelProto, folder: Path, least_db: float) -> Conversion:
    """Convert without calibration, and compare with ONNX Runtime's run of the file itself."""
    path = folder / "m.onnx"
    onnx.save(model, path)
    conversion = convert(path, quantize="none")
    generator = np.random.default_rng(3)
    (source,) = session(model).get_inputs()
    x = generator.standard_normal(source.shape).astype(np.float32)
    theirs = session(model).run(None, {source.name: x})[0]
    assert sqnr_db(theirs, session(conversion.quantized_model).run(None, {source.name: x})[0]) > least_db
    assert compare(conversion, generator).lsb_to_quantized <= 2
    return conversion


def _pair(value: str, scale: str, zero: str, out: str, **more: object) -> list[onnx.NodeProto]:
    return [
        helper.make_node("QuantizeLinear", [value, scale, zero], [f"{out}.q"], **more),
        helper.make_node("DequantizeLinear", [f"{out}.q", scale, zero], [out], **more),
    ]


_SCALES = {
    "xs": np.array(0.03, np.float32),
    "ys": np.array(0.06, np.float32),
    "zero": np.array(0, np.int8),
    "lowest": np.array(-128, np.int8),
}


def test_quantisation_aware_training_of_pytorch(tmp_path: Path) -> None:
    """Weights scaled by a batch norm, quantised in the graph, unscaled behind; scales behind Identity."""
    weight, factor = weights(1, 6, 3, 3, 3) / 4, np.abs(weights(2, 6)) + 0.5
    nodes = [
        *_pair("x", "xs", "zero", "xd"),
        helper.make_node("Mul", ["w", "f1"], ["scaled"]),
        helper.make_node("Identity", ["ws"], ["ws2"]),
        *_pair("scaled", "ws2", "zeros", "wd", axis=0),
        helper.make_node("Conv", ["xd", "wd"], ["c"], name="conv"),
        helper.make_node("Div", ["c", "f2"], ["unscaled"], name="unscale"),
        helper.make_node("BatchNormalization", ["unscaled", "factor", "b", "b", "ones"], ["n"], name="bn"),
        helper.make_node("Relu", ["n"], ["r"], name="relu"),
        *_pair("r", "ys", "lowest", "y"),
    ]
    constants = {
        **_SCALES,
        "w": weight,
        "f1": factor.reshape(6, 1, 1, 1),
        "f2": factor.reshape(1, 6, 1, 1),
        "factor": factor,
        "b": weights(3, 6) / 5,
        "ones": np.ones(6, np.float32),
        "ws": (np.abs(weight).max((1, 2, 3)) * factor / 127).astype(np.float32),
        "zeros": np.zeros(6, np.int8),
    }
    model = model_of(nodes, {"x": (1, 3, 8, 8)}, {"y": (1, 6, 6, 6)}, constants)
    conversion = _convert_and_compare(model, tmp_path, 28)
    (layer,) = conversion.graph.layers  # product, division, batch norm and ReLU in one
    assert layer.op == "conv"


def test_tensorflow_transposes_its_weights(tmp_path: Path) -> None:
    """N H W C with weights H W C K behind DequantizeLinear; integer biases; a fused ReLU6 in the clip."""
    integers = np.random.default_rng(0).integers(-127, 128, (3, 3, 3, 5)).astype(np.int8)
    nodes = [
        *_pair("x", "xs", "zero", "xd"),
        helper.make_node("Transpose", ["xd"], ["nchw"], perm=[0, 3, 1, 2], name="nchw"),
        helper.make_node("DequantizeLinear", ["w", "ws", "zero"], ["wd"], name="dq"),
        helper.make_node("Transpose", ["wd"], ["wt"], perm=[3, 2, 0, 1], name="wt"),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["bd"], name="bdq"),
        helper.make_node("Conv", ["nchw", "wt", "bd"], ["c"], name="conv"),
        helper.make_node("Transpose", ["c"], ["nhwc"], perm=[0, 2, 3, 1], name="nhwc"),
        *_pair("nhwc", "ys", "lowest", "y"),
    ]
    constants = {
        **_SCALES,
        "w": integers,
        "ws": np.array(0.004, np.float32),
        "b": np.random.default_rng(1).integers(-5000, 5000, 5).astype(np.int32),
        "bs": np.array(np.float32(0.03) * np.float32(0.004), np.float32),
    }
    model = model_of(nodes, {"x": (1, 8, 8, 3)}, {"y": (1, 6, 6, 5)}, constants)
    conversion = _convert_and_compare(model, tmp_path, 33)
    (layer,) = conversion.graph.tensor_core_layers
    data = conversion.graph.tensors[layer.weight.tensor].data
    np.testing.assert_array_equal(data[0], integers)  # type: ignore[index]


def test_clips_between_pairs_keep_their_meaning(tmp_path: Path) -> None:
    """Narrow ranges as integers clipped before DequantizeLinear (Brevitas), and PyTorch's cast."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "zero"], ["q"]),
        helper.make_node("Clip", ["q", "low", "high"], ["k"]),
        helper.make_node("Cast", ["k"], ["k8"], to=TensorProto.INT8),
        helper.make_node("DequantizeLinear", ["k8", "xs", "zero"], ["y"]),
    ]
    constants = {**_SCALES, "low": np.array(-20, np.int8), "high": np.array(10, np.int8)}
    _convert_and_compare(model_of(nodes, {"x": (2, 40)}, {"y": (2, 40)}, constants), tmp_path, 60)


def test_arithmetic_on_the_integers_of_a_pair_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "zero"], ["q"]),
        helper.make_node("Cast", ["q"], ["c"], to=TensorProto.FLOAT, name="by hand"),
        helper.make_node("Mul", ["c", "xs"], ["y"]),
    ]
    path = tmp_path / "m.onnx"
    onnx.save(model_of(nodes, {"x": (2, 4)}, {"y": (2, 4)}, _SCALES), path)
    with pytest.raises(ModelError, match=r"by hand \(Cast\) computes with integers.*DequantizeLinear"):
        convert(path)


def test_constants_quantised_in_the_graph(tmp_path: Path) -> None:
    """The pair around a constant rounds it; it is not undone a second time."""
    nodes = [
        *_pair("x", "xs", "zero", "xd"),
        *_pair("w", "ws", "zero", "wd"),
        helper.make_node("MatMul", ["xd", "wd"], ["m"], name="product"),
        *_pair("m", "ys", "zero", "y"),
    ]
    constants = {**_SCALES, "w": weights(1, 16, 6) / 4, "ws": np.array(0.01, np.float32)}
    _convert_and_compare(model_of(nodes, {"x": (4, 16)}, {"y": (4, 6)}, constants), tmp_path, 40)


def test_integers_of_a_pair_may_be_resized_and_picked_from_a_table(tmp_path: Path) -> None:
    """Where ONNX Runtime's operator format leaves them: Resize, and Gather of an embedding."""
    rows = np.random.default_rng(0).integers(-60, 61, (7, 16)).astype(np.int8)
    nodes = [
        helper.make_node("Gather", ["rows", "tokens"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "xs", "zero"], ["e"]),
        helper.make_node("MatMul", ["e", "w"], ["m"]),
        *_pair("m", "ys", "zero", "y"),
        helper.make_node("QuantizeLinear", ["x", "xs", "zero"], ["xq"]),
        helper.make_node("Resize", ["xq", "", "sizes"], ["r"], mode="nearest"),
        helper.make_node("DequantizeLinear", ["r", "xs", "zero"], ["z"]),
    ]
    sizes = np.array([1, 1, 2, 3], np.float32)
    constants = {**_SCALES, "rows": rows, "w": weights(1, 16, 4) / 4, "sizes": sizes}
    model = model_of(nodes, {"x": (1, 2, 3, 4)}, {"y": (5, 4), "z": (1, 2, 6, 12)}, constants)
    model.graph.input.append(helper.make_tensor_value_info("tokens", TensorProto.INT64, (5,)))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    conversion = convert(path)
    assert compare(conversion, np.random.default_rng(1)).sqnr_db > 30
    tensors = conversion.graph.tensors.values()
    kept = [tensor.data for tensor in tensors if tensor.data is not None and tensor.shape == rows.shape]
    assert len(kept) == 1 and np.array_equal(kept[0], rows)
    feeds = {"x": weights(3, 1, 2, 3, 4), "tokens": np.arange(5)}
    for found, wanted in zip(
        session(conversion.quantized_model).run(None, feeds), session(model).run(None, feeds), strict=True
    ):
        assert sqnr_db(wanted, found) > 35


def test_values_inside_a_chain_may_be_outputs_all_at_once(tmp_path: Path) -> None:
    """The number before the pair, its integers and what two readers make of them are one value here."""
    nodes = [
        *_pair("x", "xs", "zero", "xd"),
        helper.make_node("MatMul", ["xd", "w"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "ys", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "ys", "zero"], ["first"]),
        helper.make_node("DequantizeLinear", ["q", "ys", "zero"], ["second"]),
        helper.make_node("Sigmoid", ["first"], ["y"]),
    ]
    shapes = dict.fromkeys(["second", "q", "m", "first", "y"], (4, 6))
    model = model_of(nodes, {"x": (4, 16)}, shapes, {**_SCALES, "w": weights(1, 16, 6) / 4})
    model.graph.output[1].type.tensor_type.elem_type = TensorProto.INT8
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    conversion = convert(path)
    x = weights(3, 4, 16)
    found = session(conversion.quantized_model).run(None, {"x": x})
    wanted = session(model).run(None, {"x": x})
    step = float(_SCALES["ys"])
    wanted[1] = wanted[1] * np.float32(step)  # integers, as what they mean
    for ours, theirs in zip(found[:4], wanted[:4], strict=True):
        assert np.abs(ours - theirs).max() <= 1.01 * step
    assert [conversion.graph.tensors[name].onnx_name for name in conversion.graph.outputs] == list(shapes)


@pytest.mark.parametrize("louder", [2.0, 100.0])
def test_weights_keep_their_channels(louder: float, tmp_path: Path) -> None:
    """Scales and integers stay; with one scale for all, the worst weights are named."""
    scales = np.array([louder, 1, 1, 1], np.float32) / 100
    nodes = [
        *_pair("x", "xs", "zero", "xd"),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wd"], axis=1),
        helper.make_node("MatMul", ["xd", "wd"], ["m"]),
        *_pair("m", "ys", "zero", "y"),
    ]
    integers = np.random.default_rng(0).integers(-127, 128, (16, 4)).astype(np.int8)
    model = model_of(nodes, {"x": (4, 16)}, {"y": (4, 4)}, {**_SCALES, "w": integers, "ws": scales})
    onnx.save(model, tmp_path / "m.onnx")
    (note,) = (conversion := convert(tmp_path / "m.onnx")).notes
    assert note.startswith("1 weights have a scale for each channel (first: wd): their integers stay")
    (layer,) = conversion.graph.tensor_core_layers
    kept = conversion.graph.tensors[layer.weight.tensor].data
    assert kept is not None
    np.testing.assert_array_equal(kept.reshape(16, 4), integers)
    (note,) = convert(tmp_path / "m.onnx", without=["channel-scales"]).notes
    steps = louder * np.abs(integers[:, 0]).max() / 127 / 2
    assert f"wd, off by at most {steps:.1f} steps of its finest channel" in note


@pytest.mark.parametrize("columns", [False, True])
def test_a_product_of_integers_with_a_scale_for_each_column(columns: bool, tmp_path: Path) -> None:
    """QLinearMatMul, whose weights have a zero point, too, is the product of what its integers mean."""
    generator = np.random.default_rng(0)
    integers = generator.integers(-100, 101, (6, 4)).astype(np.int8)
    scale = np.array([0.01, 0.02, 0.05, 0.03] if columns else 0.02, np.float32)
    zero = np.array([0, 0, 0, 0] if columns else 3, np.int8)
    inputs = ["q", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        helper.make_node("QLinearMatMul", inputs, ["p"], name="product"),
        helper.make_node("DequantizeLinear", ["p", "ys", "yz"], ["y"]),
    ]
    constants = {"xs": np.array(0.02, np.float32), "xz": np.array(-8, np.int8), "w": integers, "ws": scale}
    constants |= {"wz": zero, "ys": np.array(0.1, np.float32), "yz": np.array(5, np.int8)}
    path = tmp_path / "m.onnx"
    onnx.save(model_of(nodes, {"x": (5, 6)}, {"y": (5, 4)}, constants), path)
    conversion = convert(path)
    assert [node.op_type for node in conversion.float_model.graph.node] == ["MatMul"]
    assert conversion.float_model.graph.node[0].name == "product"
    x = weights(2, 5, 6)
    (found,) = session(conversion.float_model).run(None, {"x": x})
    meant = (integers.astype(np.float32) - zero) * scale
    np.testing.assert_allclose(found, x @ meant, rtol=1e-5, atol=1e-6)
    ends = [conversion.graph.tensors[end] for end in (*conversion.graph.inputs, *conversion.graph.outputs)]
    assert [(end.scale, end.zero) for end in ends] == [(np.float32(0.02), -8), (np.float32(0.1), 5)]


@pytest.mark.parametrize("read_twice", [False, True])
def test_what_only_a_clip_reads_saturates_where_it_clips(read_twice: bool, tmp_path: Path) -> None:
    """The scale of a value before Clip(-0.5, 1), which the file does not give, is 1 / 127."""
    nodes = [
        *_pair("x", "xs", "zero", "xd"),
        helper.make_node("MatMul", ["xd", "w"], ["m"], name="product"),
        helper.make_node("Clip", ["m", "low", "high"], ["c"], name="clip"),
        *_pair("c", "cs", "zero", "y"),
    ]
    constants = {**_SCALES, "w": weights(1, 16, 6), "cs": np.array(1 / 127, np.float32)}
    constants |= {"low": np.array(-0.5, np.float32), "high": np.array(1, np.float32)}
    outputs: dict[str, tuple[int, ...] | None] = {"y": (4, 6)}
    if read_twice:
        outputs["m"] = (4, 6)
    path = tmp_path / "m.onnx"
    onnx.save(model_of(nodes, {"x": (4, 16)}, outputs, constants), path)
    x = 4 * weights(3, 4, 16)
    graph = convert(path, calibration=[{"x": x}]).graph
    (product,) = graph.tensor_core_layers
    scale = graph.tensors[product.output.tensor].scale
    assert scale is not None and (scale == np.float32(1 / 127)) != read_twice
    assert not read_twice or scale > 1.5 / 127
