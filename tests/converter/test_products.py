"""Convolutions and matrix products against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.converter.oracle import check, model_of, weights


def _conv(shape, channels, kernel, bias=True, relu=False, **attributes):  # type: ignore[no-untyped-def]
    group = attributes.get("group", 1)
    constants = {"w": weights(1, channels, shape[1] // group, *kernel)}
    inputs = ["x", "w"]
    if bias:
        constants["b"] = weights(2, channels)
        inputs.append("b")
    nodes = [helper.make_node("Conv", inputs, ["y" if not relu else "c"], **attributes)]
    if relu:
        nodes.append(helper.make_node("Relu", ["c"], ["y"]))
    return model_of(nodes, {"x": shape}, {"y": None}, constants)


CONVS = {
    "plain": ((1, 8, 9, 7), 6, (3, 3), {}),
    "pads": ((1, 8, 9, 7), 6, (3, 3), {"pads": [1, 0, 2, 1]}),
    "stride": ((1, 8, 9, 7), 6, (3, 3), {"strides": [2, 3], "pads": [1, 1, 1, 1]}),
    "dilation": ((1, 8, 12, 12), 6, (3, 3), {"dilations": [2, 3]}),
    "pointwise": ((2, 8, 5, 5), 6, (1, 1), {}),
    "groups": ((1, 8, 6, 6), 12, (3, 3), {"group": 4}),
    "depthwise": ((1, 8, 6, 6), 8, (3, 3), {"group": 8, "pads": [1, 1, 1, 1]}),
    "multiplier": ((1, 4, 6, 6), 8, (3, 3), {"group": 4}),
    "non-square": ((1, 3, 10, 6), 5, (5, 2), {"strides": [2, 1]}),
    "same upper": ((1, 3, 7, 8), 5, (3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "same lower": ((1, 3, 7, 8), 5, (4, 4), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    "one-dimensional": ((2, 4, 16), 6, (5,), {"pads": [2, 2], "strides": [2]}),
    "long reduction": ((1, 600, 3, 3), 4, (3, 3), {"pads": [1, 1, 1, 1]}),
}


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("case", CONVS)
def test_conv_equals_ort(case: str, relu: bool, tmp_path: Path) -> None:
    shape, channels, kernel, attributes = CONVS[case]
    checked = check(_conv(shape, channels, kernel, relu=relu, **attributes), tmp_path)
    assert checked.lsb_to_quantized <= 1.01  # float ties of the unfused model
    assert checked.sqnr_db > 25
    (layer,) = checked.conversion.graph.tensor_core_layers
    assert layer.activation == ("relu" if relu else "none")


def test_dims_of_a_grouped_convolution(tmp_path: Path) -> None:
    checked = check(_conv((2, 8, 6, 6), 12, (3, 3), group=4), tmp_path)
    (layer,) = checked.conversion.graph.tensor_core_layers
    assert layer.dims.as_dict() == {"G": 4, "N": 2, "K": 3, "C": 2, "P": 4, "Q": 4, "R": 3, "S": 3}


def test_weights_are_stored_rsck(tmp_path: Path) -> None:
    checked = check(_conv((1, 4, 5, 5), 6, (3, 2), group=2), tmp_path)
    graph = checked.conversion.graph
    (layer,) = graph.tensor_core_layers
    weight = graph.tensors[layer.weight.tensor]
    original = weights(1, 6, 2, 3, 2)  # K C R S
    assert weight.scale == np.float32(np.abs(original).max()) / np.float32(127)
    expected = np.rint(original / weight.scale).reshape(2, 3, 2, 3, 2).transpose(0, 3, 4, 2, 1)
    np.testing.assert_array_equal(weight.data, expected)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_gemm_equals_ort(transposed: int, alpha: float, tmp_path: Path) -> None:
    shape = (6, 10) if transposed else (10, 6)
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=transposed, alpha=alpha, beta=2.0)
    model = model_of([node], {"x": (3, 10)}, {"y": None}, {"w": weights(1, *shape), "b": weights(2, 6)})
    checked = check(model, tmp_path)
    assert checked.lsb_to_quantized <= 1.01
    (layer,) = checked.conversion.graph.tensor_core_layers
    assert (layer.dims.P, layer.dims.C, layer.dims.K) == (3, 10, 6)


def test_flatten_before_gemm_permutes_the_weights(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"]),
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node("Gemm", ["f", "w"], ["y"]),
    ]
    model = model_of(
        nodes, {"x": (2, 3, 6, 6)}, {"y": None}, {"k": weights(1, 5, 3, 3, 3), "w": weights(2, 80, 7)}
    )
    checked = check(model, tmp_path)
    assert checked.lsb_to_quantized <= 1.01
    assert [layer.op for layer in checked.conversion.graph.layers] == ["conv", "gemm"]


REPEATED = {
    "rows of a matrix": ("MatMul", {"x": (1, 20)}, (5, 20), {"w": weights(1, 20, 6)}),
    "pixels": ("Conv", {"x": (1, 6, 1, 1)}, (1, 6, 4, 5), {"w": weights(1, 4, 6, 3, 3)}),
    "rows of a computed product": ("MatMul", {"x": (1, 1, 20), "w": (1, 20, 4)}, (1, 5, 20), {}),
}


@pytest.mark.parametrize("case", REPEATED)
def test_the_array_reads_no_row_with_stride_zero(case: str, tmp_path: Path) -> None:
    """Gemmini's mvin fetches such a row once, where every cost counts it each time."""
    op, inputs, shape, constants = REPEATED[case]
    nodes = [helper.make_node("Expand", ["x", "s"], ["e"]), helper.make_node(op, ["e", "w"], ["y"])]
    constants = {"s": np.array(shape, np.int64), **constants}
    checked = check(model_of(nodes, inputs, {"y": None}, constants), tmp_path)
    assert checked.lsb_to_quantized <= 1
    (layer,) = checked.conversion.graph.tensor_core_layers
    sizes = (layer.dims.G, layer.dims.N, *layer.input_size)
    assert all(stride for stride, size in zip(layer.input.strides, sizes, strict=False) if size > 1)


@pytest.mark.parametrize("order", [(2, 0, 1), (0, 2, 1), (1, 0, 2)])
def test_a_product_writes_its_channels_side_by_side(order: tuple[int, ...], tmp_path: Path) -> None:
    """Whatever order a Transpose behind it would like."""
    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["c"]),
        helper.make_node("Transpose", ["c"], ["t"], perm=list(order)),
        helper.make_node("Sigmoid", ["t"], ["y"]),
    ]
    checked = check(model_of(nodes, {"a": (4, 6, 8), "b": (4, 8, 10)}, {"y": None}), tmp_path)
    assert checked.lsb_to_quantized <= 1
    products = [layer for layer in checked.conversion.graph.layers if layer.op == "bmm"]
    assert products and all(layer.output.strides[4] == 1 for layer in products)
