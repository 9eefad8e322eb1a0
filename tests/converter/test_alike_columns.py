"""Columns and channels that are made alike, on small programs by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from fadiff.converter.ir.program import program_of
from fadiff.converter.quantise.columns import _choice, balance_inputs
from fadiff.converter.quantise.equalise import _is_ceiling, equalise, find_pairs
from fadiff.converter.quantise.factors import by_inputs, largest_of_inputs, largest_of_outputs
from fadiff.converter.quantise.parted import _factor, enlarge_parts
from tests.converter.oracle import session, weights
from tests.converter.programs import model, program

PAIR = "a = Conv (x, w) r = Relu (a) y = Conv (r, v)"
IMAGES = ("float[1,1,4,4] x", "float[1,1,4,4] y")


def _channels(*largest: float, axis: int) -> np.ndarray:
    return np.float32(largest).reshape([-1 if i == axis else 1 for i in range(4)])


def test_channels_are_equalised_by_the_root_of_their_ratio() -> None:
    """To a power of two: weights of 16 and 1/16 both become 1; of 8 and 1, 2 (or 4) and 4 (or 2)."""
    first, second = (16.0, 1, 4, 0.25, 2), (0.0625, 1, 1, 4, 0)
    net = model(PAIR, *IMAGES, w=_channels(*first, axis=0), v=_channels(*second, axis=1))
    pairs = find_pairs("m", program_of(net), ())
    (pair,) = pairs
    assert pair.factor.tolist() == [16, 1, 2, 0.25, 1]
    changed, note, caps = equalise(program_of(net), pairs)
    assert "between 1 pairs" in note and not caps
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 1, 4, 4)).astype(np.float32)}
    for found, wanted in zip(session(changed).run(None, feeds), session(net).run(None, feeds), strict=True):
        np.testing.assert_array_equal(found, wanted)
    alike = model(PAIR, *IMAGES, w=_channels(2, 1, 1, 1, axis=0), v=_channels(1, 1, 1, 1, axis=1))
    assert not find_pairs("m", program_of(alike), ())  # 0.25 bits are not worth it


@pytest.mark.parametrize(
    ("body", "is_pair"),
    [
        ("a = Conv (x, w) r = Sigmoid (a) y = Conv (r, v)", False),
        ("a = Conv (x, w) r = Relu (a) b = Conv (r, v) y = Add (b, r)", False),
        ("a = Conv (x, w) r = MaxPool <kernel_shape = [2, 2]> (a) y = Conv (r, v)", True),
        ("a = Conv (x, w) r = LeakyRelu (a) y = Conv (r, v)", True),
    ],
)
def test_what_may_stand_between_channels_that_are_equalised(body: str, is_pair: bool) -> None:
    net = model(
        body, *IMAGES, w=_channels(16, 1, 4, axis=0), v=np.ones((3, 3, 1, 1)) * _channels(0.1, 1, 1, axis=1)
    )
    assert bool(find_pairs("m", program_of(net), ())) == is_pair


@pytest.mark.parametrize(
    ("low", "high", "is_one"),
    [
        (0, 6, True),
        (-1, 6, False),
        (1, 6, False),
        (0, 0, False),
        (-2, -1, False),
        (0, np.inf, False),
        (0, None, False),
        (None, 6, False),
        (None, None, False),
    ],
)
def test_a_clip_from_zero_to_a_bound_is_a_ceiling(
    low: float | None, high: float | None, is_one: bool
) -> None:
    bounds = {name: np.float32(at) for name, at in (("low", low), ("high", high)) if at is not None}
    inputs = ", ".join(name if name in bounds else "" for name in ("low", "high"))
    net = program(f"y = Clip (x, {inputs})", **bounds)
    assert _is_ceiling(net, net.nodes[0]) == is_one


@pytest.mark.parametrize(
    ("op", "attributes"), [("Conv", "<group = 2>"), ("Gemm", ""), ("Gemm", "<transB = 1>")]
)
def test_weights_by_channel(op: str, attributes: str) -> None:
    """Two groups of two channels; or rows and columns of a matrix."""
    if op == "Conv":
        weight = np.array(
            [[[1, -2], [0, 3]], [[4, 0], [-5, 1]]] * 2, np.float32
        )  # outputs 4, inputs of a group 2
        weight[2:] *= 10
        net = program(f"y = Conv {attributes} (x, w)", "float[1,4,6] x", "float[1,4,5] y", w=weight)
        inputs, outputs = [4, 5, 40, 50], [3, 5, 30, 50]
        multiplied = weight * np.repeat(np.float32([[1, 2], [3, 4]]), 2, 0)[:, :, None]
    else:
        weight = np.array([[1, -2], [0, 3], [4, 0]], np.float32)  # inputs 3, outputs 2
        inputs, outputs = [2, 3, 4], [4, 3]
        multiplied = weight * np.float32([[1], [2], [3]])
        if attributes:
            weight, multiplied = weight.T, multiplied.T
        net = program(f"y = Gemm {attributes} (x, w)", "float[2,3] x", "float[2,2] y", w=weight)
    (node,) = net.nodes
    assert largest_of_inputs(node, weight).tolist() == inputs
    assert largest_of_outputs(node, weight).tolist() == outputs
    factors = np.arange(1, len(inputs) + 1, dtype=np.float32)
    np.testing.assert_array_equal(by_inputs(node, weight, factors), multiplied)


@pytest.mark.parametrize(("small", "factor"), [(1.0, 1), (0.5, 2), (0.3, 2), (0.25, 4), (0.01, 64)])
def test_a_small_part_is_multiplied_in_the_weights_and_divided_behind(small: float, factor: float) -> None:
    body = "h = MatMul (x, w) p, q = Split <axis = 1> (h, sizes) a = Relu (p) b = Relu (q)"
    weight = np.ones((2, 6), np.float32) * np.float32([small] * 2 + [1] * 4)
    net = model(
        body, "float[1,2] x", "float[1,2] a, float[1,4] b", w=weight, sizes=np.array([2, 4], np.int64)
    )
    samples = [{"x": np.float32([[1, 2]])}]
    changed, done = enlarge_parts("m", program_of(net), samples)
    assert done == (("p",) if factor > 1 else ())
    tensors = {t.name: t for t in changed.graph.initializer}
    product = next(node for node in changed.graph.node if node.op_type == "MatMul")
    np.testing.assert_array_equal(
        onnx.numpy_helper.to_array(tensors[product.input[1]]), weight * np.float32([factor] * 2 + [1] * 4)
    )
    feeds = {"x": np.float32([[3, -1]])}
    for found, wanted in zip(session(changed).run(None, feeds), session(net).run(None, feeds), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


LOUD = np.float32([1, 30, 0.1, 1])
"""Of the columns of an input."""


@pytest.mark.parametrize("shift", [0.0, 5.0])
@pytest.mark.parametrize(
    "body",
    [
        "y = MatMul (x, w)",
        "a = MatMul (x, w) y = Add (a, c)",
        "a = MatMul (x, w) y = Add (c, a)",
        "y = Gemm (x, w)",
        "y = Gemm <beta = 3.0> (x, w)",
        "y = Gemm <alpha = 0.5, transB = 1> (x, w)",
        "y = Gemm <alpha = 0.5, beta = 2.0> (x, w, c)",
        "a = MatMul (x, w) b = MatMul (x, v) y = Add (a, b)",
        "p, q = Split <axis = 1> (x, sizes) y = MatMul (p, u)",
        "j = Concat <axis = 1> (x, x) y = MatMul (j, t)",
        "j = Concat <axis = 1> (c2, x) y = Gemm <alpha = 0.5, beta = 2.0> (j, t, c)",
    ],
)
def test_columns_that_are_made_alike_compute_the_same(body: str, shift: float) -> None:
    weight = np.arange(16, dtype=np.float32).reshape(4, 4) - 5
    net = model(
        body,
        w=weight,
        v=weight[::-1] + 1,
        u=weight[1:],
        t=np.concatenate([weight, weight[::-1]]),
        c=[1.0, -2, 3, 4],
        c2=weight[:2],
        sizes=np.array([3, 1], np.int64),
    )
    generator = np.random.default_rng(0)
    samples = [
        {"x": ((generator.uniform(-1, 1, (2, 4)) + shift) * LOUD).astype(np.float32)} for _ in range(40)
    ]
    changed, names = balance_inputs("m", program_of(net), samples)
    assert names == ("x",)
    x = {"x": samples[0]["x"]}
    for found, wanted in zip(session(changed).run(None, x), session(net).run(None, x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)
    factor = next(
        onnx.numpy_helper.to_array(t)
        for node in changed.graph.node
        if node.op_type == "Mul"
        for t in changed.graph.initializer
        if t.name == node.input[1]
    )
    np.testing.assert_allclose(factor.reshape(-1) * LOUD, 30, rtol=0.3)


@pytest.mark.parametrize(
    ("body", "spread", "middle", "is_changed"),
    [
        ("y = MatMul (x, w)", (1, 2, 2, 2.5), 0, False),  # less than three times, and in doubt
        ("y = MatMul (x, w)", (1, 1, 1, 1), 0.1, False),
        ("y = MatMul (x, w)", (1, 1, 1, 1), 0.5, True),  # a quarter of half the range off its middle
        ("y = Sigmoid (x)", (1, 30, 1, 1), 0, False),
        ("a = MatMul (x, w) y = Add (a, x)", (1, 30, 1, 1), 0, False),
    ],
)
def test_columns_that_are_left_as_they_are(
    body: str, spread: tuple[float, ...], middle: float, is_changed: bool
) -> None:
    net = model(body)
    grid = np.linspace(-1, 1, 101, dtype=np.float32)[:, None] * np.float32(spread) + np.float32(middle)
    samples = [{"x": np.stack([row, row])} for row in grid]
    changed, names = balance_inputs("m", program_of(net), samples)
    assert bool(names) == is_changed == (changed is not net and len(changed.graph.node) > len(net.graph.node))
    assert not balance_inputs("m", program_of(net), samples[:2])[1]


def _factors(changed: onnx.ModelProto, weight: np.ndarray, axis: int) -> list[float]:
    """By which rows or columns of the constant of this shape have grown."""
    arrays = [onnx.numpy_helper.to_array(t) for t in changed.graph.initializer]
    (now,) = (array for array in arrays if array.shape == weight.shape)
    return [float(f) for f in np.abs(now).max(axis) / np.abs(weight).max(axis)]


@pytest.mark.parametrize(
    ("small", "factors"), [(0.124, [8, 1]), (0.126, [1, 1]), (0.01, [64, 1]), (0.0, [1, 1])]
)
def test_small_columns_of_an_output_have_scales_of_their_own_from_a_factor_of_eight(
    small: float, factors: list[float]
) -> None:
    weight = np.float32([[small, 1]] * 3)
    net = model("y = MatMul (x, w)", "float[2,3] x", "float[2,2] y", w=weight)
    changed, done = enlarge_parts("m", program_of(net), [{"x": np.ones((2, 3), np.float32)}])
    assert done == (("y",) if factors[0] > 1 else ())
    if small:
        assert _factors(changed, weight, 0) == pytest.approx(factors)
    feeds = {"x": weights(5, 2, 3)}
    (found,), (wanted,) = (session(m).run(None, feeds) for m in (changed, net))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("body", "small", "factor"),
    [
        ("a = MatMul (x, p)", 0.45, 2),  # in the product's own weights
        ("a = MatMul (x, p)", 0.55, 1),
        ("h = MatMul (x, p) a = Tanh (h)", 0.12, 8),  # by a layer of its own
        ("h = MatMul (x, p) a = Tanh (h)", 0.13, 1),
    ],
)
def test_small_operands_of_a_join_are_multiplied_and_the_weights_behind_divided(
    body: str, small: float, factor: float
) -> None:
    own = small if "Tanh" not in body else np.arctanh(small)
    first, behind = np.eye(2, dtype=np.float32) * np.float32(own), np.ones((4, 3), np.float32)
    behind[:2] *= 64  # room to divide
    net = model(
        f"{body} b = MatMul (x, q) k = Concat <axis = 1> (a, b) y = MatMul (k, r)",
        "float[1,2] x",
        "float[1,3] y",
        p=first,
        q=np.eye(2, dtype=np.float32),
        r=behind,
    )
    changed, done = enlarge_parts("m", program_of(net), [{"x": np.ones((1, 2), np.float32)}])
    assert done == (("a",) if factor > 1 else ())
    now = _factors(changed, behind, 1)
    assert now == pytest.approx([1 / factor, 1 / factor, 1, 1])
    feeds = {"x": np.float32([[0.3, -0.7]])}
    (found,), (wanted,) = (session(m).run(None, feeds) for m in (changed, net))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("loud", [[1, 100, 1, 1], [1, 100]])
def test_three_samples_are_enough_to_balance_an_input(loud: list[float]) -> None:
    columns = len(loud)
    net = model("y = MatMul (x, u)", f"float[2,{columns}] x", u=np.ones((columns, 4)))
    samples = [{"x": weights(i, 2, columns) * np.float32(loud)} for i in range(3)]
    changed, names = balance_inputs("m", program_of(net), samples)
    assert names == ("x",)
    (found,), (wanted,) = (session(m).run(None, samples[0]) for m in (changed, net))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)
    assert balance_inputs("m", program_of(net), samples[:2])[1] == ()


@pytest.mark.parametrize(
    ("product", "given", "shapes"),
    [
        ("h = MatMul (x, p) a, b = Split <axis = 2> (h, sizes)", "1,3,2", ("1,3,2", "1,3,4")),
        ("h = Conv (x, p) a, b = Split <axis = 1> (h, sizes)", "1,2,5", ("1,2,5", "1,4,5")),
        ("h = Conv (x, p) a, b = Split <axis = 1> (h, sizes)", "1,2,3,4", ("1,2,3,4", "1,4,3,4")),
        ("h = MatMul (x, p) t = Transpose (h) a, b = Split <axis = 0> (t, sizes)", "3,2", ("2,3", "4,3")),
    ],
)
def test_parts_along_the_axis_of_the_products_columns(
    product: str, given: str, shapes: tuple[str, str]
) -> None:
    rank, small = given.count(",") + 1, np.float32([0.1] * 2 + [1] * 4)
    conv = "Conv" in product
    weight = np.ones((6, 2, *[1] * (rank - 2)) if conv else (2, 6), np.float32)
    weight *= small.reshape([-1, *[1] * (rank - 1)] if conv else [1, -1])
    gives = f"float[{shapes[0]}] y, float[{shapes[1]}] z"
    net = model(
        f"{product} y = Relu (a) z = Relu (b)", f"float[{given}] x", gives, p=weight, sizes=np.array([2, 4])
    )
    x = {"x": np.ones([int(n) for n in given.split(",")], np.float32)}
    changed, done = enlarge_parts("m", program_of(net), [x])
    assert done == ("a",)
    for found, wanted in zip(session(changed).run(None, x), session(net).run(None, x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    axes = tuple(i for i in range(weight.ndim) if i != (0 if conv else 1))
    assert _factors(changed, weight, axes) == pytest.approx([8, 8, 1, 1, 1, 1])  # type: ignore[arg-type]


_NOTHING = ([1], [0])
_SIGNS = np.tile([1.0, -1.0], 50)
"""100 numbers of deviation 1: columns are unlike where deviations differ by more than 3 (1 + 4 / 10)."""


@pytest.mark.parametrize(
    ("columns", "can_shift", "wanted"),
    [
        ([0 * _SIGNS + 3, 0 * _SIGNS + 5], True, _NOTHING),  # nothing ever moved
        ([_SIGNS, 4.1 * _SIGNS], True, _NOTHING),
        ([_SIGNS, 4.3 * _SIGNS], True, ([4.3, 1], [0, 0])),
        ([_SIGNS + 7, 4.3 * _SIGNS - 2], True, ([4.3, 1], [7, -2])),
        ([0.01 * _SIGNS + 7, 4.3 * _SIGNS], False, ([1], [0])),  # (around zero the first is the louder one)
        ([_SIGNS + 1, _SIGNS + 1], True, ([1], [1])),  # from 0 to 2
        ([_SIGNS, 1.6 * _SIGNS + 0.5], True, ([1], [0.5])),  # from -1.1 to 2.1: 1 is over a quarter of 3.2
        ([_SIGNS, 1.6 * _SIGNS + 0.3], True, _NOTHING),  # from -1.3 to 1.9: 0.6 is not
        ([_SIGNS + 1, _SIGNS + 1], False, _NOTHING),
        ([_SIGNS, 10 * _SIGNS, 0 * _SIGNS + 3], True, ([10, 1, 1], [0, 0, 0])),
        ([_SIGNS, 10 * _SIGNS, 0 * _SIGNS - 40], True, ([10, 1, 0.25], [0, 0, 0])),  # it may move as far
    ],
)
def test_what_columns_are_multiplied_by(
    columns: list[np.ndarray], can_shift: bool, wanted: tuple[list[float], list[float]]
) -> None:
    found = _choice(SimpleNamespace(can_shift=can_shift), np.stack(columns, 1))  # type: ignore[arg-type]
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-9)


@pytest.mark.parametrize(
    ("size", "weight", "wanted"),
    [(1, 1, 4), (1, 4, 4), (1, 8, 2), (1, 16, 1), (3, 1, 2), (0.9, 1, 8), (7.9, 1, 1), (0, 1, 1), (1, 0, 1)],
)
def test_what_is_small_grows_to_the_largest_value_and_weight(
    size: float, weight: float, wanted: float
) -> None:
    """Of 7.9 (so that 1 has room for 4) and 16."""
    found = _factor(np.array([size, 7.9]), np.array([weight, 16.0]), 7.9, 16.0)
    assert found.tolist() == [wanted, 1] and found.dtype == np.float32
