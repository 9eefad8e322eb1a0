"""What stays of the scales that a file prescribes, on small programs by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fadiff.converter.ir.program import Program
from fadiff.converter.ir.recurrence import State
from fadiff.converter.ir.scale import Prescribed, Scale
from fadiff.converter.plan.plan import plan
from fadiff.converter.quantise.prescribed import (
    inherited,
    kept_channels,
    kept_zeros,
    notes_of,
    unfit_clips,
)
from fadiff.converter.quantise.weights import quantise
from tests.converter.programs import program

CLIP = {"zero": np.float32(0), "six": np.float32(6)}


@pytest.mark.parametrize(
    ("body", "known", "wanted"),
    [
        ("a = MatMul (x, w) y = Relu (a)", {"a": 2.0}, {"y": 2.0}),  # the ReLU is the product's
        ("a = MatMul (x, w) y = Relu (a)", {"a": 2.0, "y": 1.0}, {}),
        ("a = MatMul (x, w) y = Transpose (a)", {"y": 2.0}, {"a": 2.0}),
        ("a = MatMul (x, w) y = Transpose (a)", {"y": 2.0, "a": 1.0}, {}),
        ("t = Transpose (x) y = MatMul (t, u)", {"t": 2.0}, {}),  # an input
        ("a = MatMul (x, w) t = Transpose (a) b = Sigmoid (a) y = MatMul (t, b)", {"t": 2.0}, {}),
        ("a = Sigmoid (x) b = Transpose (a) c = Clip (b, zero, six) y = Transpose (c)", {}, {}),
    ],
)
def test_what_follows_from_scales_of_a_file(
    body: str, known: dict[str, float], wanted: dict[str, float]
) -> None:
    net = program(body, u=np.ones((2, 4)), **CLIP)
    assert inherited(net, plan(net), known) == known | wanted


@pytest.mark.parametrize(("scale", "is_unfit"), [(5 / 127, False), (6 / 127, False), (6.1 / 127, True)])
def test_a_scale_that_goes_beyond_a_clip_leaves_it_a_table(scale: float, is_unfit: bool) -> None:
    net = program("a = MatMul (x, w) y = Clip (a, zero, six)", **CLIP)
    steps = plan(net)
    assert unfit_clips(steps, {"y": scale}) == ({"y"} if is_unfit else set())
    assert not unfit_clips(steps, {})


RELU = Scale(0.5, -128)
SHIFTED = Scale(0.5, 3)


def _kept(net: Program, given: dict[str, Scale], *, bordered: bool = False) -> dict[str, Scale]:
    return kept_zeros(net, plan(net), given, bordered=bordered)


@pytest.mark.parametrize(
    ("body", "given", "kept"),
    [
        ("a = MatMul (x, w) y = MatMul (a, v)", {"a": SHIFTED, "x": SHIFTED, "y": SHIFTED}, "axy"),
        ("a = MatMul (x, w) r = Relu (a) y = MatMul (r, v)", {"r": RELU}, "r"),
        ("a = MatMul (x, w) r = Relu (a) y = MatMul (r, v)", {"r": SHIFTED}, ""),  # it would pass below zero
        ("a = MatMul (x, w) r = Clip (a, zero, six) y = MatMul (r, v)", {"r": Scale(6 / 255, -128)}, "r"),
        ("a = MatMul (x, w) r = Clip (a, zero, six) y = MatMul (r, v)", {"r": Scale(6.1 / 255, -128)}, ""),
        ("a = MatMul (x, w) b = Sigmoid (a) y = MatMul (b, v)", {"a": SHIFTED, "b": SHIFTED}, "ab"),
        ("a = MatMul (x, w) b = MatMul (a, v) y = Add (a, b)", {"a": SHIFTED, "b": SHIFTED}, ""),
        ("a = MatMul (x, w) t = Transpose (a) y = MatMul (t, u)", {"a": SHIFTED, "t": SHIFTED}, "at"),
        ("a = MatMul (x, w) t = Transpose (a) y = MatMul (t, u)", {"a": SHIFTED, "t": RELU}, ""),
        ("a = MatMul (x, w) t = Transpose (a) y = MatMul (t, u)", {"t": SHIFTED}, ""),
        ("y = MatMul (x, x2)", {"x": SHIFTED}, ""),
    ],
)
def test_zero_points_that_the_array_can_have(body: str, given: dict[str, Scale], kept: str) -> None:
    net = program(body, "float[2,4] x, float[4,4] x2", u=np.ones((2, 4)), **CLIP)
    found = _kept(net, given)
    assert "".join(sorted(found)) == kept
    assert found == {name: given[name] for name in kept}


def test_zero_points_of_states_and_of_what_other_programs_have_go() -> None:
    net = program("y = MatMul (x, w)")
    assert set(_kept(net, {"x": SHIFTED, "y": SHIFTED})) == {"x", "y"}
    assert not _kept(replace(net, states=(State("y", "x"),)), {"x": SHIFTED, "y": SHIFTED})
    assert set(_kept(replace(net, common_scales={"x": 1.0}), {"x": SHIFTED, "y": SHIFTED})) == {"y"}
    assert set(_kept(replace(net, float_inputs=frozenset("x")), {"x": SHIFTED, "y": SHIFTED})) == {"y"}


@pytest.mark.parametrize(
    ("attributes", "kernel", "plain", "bordered"),
    [("", [3, 3], True, True), ("<pads = [1, 1, 1, 1]>", [3, 3], False, True)],
)
def test_zero_points_meet_padding_only_in_a_border(
    attributes: str, kernel: list[int], plain: bool, bordered: bool
) -> None:
    size = 4 if attributes else 2
    shapes = "float[1,1,4,4] x", f"float[1,1,{size},{size}] y"
    net = program(f"y = Conv {attributes} (x, k)", *shapes, k=np.ones((1, 1, *kernel)))
    assert bool(_kept(net, {"x": SHIFTED})) == plain
    assert bool(_kept(net, {"x": SHIFTED}, bordered=True)) == bordered


FOUR = np.float32([0.5, 0.25, 1, 2])


@pytest.mark.parametrize(
    ("body", "scales", "is_kept"),
    [
        ("y = MatMul (x, w)", FOUR.reshape(1, 4), True),
        ("y = MatMul (x, w)", FOUR.reshape(4, 1), False),  # of the inputs
        ("y = Gemm <transB = 1> (x, w)", FOUR.reshape(4, 1), True),
        ("y = Gemm (x, w, c)", FOUR.reshape(1, 4), True),
        ("y = Gemm (x, w, one)", FOUR.reshape(1, 4), False),  # a bias for each channel
        ("y = MatMul (x, w)", FOUR.reshape(1, 4) - 0.25, False),  # a scale of zero
        ("y = MatMul (x, w)", FOUR.reshape(1, 4) / 100, False),  # 64 / 0.0025 is no int8
        ("y = MatMul (x, w)", np.float32([[0.5]]), False),
        ("y = MatMul (w, x2)", FOUR.reshape(1, 4), False),
        ("a = MatMul (x, w) b = MatMul (x, w) y = Mul (a, b)", FOUR.reshape(1, 4), True),
        ("a = MatMul (x, w) y = Add (w, a)", FOUR.reshape(1, 4), False),  # another reader
    ],
)
def test_scales_of_output_channels_that_products_can_have(
    body: str, scales: np.ndarray, is_kept: bool
) -> None:
    given = {"w": np.diag([32.0, 16, 64, 64]), "c": [1.0, 2, 3, 4], "one": [1.0]}
    net = program(body, "float[4,4] x, float[4,4] x2", "float[4,4] y", **given)
    found = kept_channels(net, plan(net), {"w": scales})
    assert set(found) == ({"w"} if is_kept else set())


def test_notes_say_what_became_of_it() -> None:
    net = program("a = MatMul (x, w) y = MatMul (a, v)", w=np.diag([1.0, 0.01, 0.5, 0.3]))
    given = Prescribed(
        {"a": 0.02, "x": 0.03}, {"a": Scale(0.01, 3), "x": Scale(0.02, 5)}, {"w": FOUR.reshape(1, 4) / 1000}
    )
    stored = ["x", "a", "y"]
    assert notes_of(net, stored, given, given)[:1] == ["2 zero points of the file are kept"]
    assert "1 weights have a scale for each channel (first: w)" in notes_of(net, stored, given, given)[1]
    assert len(notes_of(net, stored, given, given)) == 2
    zeros, channels = notes_of(net, stored, given, replace(given, zeros={}, channels={}))
    assert zeros.startswith("2 activations had zero points") and "(first: x)" in zeros
    assert "a step is up to 2.00 of the file's" in zeros
    # One step of 1 / 127 for all; 0.01, 0.5 and 0.3 are 1.27, 63.5 and 38.1 steps of it.
    noise = sum((value * 127 - steps) ** 2 for value, steps in ((0.01, 1), (0.5, 64), (0.3, 38)))
    decibels = 10 * np.log10((1 + 0.01**2 + 0.5**2 + 0.3**2) * 127**2 / noise)
    assert f"w, off by at most {1000 / 127 / 0.25 / 2:.1f} steps of its finest channel" in channels
    assert f"SQNR {decibels:.1f} dB" in channels
    assert not notes_of(net, stored, Prescribed(), Prescribed())


@pytest.mark.parametrize(("bias", "fits"), [(0.9, True), (1.1, False)])
def test_scales_of_channels_go_where_a_bias_would_not_fit(bias: float, fits: bool) -> None:
    """Beyond 2**30 units of the sums."""
    net = program("y = Gemm (x, w, c)", w=np.eye(4) * 2.0**-10, c=[bias, 0, 0, 0])
    channels = {"w": np.full((1, 4), 2.0**-10, np.float32)}
    found = quantise(net, plan(net), {"y": (-1, 1)}, Prescribed({"x": 2.0**-20}, {}, channels))
    assert (found.weights["w"].step.ndim > 0) == fits
