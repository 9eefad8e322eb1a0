"""Pools with ceil_mode are what ONNX Runtime computes, windows behind the image dropped."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper

from tests.converter.oracle import check, ints, model_of, session, weights


@st.composite
def _axis(draw: st.DrawFn, dilated: bool) -> tuple[int, ...]:
    """Size, kernel, stride, dilation, leading and trailing padding of one axis."""
    kernel = draw(st.integers(1, 4))
    dilation = draw(st.integers(1, 3)) if dilated else 1
    begin, end = (draw(st.integers(0, kernel - 1)) for _ in range(2))
    size = draw(st.integers(max(1, (kernel - 1) * dilation + 1 - begin - end), 11))
    return size, kernel, draw(st.integers(1, 5)), dilation, begin, end


@st.composite
def _pools(draw: st.DrawFn) -> tuple[tuple[int, ...], onnx.NodeProto, int]:
    op = draw(st.sampled_from(["MaxPool", "AveragePool"]))
    opset = draw(st.sampled_from([11, 19, 22]))
    dilated = op == "MaxPool" or opset >= 19
    axes = draw(st.lists(_axis(dilated), min_size=1, max_size=2))
    sizes, kernel, strides, dilations, begin, end = zip(*axes, strict=True)
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": (*begin, *end), "ceil_mode": 1}
    if dilated:
        attributes["dilations"] = dilations
    if op == "AveragePool":
        attributes["count_include_pad"] = draw(st.integers(0, 1))
    return (1, 2, *sizes), helper.make_node(op, ["x"], ["y"], "pool", **attributes), opset


@settings(max_examples=40, deadline=None)
@given(_pools())
def test_random_pools(pool: tuple[tuple[int, ...], onnx.NodeProto, int]) -> None:
    shape, node, opset = pool
    model = model_of([node], {"x": shape}, {"y": None}, opset=opset)
    x = {"x": weights(3, *shape)}
    (wanted,) = session(model).run(None, x)
    assume(wanted.size)
    with tempfile.TemporaryDirectory() as folder, np.errstate(divide="raise", invalid="raise"):
        checked = check(model, Path(folder))
    assert checked.lsb_to_quantized <= 1.01
    (found,) = session(checked.conversion.float_model).run(None, x)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_what_follows_has_the_shape_of_the_pool(tmp_path: Path) -> None:
    """Rows need ceil mode, columns lose a window: inference counts 4 x 3, Reshape by Shape needs 4 x 2."""
    pads = {"pads": [1, 0, 1, 0], "count_include_pad": 1}
    nodes = [
        helper.make_node(
            "AveragePool", ["x"], ["p"], "pool", kernel_shape=[3, 1], strides=[2, 3], ceil_mode=1, **pads
        ),
        helper.make_node("Shape", ["p"], ["s"]),
        helper.make_node("Gather", ["s", "width"], ["columns"]),
        helper.make_node("Concat", ["rows", "columns"], ["shape"], axis=0),
        helper.make_node("Reshape", ["p", "shape"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    constants = {"width": ints(3), "rows": ints(8), "w": weights(0, 2, 5)}
    model = model_of(nodes, {"x": (1, 2, 6, 6)}, {"y": None}, constants)
    (wanted,) = session(model).run(None, {"x": weights(1, 1, 2, 6, 6)})
    checked = check(model, tmp_path)
    assert checked.lsb_to_quantized <= 1.01
    (found,) = session(checked.conversion.float_model).run(None, {"x": weights(1, 1, 2, 6, 6)})
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_declared_shapes_that_count_the_window_are_not_believed(tmp_path: Path) -> None:
    pool = helper.make_node("MaxPool", ["x"], ["p"], "pool", kernel_shape=[1, 1], strides=[3, 3], ceil_mode=1)
    relu = helper.make_node("Relu", ["p"], ["y"])
    model = onnx.shape_inference.infer_shapes(model_of([pool, relu], {"x": (1, 2, 4, 6)}, {"y": None}))
    assert [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim] == [1, 2, 2, 3]
    checked = check(model, tmp_path)
    assert checked.lsb_to_quantized == 0
    assert checked.conversion.graph.tensors["y"].shape == (1, 2, 2, 2)


def test_lp_pool(tmp_path: Path) -> None:
    pool = helper.make_node("LpPool", ["x"], ["y"], "pool", kernel_shape=[2, 2], strides=[4, 4], ceil_mode=1)
    assert check(model_of([pool], {"x": (1, 2, 8, 8)}, {"y": None}, opset=18), tmp_path).sqnr_db > 25
