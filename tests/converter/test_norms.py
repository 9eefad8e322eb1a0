"""Normalisations and softmaxes in every spelling are one layer, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, helper

from fadiff.converter.ir.program import program_of
from fadiff.converter.plan.norms import find_norms
from tests.converter.oracle import check, ints, model_of, weights

SHAPE = (2, 5, 12)
IMAGE = (1, 6, 4, 5)
CONSTANTS = {
    "eps": np.array(1e-5, np.float32),
    "zero": np.array(0, np.float32),
    "two": np.array([2], np.float32),
    "half": np.array(-0.5, np.float32),
    "nth": np.array(1 / 12, np.float32),
    "fifth": np.array(1 / 5, np.float32),
    "tiny": np.array(1e-12, np.float32),
    "last": ints(-1),
    "middle": ints(1),
    "rows": ints(2, 5, 1),
    "columns": ints(2, 1, 12),
    "all": ints(*SHAPE),
    "g": weights(1, 12),
    "b": weights(2, 12),
    "gm": weights(3, 1, 5, 1),
    "bm": weights(4, 1, 5, 1),
    "gc": weights(5, 6, 1, 1),
    "bc": weights(6, 1, 6, 1, 1),
    "per row": weights(7, 2, 5, 1),
    "nine tenths": np.array(0.9, np.float32),
}


def _nodes(text: str) -> list[NodeProto]:
    """One node per line: output = Op(inputs), or with attributes after a semicolon."""
    nodes = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        output, _, call = line.partition(" = ")
        op, _, rest = call.partition("(")
        inputs, _, attributes = rest.rstrip(")").partition("; ")
        keywords = dict(item.split("=") for item in attributes.split(", ") if item)
        numbers = {key: int(value) for key, value in keywords.items()}
        nodes.append(helper.make_node(op, inputs.split(", "), [output], name=output, **numbers))
    return nodes


FLAX = """
    s = ReduceSum(x, last; keepdims=0)
    m = Mul(s, nth)
    m1 = Reshape(m, rows)
    d = Sub(x, m1)
    mm = Mul(m, m)
    xx = Mul(x, x)
    ss = ReduceSum(xx, last; keepdims=0)
    e = Mul(ss, nth)
    v = Sub(e, mm)
    p = Max(zero, v)
    p1 = Reshape(p, rows)
    pe = Add(p1, eps)
    r = Sqrt(pe)
    i = Reciprocal(r)
    ig = Mul(i, g)
    n = Mul(d, ig)
    y = Add(n, b)
"""
OVER_THE_MIDDLE = """
    s = ReduceSum(x, middle; keepdims=0)
    m = Mul(s, fifth)
    m1 = Reshape(m, columns)
    d = Sub(x, m1)
    dd = Mul(d, d)
    ss = ReduceSum(dd, middle)
    v = Mul(fifth, ss)
    pe = Add(eps, v)
    i = Pow(pe, half)
    n = Mul(i, d)
    ng = Mul(gm, n)
    y = Add(n2, bm)
""".replace("n2", "ng")
TENSORFLOW = """
    m = ReduceMean(x, last)
    d = Sub(x, m)
    dd = Mul(d, d)
    v = ReduceMean(dd, last)
    pe = Add(v, eps)
    r = Sqrt(pe)
    i = Reciprocal(r)
    ig = Mul(i, g)
    t = Mul(m, ig)
    u = Sub(b, t)
    xi = Mul(x, ig)
    y = Add(xi, u)
"""
EXPANDED = """
    m = ReduceMean(x, last)
    me = Expand(m, all)
    d = Sub(x, me)
    dd = Pow(d, two)
    v = ReduceMean(dd, last; keepdims=0)
    vu = Unsqueeze(v, last)
    pe = Add(vu, eps)
    r = Sqrt(pe)
    re = Expand(r, all)
    n = Div(d, re)
    ng = Mul(n, g)
    y = Add(ng, b)
"""
RMS = """
    xx = Pow(x, two)
    v = ReduceMean(xx, last)
    pe = Add(v, eps)
    i = Pow(pe, half)
    n = Mul(x, i)
    y = Mul(g, n)
"""
UNIT_LENGTH = """
    xx = Mul(x, x)
    ss = ReduceSum(xx, last)
    r = Sqrt(ss)
    c = Max(r, tiny)
    ce = Expand(c, all)
    y = Div(x, ce)
"""
INSTANCE = """
    m = ReduceMean(x, pixels)
    d = Sub(x, m)
    dd = Mul(d, d)
    v = ReduceMean(dd, pixels)
    pe = Add(v, eps)
    r = Sqrt(pe)
    n = Div(d, r)
    ng = Mul(gc, n)
    y = Add(ng, bc)
"""
CHANNELS_FIRST = INSTANCE.replace("pixels", "middle")
SPELLINGS = {
    "flax": (FLAX, SHAPE, 1),
    "over the middle axis": (OVER_THE_MIDDLE, SHAPE, 1),
    "tensorflow": (TENSORFLOW, SHAPE, 1),
    "expanded": (EXPANDED, SHAPE, 1),
    "rms": (RMS, SHAPE, 0),
    "unit length": (UNIT_LENGTH, SHAPE, 0),
    "instance": (INSTANCE, IMAGE, 1),
    "channels first": (CHANNELS_FIRST, IMAGE, 1),
}


def _model(text: str, shape: tuple[int, ...] = SHAPE):  # type: ignore[no-untyped-def]
    nodes = _nodes(text)
    constants = {**CONSTANTS, "pixels": ints(2, 3)}
    used = {value for node in nodes for value in node.input}
    chosen = {name: array for name, array in constants.items() if name in used}
    return model_of(nodes, {"x": shape}, {"y": shape}, chosen, opset=18)


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_one_layer(name: str, tmp_path: Path) -> None:
    text, shape, centred = SPELLINGS[name]
    checked = check(_model(text, shape), tmp_path)
    layers = [layer for layer in checked.conversion.graph.layers if layer.op != "copy"]
    assert [layer.op for layer in layers] == ["layer_norm"]
    assert layers[0].operator.center == centred  # type: ignore[union-attr]
    assert checked.lsb_to_quantized <= 1.01
    assert checked.sqnr_db > 30


@pytest.mark.parametrize("name", ["flax", "over the middle axis", "unit length", "instance"])
def test_every_spelling_runs_in_float(name: str, tmp_path: Path) -> None:
    text, shape, _ = SPELLINGS[name]
    assert check(_model(text, shape), tmp_path, element="float32").sqnr_db > 100


def _wrong(change: Callable[[str], str]) -> int:
    import onnx

    model = onnx.shape_inference.infer_shapes(_model(change(FLAX)))
    return len(list(find_norms(program_of(model))))


def test_what_only_looks_like_a_normalisation_stays_apart() -> None:
    assert _wrong(lambda text: text) == 1
    assert _wrong(lambda text: text.replace("m = Mul(s, nth)", "m = Mul(s, nine tenths)")) == 0
    assert _wrong(lambda text: text.replace("ss, nth", "ss, nine tenths")) == 0
    assert _wrong(lambda text: text.replace("d = Sub(x, m1)", "d = Add(x, m1)")) == 0
    assert _wrong(lambda text: text.replace("ReduceSum(xx, last", "ReduceMax(xx, last")) == 0


def test_a_factor_for_each_row_stays_outside() -> None:
    import onnx

    model = onnx.shape_inference.infer_shapes(
        _model(TENSORFLOW.replace("u = Sub(b, t)", "u = Sub(per row, t)"))
    )
    assert not list(find_norms(program_of(model)))
    after = RMS.replace("y = Mul(g, n)", "z = Mul(g, n)\n y = Mul(z, per row)")
    model = onnx.shape_inference.infer_shapes(_model(after))
    (norm,) = find_norms(program_of(model))
    assert norm.output == "z"


JAX_SOFTMAX = """
    m = ReduceMax(x, last; keepdims=0)
    m1 = Reshape(m, rows)
    d = Sub(x, m1)
    e = Exp(d)
    s = ReduceSum(e, last; keepdims=0)
    s1 = Reshape(s, rows)
    y = Div(e, s1)
"""
SOFTMAXES = {
    "jax": (JAX_SOFTMAX, "softmax"),
    "reciprocal": (
        JAX_SOFTMAX.replace("y = Div(e, s1)", "i = Reciprocal(s1)\n y = Mul(i, e)"),
        "softmax",
    ),
    "plain": ("e = Exp(x)\n s = ReduceSum(e, middle)\n y = Div(e, s)", "softmax"),
    "logarithm": (
        JAX_SOFTMAX.replace("y = Div(e, s1)", "l = Log(s1)\n y = Sub(d, l)"),
        "log_softmax",
    ),
}


@pytest.mark.parametrize("name", SOFTMAXES)
def test_a_softmax_spelled_out_is_one_layer(name: str, tmp_path: Path) -> None:
    text, op = SOFTMAXES[name]
    checked = check(_model(text), tmp_path)
    assert [layer.op for layer in checked.conversion.graph.layers] == [op]
    assert checked.sqnr_db > 30


def test_a_sum_along_another_axis_is_no_softmax(tmp_path: Path) -> None:
    square = (2, 6, 6)
    text = "e = Exp(x)\n s = ReduceSum(e, last; keepdims=0)\n r = Reshape(s, across)\n y = Div(e, r)"
    nodes = _nodes(text)
    model = model_of(
        nodes, {"x": square}, {"y": square}, {"last": ints(-1), "across": ints(2, 1, 6)}, opset=18
    )
    ops = [layer.op for layer in check(model, tmp_path).conversion.graph.layers]
    assert "softmax" not in ops
