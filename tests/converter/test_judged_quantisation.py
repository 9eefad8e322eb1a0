"""What quantisations are judged and changed by, on small programs by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from fadiff.converter.ir.program import program_of
from fadiff.converter.ir.stored import StoredWeights
from fadiff.converter.plan.plan import plan
from fadiff.converter.quantise.bias_correction import biased_products
from fadiff.converter.quantise.columns import balance_inputs
from fadiff.converter.quantise.doubts import doubts
from fadiff.converter.quantise.equalise import equalise, find_pairs
from fadiff.converter.quantise.factors import by_inputs, largest_of_inputs, largest_of_outputs
from fadiff.converter.quantise.parted import enlarge_parts
from fadiff.converter.quantise.ranges import Observed, _chunks, channel_maxima, observe, ranges
from fadiff.converter.quantise.simulate import Judge, decibels, deciding_values
from tests.converter.oracle import session
from tests.converter.programs import model, program


def test_decibels_are_of_all_runs_and_bounded() -> None:
    exact = {
        "a": [np.array([3.0, 4]), np.array([0.0])],
        "b": [np.zeros(1), np.zeros(1)],
        "c": [np.ones(1)] * 2,
    }
    runs = [
        {"a": np.array([3.0, 4.3]), "b": np.zeros(1), "c": np.array([np.nan])},
        {"a": np.array([0.4]), "b": np.zeros(1), "c": np.ones(1)},
    ]
    found = decibels(exact, runs)
    assert found["a"] == pytest.approx(20.0)  # 25 over 0.09 + 0.16
    assert found["b"] == 60.0  # nothing is lost of nothing
    assert found["c"] == -60.0
    assert decibels({"a": [np.zeros(1)]}, [{"a": np.ones(1)}]) == {"a": 0.0}
    assert decibels({"a": [np.ones(1)]}, [{"a": np.full(1, 1e9)}]) == {"a": pytest.approx(-60.0)}


def test_a_judge_takes_the_mean_share_of_noise() -> None:
    """Of two outputs with 1 % and 0.01 % of noise."""
    net = model("y = MatMul (x, w) z = MatMul (x, v)", gives="float[2,4] y, float[2,4] z")
    program = program_of(net)
    runs = [{"y": np.full((2, 4), 1.1, np.float32), "z": np.full((2, 4), 0.99, np.float32)}]
    simulation = SimpleNamespace(program=program, steps=plan(program), run=lambda *_: runs)
    judge = Judge("m", net, simulation, [{"x": np.ones((2, 4), np.float32)}])  # type: ignore[arg-type]
    assert judge.score(None) == pytest.approx(-10 * np.log10((0.01 + 0.0001) / 2), rel=1e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("y = MatMul (x, w)", ("y",)),
        ("a = MatMul (x, w) y = Sigmoid (a)", ("a",)),
        ("a = MatMul (x, w) y = Softmax (a)", ("a",)),
        ("a = MatMul (x, w) t = Transpose (a) s = Softmax (t) y = Transpose (s)", ("a",)),
        ("a = MatMul (x, w) c = MatMul (x, v) b = Sigmoid (c) y = Add (a, b)", ("y",)),
    ],
)
def test_values_before_what_squashes_decide(body: str, wanted: tuple[str, ...]) -> None:
    net = program(body)
    assert deciding_values(net, plan(net)) == wanted


def test_products_with_a_bias_for_each_channel() -> None:
    body = """a = MatMul (x, w) b = Add (a, c) r = Relu (b) d = Gemm (r, v, c) e = MatMul (d, v)
        f = Add (e, one) y = Relu (f)"""
    net = program(body, c=[1.0, 2, 3, 4], one=np.ones(1))
    found = biased_products(net, plan(net))
    assert [(p.sums, p.axis, p.weight) for p in found] == [("b", 1, "w"), ("d", 1, "v")]
    sums = np.array([[1.0, -3, 0, 5], [3.0, 1, -1, -1]])
    np.testing.assert_array_equal(found[0].means(sums), [2, 0.5, 0, 2.5])
    np.testing.assert_array_equal(found[0].passing(sums), [1, 0.5, 0, 0.5])
    np.testing.assert_array_equal(found[1].means(sums), [2, -1, -0.5, 2])
    np.testing.assert_array_equal(found[1].passing(sums), [1, 1, 1, 1])


PAIR = "a = Conv (x, w) r = Relu (a) y = Conv (r, v)"
IMAGES = ("float[1,1,4,4] x", "float[1,1,4,4] y")


def _channels(*largest: float, axis: int) -> np.ndarray:
    return np.float32(largest).reshape([-1 if i == axis else 1 for i in range(4)])


def test_channels_are_equalised_by_the_root_of_their_ratio() -> None:
    """To a power of two: weights of 16 and 1/16 both become 1; of 8 and 1, 2 (or 4) and 4 (or 2)."""
    first, second = (16.0, 1, 4, 0.25, 2), (0.0625, 1, 1, 4, 0)
    net = model(PAIR, *IMAGES, w=_channels(*first, axis=0), v=_channels(*second, axis=1))
    pairs = find_pairs("m", net, program_of(net), ())
    (pair,) = pairs
    assert pair.factor.tolist() == [16, 1, 2, 0.25, 1]
    changed, note, caps = equalise(net, program_of(net), pairs)
    assert "between 1 pairs" in note and not caps
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 1, 4, 4)).astype(np.float32)}
    for found, wanted in zip(session(changed).run(None, feeds), session(net).run(None, feeds), strict=True):
        np.testing.assert_array_equal(found, wanted)
    alike = model(PAIR, *IMAGES, w=_channels(2, 1, 1, 1, axis=0), v=_channels(1, 1, 1, 1, axis=1))
    assert not find_pairs("m", alike, program_of(alike), ())  # 0.25 bits are not worth it


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
    assert bool(find_pairs("m", net, program_of(net), ())) == is_pair


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


def test_channels_are_observed_by_the_second_axis() -> None:
    net = model("a = Relu (x) y = Neg (a)", "float[1,2,3] x", "float[1,2,3] y")
    samples = [{"x": np.float32([[[1, -5, 2], [0, 3, -9]]])}, {"x": np.float32([[[4, 0, 0], [1, 1, 1]]])}]
    found = channel_maxima("m", net, samples, ["a", "x"])
    assert {name: array.tolist() for name, array in found.items()} == {"a": [4, 3], "x": [5, 9]}


def test_ranges_of_inputs_in_their_own_units_have_room_for_what_was_not_seen() -> None:
    """Of three numbers by sqrt(ln 10,000 / ln 3); of ten thousand by none."""
    net = program("c = Sub (x, mean) a = Div (c, tens) y = MatMul (a, w)", mean=[1.0, 2, 3, 4], tens=[10.0])
    steps = plan(net)
    (value,) = (step.output for step in steps if step.kind == "input")
    for count, room in ((3, 2.895), (100, 1.4142), (10_000, 1), (20_000, 1)):
        seen = Observed()
        seen.add(np.resize(np.float32([-2, 1, 4]), count))
        (low, high) = ranges(net, steps, {value: seen}, "min-max")[value]
        assert (low, high) == (pytest.approx(-2 * room, rel=1e-3), pytest.approx(4 * room, rel=1e-3))


def test_values_of_one_run_need_no_more_memory_than_there_is() -> None:
    body = "a = Relu (x) b = Neg (a) c = Neg (b) d = Shape (x) y = Neg (c)"
    size = 3 * 2**23  # 100 MB of float32: two fit
    net = model(body, f"float[{size}] x", f"float[{size}] y")
    assert _chunks(net, ["a", "b", "c", "d", "y"]) == [["a", "b"], ["c", "d", "y"]]


def test_values_of_one_role_are_observed_as_one() -> None:
    net = model("a = Relu (x) y = Neg (a)")
    samples = [{"x": np.full((2, 4), 3, np.float32)}]
    found = observe("m", net, StoredWeights(), samples, ["x", "a", "y"], {"y": "x"})
    assert (found["y"].low, found["y"].high) == (-3, 3) and found["x"] is found["y"]
    assert (found["a"].low, found["a"].high) == (3, 3)


@pytest.mark.parametrize(("small", "factor"), [(1.0, 1), (0.5, 2), (0.3, 2), (0.25, 4), (0.01, 64)])
def test_a_small_part_is_multiplied_in_the_weights_and_divided_behind(small: float, factor: float) -> None:
    body = "h = MatMul (x, w) p, q = Split <axis = 1> (h, sizes) a = Relu (p) b = Relu (q)"
    weight = np.ones((2, 6), np.float32) * np.float32([small] * 2 + [1] * 4)
    net = model(
        body, "float[1,2] x", "float[1,2] a, float[1,4] b", w=weight, sizes=np.array([2, 4], np.int64)
    )
    samples = [{"x": np.float32([[1, 2]])}]
    changed, done = enlarge_parts("m", net, program_of(net), samples)
    assert done == (("p",) if factor > 1 else ())
    weights = {t.name: t for t in changed.graph.initializer}
    product = next(node for node in changed.graph.node if node.op_type == "MatMul")
    np.testing.assert_array_equal(
        onnx.numpy_helper.to_array(weights[product.input[1]]), weight * np.float32([factor] * 2 + [1] * 4)
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
    ],
)
def test_columns_that_are_made_alike_compute_the_same(body: str, shift: float) -> None:
    weight = np.arange(16, dtype=np.float32).reshape(4, 4) - 5
    net = model(
        body, w=weight, v=weight[::-1] + 1, u=weight[1:], c=[1.0, -2, 3, 4], sizes=np.array([3, 1], np.int64)
    )
    generator = np.random.default_rng(0)
    samples = [
        {"x": ((generator.uniform(-1, 1, (2, 4)) + shift) * LOUD).astype(np.float32)} for _ in range(40)
    ]
    changed, names = balance_inputs("m", net, program_of(net), samples)
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
    changed, names = balance_inputs("m", net, program_of(net), samples)
    assert bool(names) == is_changed == (changed is not net and len(changed.graph.node) > len(net.graph.node))
    assert not balance_inputs("m", net, program_of(net), samples[:2])[1]


def _said(samples: list[np.ndarray], body: str = "y = MatMul (x, w)", **more: object) -> str:
    net = model(body)
    spans = {"x": more["span"]} if "span" in more else {}
    given = [{"x": np.asarray(x, np.float32)} for x in samples]
    return " / ".join(doubts("m", net, StoredWeights(), program_of(net), given, spans))  # type: ignore[arg-type]


def test_samples_that_are_not_typical() -> None:
    some = [np.float32(np.random.default_rng(i).uniform(-1, 1, (2, 4))) for i in range(8)]
    some[3][0, 0] = 1.0
    assert _said(some) == ""
    assert "there are 7 calibration samples" in _said(some[:7]) and "give 8 or more" in _said(some[:7])
    assert "there is 1 calibration sample:" in _said(some[:1])
    assert "all 8 calibration samples are equal" in _said(some[:1] * 8)
    assert "one number everywhere" in _said([np.full((2, 4), i) for i in range(8)])
    for factor, said in ((7.9, False), (8.2, True)):
        loud = [some[3] * factor, *(x for i, x in enumerate(some) if i != 3)]
        loud[1:] = [x / np.abs(x).max() for x in loud[1:]]
        assert ("calibration sample 0 alone sets the range of x" in _said(loud)) == said


@pytest.mark.parametrize(
    ("span", "said"), [((-8, 8), False), ((-8.2, 1), True), ((0, 0.126), False), ((0, 0.12), True)]
)
def test_samples_that_are_not_what_the_file_expects(span: tuple[float, float], said: bool) -> None:
    some = [np.float32(np.random.default_rng(i).uniform(-1, 1, (2, 4))) for i in range(8)]
    for x in some:
        x[0, 0] = 1.0
    assert ("expect" in _said(some, span=span)) == said


@pytest.mark.parametrize(
    "body", ["y = Gemm (x, w, c)", "a = MatMul (x, w) y = Add (a, c)", "a = MatMul (x, w) y = Add (c, a)"]
)
def test_sums_of_bytes_that_dwarf_their_biases(body: str) -> None:
    """64 times: of pixels that were 255 times smaller in training."""
    samples = [{"x": np.random.default_rng(i).integers(0, 256, (2, 4)).astype(np.float32)} for i in range(8)]
    spread = float(np.concatenate([sample["x"] for sample in samples]).std(0).mean())
    for bias, said in ((spread / 60, False), (spread / 70, True)):
        net = model(body, c=np.float32([bias, -bias, bias, -bias]))
        lines = list(doubts("m", net, StoredWeights(), program_of(net), samples, {}))
        assert [("times its biases" in line) for line in lines] == ([True] if said else [])
    net = model("a = MatMul (x, w) y = Relu (a)")
    assert not list(doubts("m", net, StoredWeights(), program_of(net), samples, {}))
