"""What quantisations are judged and changed by, on small programs by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fadiff.converter.ir.program import program_of
from fadiff.converter.plan.plan import plan
from fadiff.converter.quantise.bias_correction import biased_products
from fadiff.converter.quantise.doubts import doubts
from fadiff.converter.quantise.ranges import Observed, _chunks, channel_maxima, ranges
from fadiff.converter.quantise.seen import NO_FOLD, Wanted, look
from fadiff.converter.quantise.simulate import decibels, deciding_values, score
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
    runs = [{"y": np.full((2, 4), 1.1, np.float32), "z": np.full((2, 4), 0.99, np.float32)}]
    exact = {"y": [np.ones((2, 4), np.float32)], "z": [np.ones((2, 4), np.float32)]}
    assert score(exact, runs) == pytest.approx(-10 * np.log10((0.01 + 0.0001) / 2), rel=1e-4)
    assert score({}, []) == 0


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


def test_channels_are_observed_by_the_second_axis() -> None:
    net = model("a = Relu (x) y = Neg (a)", "float[1,2,3] x", "float[1,2,3] y")
    samples = [{"x": np.float32([[[1, -5, 2], [0, 3, -9]]])}, {"x": np.float32([[[4, 0, 0], [1, 1, 1]]])}]
    found = channel_maxima("m", program_of(net), samples, ["a", "x"])
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


def test_what_is_seen_of_values() -> None:
    """Values of one role as one; means, vectors and exact outputs sample by sample, each with its fold."""
    net = model("a = MatMul (x, w) y = Add (a, c)", c=[1.0, 2, 3, 4])
    program = program_of(net)
    (product,) = biased_products(program, plan(program))
    samples = [{"x": np.float32([[i, 0, 2, 0], [i, 0, 0, 0]])} for i in (3, 5, -7)]
    wanted = Wanted(["x", "y"], [product], ["y"], ["x"])
    seen = look("m", program, samples, wanted, [0, 1, NO_FOLD])
    ranges = {name: (found.low, found.high) for name, found in seen.observed.items()}
    assert ranges == {"x": (-7, 5), "y": (-6, 6)}
    assert seen.means["y"].tolist() == [[4, 2, 4, 4], [6, 2, 4, 4]]
    assert [array.tolist() for array in seen.exact["y"]] == [
        [[i + 1, 2, 5, 4], [i + 1, 2, 3, 4]] for i in (3, 5)
    ]
    vectors = seen.vectors["x"]
    assert vectors.largest.tolist() == [3, 5] and vectors.energy.tolist() == [9 + 2, 25 + 2]
    assert vectors.used.tolist() == [[1, 0, 0.5, 0]] * 2
    others, own = seen.without(0), seen.of(0)
    assert {n: (o.low, o.high) for n, o in others.observed.items()} == {"x": (0, 5), "y": (2, 6)}
    assert {n: (o.low, o.high) for n, o in own.observed.items()} == {"x": (0, 3), "y": (2, 5)}
    assert others.means["y"].tolist() == [[6, 2, 4, 4]] and own.means["y"].tolist() == [[4, 2, 4, 4]]
    assert others.vectors["x"].largest.tolist() == [5] and own.vectors["x"].largest.tolist() == [3]
    assert len(own.exact["y"]) == len(others.exact["y"]) == 1
    everything = look("m", program, samples, Wanted(["x"]))
    assert (everything.observed["x"].low, everything.observed["x"].high) == (-7, 5)


def _said(samples: list[np.ndarray], body: str = "y = MatMul (x, w)", **more: object) -> str:
    net = model(body)
    spans = {"x": more["span"]} if "span" in more else {}
    given = [{"x": np.asarray(x, np.float32)} for x in samples]
    return " / ".join(doubts("m", program_of(net), given, spans))  # type: ignore[arg-type]


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
        lines = list(doubts("m", program_of(net), samples, {}))
        assert [("times its biases" in line) for line in lines] == ([True] if said else [])
    net = model("a = MatMul (x, w) y = Relu (a)")
    assert not list(doubts("m", program_of(net), samples, {}))
