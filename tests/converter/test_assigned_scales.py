"""Scales and integers of small programs, against the rules applied by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from fadiff.converter.ir.program import Program
from fadiff.converter.ir.recurrence import State
from fadiff.converter.ir.scale import Prescribed
from fadiff.converter.plan.plan import plan
from fadiff.converter.quantise.scales import (
    _Groups,
    assign_scales,
    parts_along,
    saturates_at,
    unknown_scales,
    way_out,
)
from fadiff.converter.quantise.weights import Quantisation, quantise, to_int8
from fadiff.converter.quantise.zeros import scale_of_all
from tests.converter.programs import program


def _scales(net: Program, known: Mapping[str, float] | None = None, **largest: float) -> dict[str, float]:
    """In steps of 1 / 127: what 127 stands for."""
    steps = plan(net)
    ranges = {name: (-size, size / 2) for name, size in largest.items()}
    found = assign_scales(net, steps, ranges, {n: s / 127 for n, s in (known or {}).items()})
    return {name: round(127 * scale, 4) for name, scale in found.items()}


SUM = "a = MatMul (x, w) b = MatMul (x, v) y = Add (a, b)"
SUM_READ_TWICE = f"{SUM} z = Relu (b) u = Relu (a)"
READ_TWICE = "float[2,4] y, float[2,4] z, float[2,4] u"


@pytest.mark.parametrize(
    ("body", "gives", "a", "b", "wanted"),
    [
        (SUM, "float[2,4] y", 1, 2, (2, 2)),
        (SUM, "float[2,4] y", 50, 2, (50, 50)),  # the sum alone reads it: it would be rounded there anyway
        (SUM, "float[2,4] y", 2, 50, (50, 50)),
        (SUM_READ_TWICE, READ_TWICE, 1, 2, (2, 2)),
        (SUM_READ_TWICE, READ_TWICE, 1, 2.01, (1, 2.01)),  # others would lose more than one bit
        (SUM_READ_TWICE, READ_TWICE, 2.01, 1, (2.01, 1)),
        (SUM_READ_TWICE, READ_TWICE, 0, 2, (2, 2)),  # zeros fit any scale
    ],
)
def test_operands_of_a_sum(body: str, gives: str, a: float, b: float, wanted: tuple[float, float]) -> None:
    found = _scales(program(body, gives=gives), a=a, b=b, x=3, y=7)
    assert (found["a"], found["b"], found["x"], found["y"]) == (*wanted, 3, 7)


def test_operands_of_a_sum_whose_scales_are_prescribed() -> None:
    found = _scales(program(SUM), {"a": 1.0}, a=9, b=2, x=3, y=7)
    assert (found["a"], found["b"]) == (1, 2)


JOIN = "a = MatMul (x, w) b = MatMul (x, v) k = Concat <axis = 0> (a, b) y = MatMul (k, v)"
JOIN_READ_TWICE = f"{JOIN} z = Relu (a)"


@pytest.mark.parametrize(
    ("body", "gives", "a", "b", "k", "wanted"),
    [
        (JOIN, "float[4,4] y", 3, 2, 3, (3, 3, 3)),
        (JOIN, "float[4,4] y", 3, 0.1, 3, (3, 3, 3)),  # read there alone
        (JOIN, "float[4,4] y", 7, 3, 3, (7, 3, 3)),  # coarser by more: it is rescaled
        (JOIN, "float[4,4] y", 6, 3, 3, (6, 6, 6)),
        (JOIN_READ_TWICE, "float[4,4] y, float[2,4] z", 1, 2, 2, (2, 2, 2)),
        (JOIN_READ_TWICE, "float[4,4] y, float[2,4] z", 0.99, 2, 2, (0.99, 2, 2)),
    ],
)
def test_operands_of_a_join(
    body: str, gives: str, a: float, b: float, k: float, wanted: tuple[float, float, float]
) -> None:
    found = _scales(program(body, gives=gives), a=a, b=b, k=k, x=3, y=7)
    assert (found["a"], found["b"], found["k"]) == wanted


@pytest.mark.parametrize(("b", "wanted"), [(1.5, (3, 3, 3)), (1.4, (3, 1.4, 3))])
def test_parts_of_an_output_keep_their_scales_unless_they_are_alike(
    b: float, wanted: tuple[float, float, float]
) -> None:
    net = program("a = MatMul (x, w) b = MatMul (x, v) y = Concat <axis = 0> (a, b)", gives="float[4,4] y")
    found = _scales(net, a=3, b=b, y=3, x=1)
    assert (found["a"], found["b"], found["y"]) == wanted


def test_what_is_moved_has_the_scale_of_what_it_was() -> None:
    body = "a = MatMul (x, w) t = Transpose (a) r = Reshape (t, s) b = MatMul (r, v) y = Add (b, r)"
    found = _scales(program(body, gives="float[2,4] y", s=np.array([2, 4])), a=1, b=1.5, x=3, y=7)
    assert (found["a"], found["t"], found["r"], found["b"]) == (1.5, 1.5, 1.5, 1.5)


def test_multiples_and_rows_of_tables_have_scales_that_follow() -> None:
    body = "a = MatMul (x, w) m = Mul (a, third) e = Gather (t, i) s = Add (m, e) y = MatMul (s, v)"
    table = np.array([[1, -3, 2, 0]] * 5, np.float32)
    net = program(body, "float[2,4] x, int64[2] i", t=table, third=0.3)
    found = _scales(net, a=10, x=1, s=4, y=5)
    assert (found["a"], found["m"], found["e"], found["s"]) == (10, 3, 3, 4)
    assert unknown_scales(net, plan(net), {"a": 1.0}) == ("x", "s", "y")
    assert _scales(net, {"t": 9}, a=10, x=1, s=4, y=5)["e"] == 9


def test_saturation_that_stands_for_a_clip_bounds_what_is_shared() -> None:
    """min(y, 6) by int8 that ends at 6: a scale for 9 would let 7 pass."""
    body = "a = MatMul (x, w) c = Clip (a, zero, six) b = MatMul (x, v) y = Add (c, b)"
    net = program(body, zero=np.float32(0), six=np.float32(6))
    assert [step.ceiling for step in plan(net) if step.output == "c"] == [6.0]
    for b, wanted in ((4, (5, 5)), (6.02, (6.02, 6.02)), (6.1, (5, 6.1))):
        found = _scales(net, c=5, b=b, x=1, y=9)
        assert (found["c"], found["b"]) == wanted
    assert saturates_at(6.0, 6 / 127) and saturates_at(6.0, 6.02 / 127)
    assert not saturates_at(6.0, 6.03 / 127)


@pytest.mark.parametrize(("came", "left", "wanted"), [(1, 5, (5, 5)), (5, 1, (5, 5)), (3, 3, (3, 3))])
def test_ends_of_a_state_share_the_larger_scale(
    came: float, left: float, wanted: tuple[float, float]
) -> None:
    body = "a = MatMul (h, w) y = Tanh (a) n = MatMul (x, v)"
    net = program(body, "float[2,4] x, float[2,4] h", "float[2,4] y, float[2,4] n")
    net = replace(net, states=(State("n", "h"),))
    found = _scales(net, h=came, n=left, x=1, y=1, a=1)
    assert (found["h"], found["n"]) == wanted


def test_where_the_file_prescribes_a_state_its_input_is_wide_enough() -> None:
    body = "a = MatMul (h, w) y = Tanh (a) n = MatMul (x, v)"
    net = program(body, "float[2,4] x, float[2,4] h", "float[2,4] y, float[2,4] n")
    net = replace(net, states=(State("n", "h"),))
    for prescribed, wanted in ((5, (5, 5)), (0.5, (1, 0.5))):
        found = _scales(net, {"n": prescribed}, h=1, x=1, y=1, a=1)
        assert (found["h"], found["n"]) == wanted
    found = _scales(net, {"h": 1}, n=4, x=1, y=1, a=1)
    assert (found["h"], found["n"]) == (1, 4)


def test_scales_of_other_programs_hold_unless_the_file_prescribes_one() -> None:
    net = replace(program(SUM), common_scales={"b": 3 / 127, "a": 2 / 127, "x": 9 / 127})
    found = _scales(net, {"x": 1}, a=1, b=1, y=7)
    assert (found["a"], found["b"], found["x"], found["y"]) == (3, 3, 1, 7)


@pytest.mark.parametrize(
    ("inner", "axis", "outer", "along", "wanted"),
    [
        ((2, 3, 4), 1, (2, 12), 1, (4, 1)),
        ((2, 3, 4), 2, (2, 12), 1, (1, 3)),
        ((2, 3, 4), 0, (2, 12), 0, (1, 1)),
        ((2, 12), 1, (2, 3, 4), 1, None),
        ((2, 3, 4), 1, (6, 4), 0, (1, 2)),
        ((2, 3, 4), 2, (6, 4), 0, None),
    ],
)
def test_where_indices_of_an_axis_lie_under_another_shape(
    inner: tuple[int, ...], axis: int, outer: tuple[int, ...], along: int, wanted: tuple[int, int] | None
) -> None:
    """By writing down the indices."""
    assert parts_along(inner, axis, outer, along) == wanted
    places = np.arange(inner[axis]).reshape([-1 if i == axis else 1 for i in range(len(inner))])
    lies = np.moveaxis(np.broadcast_to(places, inner).reshape(outer), along, -1).reshape(-1, outer[along])
    if wanted is None:
        assert len(np.unique(lies, axis=0)) > 1
    else:
        each, times = wanted
        np.testing.assert_array_equal(lies, [np.tile(np.repeat(range(inner[axis]), each), times)] * len(lies))


@pytest.mark.parametrize(
    ("states", "outputs", "wanted"),
    [
        ((), ("y",), ("k", "r", "y")),
        ((State("other", "x"),), ("y",), ("k", "r", "y")),
        ((State("other", "x"), State("y", "x")), ("y",), ()),
        ((), ("y", "y"), ()),
        ((), ("y", "r"), ()),
        ((), ("r",), ()),
        ((), ("z",), ()),
    ],
)
def test_where_a_join_is_an_output_and_nothing_else(
    states: tuple[State, ...], outputs: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    """Not a state, nor an output twice, nor with other readers, nor with others than moves behind it."""
    last = " z = Relu (y)" if "z" in outputs else ""
    net = program(
        f"k = Concat <axis = 1> (x, x) r = Reshape (k, flat) y = Identity (r){last}",
        gives="float[16] z" if last else "float[16] y",
        flat=[16],
    )
    assert way_out(replace(net, states=states, outputs=outputs), "k") == wanted


def _quantised(net: Program, **largest: float) -> Quantisation:
    steps = plan(net)
    ranges = {name: (-size, size) for name, size in largest.items()}
    return quantise(net, steps, ranges)


def test_a_bias_is_in_units_of_the_sums() -> None:
    net = program("y = Gemm <alpha = 0.5, beta = 2.0> (x, w, c)", c=[1.0, -2.0, 0.25, 0.0])
    found = _quantised(net, x=1.27, y=1)
    step = found.weights["w"].step
    assert step == np.float32(1 / 127)
    unit = 0.01 * (1 / 127) * 0.5
    np.testing.assert_allclose(found.biases["y"].step, unit, rtol=1e-6)
    wanted = np.rint(np.array([2, -4, 0.5, 0]) / unit)
    np.testing.assert_allclose(found.biases["y"].data, wanted, atol=1)


def test_a_factor_of_a_bias_is_not_that_of_what_is_added_behind() -> None:
    net = program("a = Gemm <beta = 2.0> (x, w) y = Add (a, c)", c=[1.0, -2.0, 0.25, 0.0])
    found = _quantised(net, x=1.27, y=1).biases["a"]
    np.testing.assert_allclose(found.data * found.step, [1, -2, 0.25, 0], atol=1e-4)


def test_a_files_scales_may_multiply_to_zero() -> None:
    net = program("y = Gemm (x, w, c)", c=[0.0, 0.0, 0.0, 0.0])
    tiny = {"x": 1e-30, "w": 1e-30}
    found = quantise(net, plan(net), {"y": (-1, 1)}, Prescribed(tiny)).biases["y"]
    assert np.all(found.step > 0) and found.data.tolist() == [0] * 4


def test_a_bias_that_sums_cannot_hold_makes_weights_coarser() -> None:
    net = program("y = Gemm (x, w, c)", c=[1e9, 0.0, 0.0, 0.0])
    found = _quantised(net, x=1.27, y=1)
    assert found.weights["w"].scale == pytest.approx(1e9 / 0.01 / 2**30)
    assert found.biases["y"].data.tolist() == pytest.approx([2**30, 0, 0, 0])
    small = program("y = Gemm (x, w, c)", c=[1.0, 0.0, 0.0, 0.0])
    assert _quantised(small, x=1.27, y=1).weights["w"].scale == np.float32(1 / 127)


def test_biases_of_a_file_saturate_at_32_bits() -> None:
    net = program("y = Gemm (x, w, c)", c=[9.0, -9.0, 1.0, 0.0])
    given = Prescribed({"x": 2.0**-20, "w": 2.0**-10})
    found = quantise(net, plan(net), {"y": (-1, 1)}, given)
    assert found.biases["y"].data.tolist() == [2**31 - 1, 1 - 2**31, 2**30, 0]
    assert found.weights["w"].data.max() == 127 and found.weights["w"].scale == 2.0**-10


def test_weights_of_zeros_leave_the_bias_its_precision() -> None:
    net = program("y = Gemm (x, w, c)", w=np.zeros((4, 4)), c=[1.0, 0.5, 0.0, 0.0])
    found = _quantised(net, x=1.27, y=1)
    assert found.biases["y"].data.tolist() == pytest.approx([2**24, 2**23, 0, 0])


def test_integers_are_rounded_to_even_and_clipped() -> None:
    array = np.array([[0.5, 1.5], [-2.5, 200], [-300, 127.4]], np.float32)
    assert to_int8(array, 1.0).tolist() == [[0, 2], [-2, 127], [-127, 127]]
    assert to_int8(array, 1.0, -128).tolist() == [[0, 2], [-2, 127], [-128, 127]]
    assert to_int8(np.float32(5), 2.0) == 2
    wide = np.arange(3 * 2**20, dtype=np.float32).reshape(3, -1) % 100  # a block of rows at a time
    np.testing.assert_array_equal(to_int8(wide, 1.0), wide)


@pytest.mark.parametrize(
    ("low", "high", "rectified", "wanted"),
    [
        (0, 2.55, False, (0.01, -128)),
        (-2.55, 0, False, (0.01, 127)),
        (-2.55, 0, True, None),
        (-1, 1.55, False, (0.01, -28)),
        (-1, 2.55, True, (0.01, -128)),
        (1, 2.55, False, (0.01, -128)),
        (0, 0, False, None),
    ],
)
def test_a_zero_point_spreads_a_range_over_all_integers(
    low: float, high: float, rectified: bool, wanted: tuple[float, int] | None
) -> None:
    found = scale_of_all(low, high, rectified=rectified)
    if wanted is None:
        assert found is None
    else:
        assert found is not None
        assert (round(found.step, 6), found.zero) == wanted


@pytest.mark.parametrize(("larger", "wanted"), [(2.0, 2.0), (2.1, 1.0)])
def test_a_scale_at_which_saturation_still_stands_for_a_clip_is_shared(larger: float, wanted: float) -> None:
    groups = _Groups({"a": 1.0, "b": larger, "c": 1.5}, {}, {"a": 2.0})
    groups.join("a", "b")
    assert groups.scale("a") == wanted and groups.scale("b") == larger
    groups = _Groups({"a": 1.0}, {}, {"a": 2.0})
    groups.prescribe("a", larger)
    assert groups.scale("a") == wanted


def test_a_group_has_the_least_of_its_ceilings_and_the_scale_of_whom_it_follows() -> None:
    groups = _Groups({"a": 1.0, "b": 1.5, "c": 3.0}, {}, {"a": 4.0, "b": 2.0})
    groups.follow("b", "a")
    assert groups.scale("b") == 1.0 and groups.members("a") == groups.members("b") == {"a", "b"}
    groups.join("c", "a")
    assert groups.scale("a") == 1.0 and groups.members("c") == {"c"}
    fixed = _Groups({"a": 1.0, "b": 2.0}, {"a": 1.0}, {})
    fixed.join("a", "b")
    fixed.prescribe("a", 5.0)
    assert (fixed.scale("a"), fixed.scale("b")) == (1.0, 2.0)


def test_sums_of_tiny_weights_have_a_unit_that_float32_holds() -> None:
    net = program("y = MatMul (x, w)", w=np.eye(4, dtype=np.float32) * np.float32(1e-35))
    found = _quantised(net, x=1.0, y=1.0)
    assert found.weights["w"].scale == pytest.approx(2.0**-120 * 127, rel=1e-6)
    given = quantise(net, plan(net), {"x": (-1, 1), "y": (-1, 1)}, Prescribed({"w": 1e-37}))
    assert given.weights["w"].scale == pytest.approx(1e-37, rel=1e-6)  # a file's stays
