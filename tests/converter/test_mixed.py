"""Which layers belong to a value that is held in float, and what they cost, by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fadiff.converter.ir.program import Program
from fadiff.converter.plan.plan import plan
from fadiff.converter.quantise.mixed import Mixed, MixedSearch
from tests.converter.programs import program


def _search(net: Program, wide: bool = False) -> MixedSearch:
    steps = tuple(replace(step, is_wide=wide) for step in plan(net))
    calibration = SimpleNamespace(program=net, steps=steps)
    return MixedSearch(calibration, None, is_judged=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "value", "wanted"),
    [
        ("a = MatMul (x, w) y = MatMul (a, v)", "a", "ay"),
        ("a = MatMul (x, w) b = Tanh (a) y = MatMul (b, v)", "b", "y"),  # a table stays
        ("a = MatMul (x, w) b = Mul (a, x) y = MatMul (b, v)", "b", "by"),
        ("a = MatMul (x, w) b = MatMul (a, v) c = Mul (a, x) y = Add (b, c)", "a", "abc"),
        ("a = MatMul (x, w) t = Transpose (a) y = MatMul (t, u)", "a", "ay"),  # the move has no say
        ("a = MatMul (x, w) t = Transpose (a) s = Transpose (t) y = MatMul (s, v)", "a", "ay"),
        ("a = MatMul (x, w) t = Transpose (a) b = MatMul (t, u) y = Tanh (b)", "b", "b"),
    ],
)
def test_writer_and_readers_of_a_value(body: str, value: str, wanted: str) -> None:
    net = program(body, u=np.ones((2, 4)))
    assert "".join(sorted(_search(net)._around(value))) == wanted


@pytest.mark.parametrize(
    ("body", "plain", "wide"),
    [
        ("y = MatMul (x, u)", 12 * 4, 12 * (1 + 4 / 64)),  # 2 x 6 results of 4 products each
        ("y = Gemm <transB = 1> (x, q)", 12 * 4, 12 * (1 + 4 / 64)),
        ("y = Tanh (x)", 8, 8 * (1 + 1 / 64)),
    ],
)
def test_work_of_the_core(body: str, plain: float, wide: float) -> None:
    columns = 4 if "Tanh" in body else 6
    net = program(body, gives=f"float[2,{columns}] y", u=np.ones((4, 6)), q=np.ones((6, 4)))
    assert _search(net)._work({"y"}) == 1 + plain
    assert _search(net, wide=True)._work({"y"}) == 1 + wide


def test_work_of_a_convolution() -> None:
    net = program("y = Conv (x, k)", "float[1,3,6] x", "float[1,5,4] y", k=np.ones((5, 3, 3)))
    assert _search(net)._work({"y"}) == 1 + 20 * 9
    assert _search(net)._work(()) == 1


def test_gains_in_words() -> None:
    assert str(Mixed()) == "no layer in float32 on the core"
    found = str(Mixed(("a", "b"), 12.34, 20.0))
    assert found == "a, b in float32 on the core: 12.3 -> 20.0 dB on held-out samples"
