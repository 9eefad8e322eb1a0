"""Ranges and biases that calibration chooses: against numpy, and against samples that it never saw."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import helper

from fadiff.converter import Conversion, convert
from fadiff.converter.ir.program import program_of
from fadiff.converter.plan.plan import plan
from fadiff.converter.quantise.bias_correction import Product, biased_products, corrected_biases
from fadiff.converter.quantise.calibrate import CalibrationData
from fadiff.converter.quantise.choose import gains
from fadiff.converter.quantise.ranges import METHODS, Observed
from fadiff.converter.quantise.seen import NO_FOLD, Wanted, look
from fadiff.converter.quantise.simulate import Simulation, deciding_values, score
from fadiff.converter.rewrites import CHANNEL_SCALES, JUDGED
from tests.converter.oracle import compare, model_of, session, sqnr_db, weights

ALL = ("choose-ranges", "correct-biases", "round-weights", "shift-zeros")


def _observed(*arrays: np.ndarray) -> Observed:
    seen = Observed()
    for array in arrays:
        seen.add(array)
    return seen


def test_a_histogram_grows_with_its_values() -> None:
    arrays = [scale * weights(i, 100, 30) for i, scale in enumerate((0.01, 7.0, 0.3))]
    seen, everything = _observed(*arrays), np.abs(np.concatenate(arrays))
    assert seen.top == 32.0
    assert seen.largest == everything.max()
    counts, _ = np.histogram(everything, 16, (0, seen.top))
    np.testing.assert_array_equal(seen.counts.reshape(16, -1).sum(1), counts)


def test_histograms_are_joined_as_if_one_had_seen_everything() -> None:
    arrays = [scale * weights(i, 100, 30) for i, scale in enumerate((0.01, 7.0, 1e-6))]
    everything, joined = _observed(*arrays), Observed()
    for array in (np.zeros(3), *arrays):
        joined.join(_observed(array))
    np.testing.assert_array_equal(joined.counts, everything.counts)
    assert (joined.low, joined.high, joined.top) == (everything.low, everything.high, everything.top)


def test_folds_see_nothing_of_the_samples_that_are_kept_out(tmp_path: Path) -> None:
    """Sample i is (i, -i) and its product (i, -i), of fold i % 2; the last is tried on nothing."""
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"])]
    constants = {"w": np.eye(2, dtype=np.float32), "b": np.zeros(2, np.float32)}
    model = onnx.shape_inference.infer_shapes(model_of(nodes, {"x": (1, 2)}, {"y": None}, constants))
    program = program_of(model)
    samples = [{"x": np.array([[i, -i]], np.float32)} for i in (1, 2, 3, 4, 100)]
    wanted = Wanted(["x", "y"], biased_products(program, plan(program)), ["y"], ["x"])
    seen = look("", program, samples, wanted, [1, 0, 1, 0, NO_FOLD])
    assert (seen.observed["y"].low, seen.observed["y"].high) == (-100, 100)
    kept = seen.without(0)
    assert kept.observed["x"].largest == kept.observed["y"].largest == 3
    np.testing.assert_array_equal(kept.means["y"], [[1, -1], [3, -3]])
    np.testing.assert_array_equal(kept.vectors["x"].largest, [1, 3])
    np.testing.assert_array_equal(kept.vectors["x"].energy, [2, 18])
    assert [array.max() for array in seen.of(0).exact["y"]] == [2, 4]


def test_the_largest_of_all_has_a_place() -> None:
    counts = _observed(np.array([1.0, -1.0, 0.9999, 0.25])).counts
    assert counts[-1] == 3 and counts.sum() == 4


def test_a_relu_passes_what_is_positive() -> None:
    step = SimpleNamespace(activation="relu")
    product = Product(step, "sums", 1, "w")
    sums = np.array([[0.0, 2.0], [0.0, -4.0]])
    np.testing.assert_array_equal(product.passing(sums), [0.0, 0.5])
    np.testing.assert_array_equal(product.means(sums), [0.0, 1.0])


def test_data_is_what_is_given_or_lies_beside_the_model(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    np.savez(tmp_path / "net.calibration.npz", beside=np.ones(1))
    np.savez(tmp_path / "other.npz", other=np.ones(1))
    given = (None, tmp_path / "other.npz", [{"sample": np.ones(1)}], [])
    names = [CalibrationData(path, data).names for data in given]
    assert names == [{"beside"}, {"other"}, {"sample"}, set()]


def test_ranges_against_numpy() -> None:
    array = np.random.default_rng(0).standard_t(3, 60_000)
    seen = _observed(array)
    assert METHODS["min-max"](seen) == np.abs(array).max()

    def error(bound: float) -> float:
        step = bound / 127
        return float(np.mean((np.clip(np.rint(array / step), -127, 127) * step - array) ** 2))

    least = min(error(bound) for bound in np.linspace(0.02, 1, 300) * seen.largest)
    assert error(METHODS["least squares"](seen)) < 1.02 * least < 0.9 * error(seen.largest)
    uniform = _observed(np.linspace(-1, 1, 50_001))
    assert all(METHODS[name](uniform) > 0.97 for name in METHODS)


@pytest.mark.parametrize(("op", "function"), [("Tanh", np.tanh), ("Sigmoid", lambda x: 1 / (1 + np.exp(-x)))])
@pytest.mark.parametrize("others", [False, True])
def test_what_a_squashing_function_alone_reads_saturates_where_that_is_flat(
    op: str, function: Callable[[np.ndarray], np.ndarray], others: bool, tmp_path: Path
) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node(op, ["h"], ["y"])]
    nodes += [helper.make_node("Mul", ["h", "h"], ["z"])] if others else []
    outputs = {"y": None, "z": None} if others else {"y": None}
    weight = weights(1, 8, 16)
    model = model_of(nodes, {"x": (1, 8)}, outputs, {"w": weight})
    samples = [{"x": 2 * weights(seed, 1, 8)} for seed in range(200)]
    seen = np.concatenate([sample["x"] @ weight for sample in samples])
    graph = _convert(model, tmp_path, calibration=samples, without=JUDGED).graph
    (scale,) = (t.scale for t in graph.tensors.values() if t.onnx_name == "h")
    assert scale is not None

    def error(bound: float) -> float:
        rounded = np.clip(np.rint(seen * (127 / bound)), -127, 127) * (bound / 127)
        return float(np.mean((function(rounded) - function(seen)) ** 2))

    bound, largest = 127 * scale, float(np.abs(seen).max())
    if others:
        np.testing.assert_allclose(bound, largest, rtol=0.01)
    else:
        least = min(error(share * largest) for share in np.linspace(0.05, 1, 300))
        assert error(bound) < 1.1 * least < 0.8 * error(largest)


def _samples(count: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Positive inputs: what weights lose does not cancel."""
    return [{"x": np.abs(weights(seed + i, 1, 3, 12, 12))} for i in range(count)]


def _network(loud: float = 1.0, function: str = "Sigmoid") -> onnx.ModelProto:
    """Two convolutions and a classifier; one output channel of the first is `loud` times as loud."""
    w = weights(0, 8, 3, 3, 3)
    w[0] *= loud
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node(function, ["c"], ["s"]),
        helper.make_node("Conv", ["s", "v", "d"], ["e"], strides=[2, 2]),
        helper.make_node("Relu", ["e"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["h"]),
        helper.make_node("Gemm", ["h", "f", "a"], ["z"], transB=1),
        helper.make_node("Softmax", ["z"], ["y"]),
    ]
    constants = {"w": w, "b": weights(1, 8), "v": weights(2, 8, 8, 3, 3), "d": weights(3, 8)}
    constants |= {"f": weights(4, 5, 8), "a": weights(5, 5)}
    return model_of(nodes, {"x": (1, 3, 12, 12)}, {"y": None}, constants)


def _convert(model: onnx.ModelProto, folder: Path, **options: object) -> Conversion:
    onnx.save(model, folder / "model.onnx")
    return convert(folder / "model.onnx", **options)


def _unseen_db(conversion: Conversion, samples: list[dict[str, np.ndarray]], value: str) -> float:
    """Of a value in the quantised model against the float one."""
    found = []
    for model in (conversion.float_model, conversion.quantized_model):
        watched = onnx.ModelProto()
        watched.CopyFrom(model)
        watched.graph.output.append(helper.make_empty_tensor_value_info(value))
        runtime = session(watched)
        found.append(np.stack([runtime.run([value], sample)[0] for sample in samples]))
    return sqnr_db(*found)


def test_one_loud_sample_makes_no_recipe(tmp_path: Path) -> None:
    """It is on one fold only: what it seems to say there is not what the others say (a warning names it)."""
    samples = _samples(12, 100)
    samples[0]["x"] = samples[0]["x"].copy()
    samples[0]["x"][0, 0, 0, 0] = 200.0
    chosen = _convert(_network(), tmp_path, calibration=samples)
    plain = _convert(_network(), tmp_path, calibration=samples, without=ALL)
    assert chosen.notes[-1] == "calibration: ranges by min-max"
    assert sum(line.startswith("choose-ranges: ") for line in chosen.rewrites) >= 4
    assert not any(
        line.startswith(("calibration", "choose-ranges")) for line in (*plain.notes, *plain.rewrites)
    )
    assert any("sample 0 alone sets the range of x" in doubt for doubt in chosen.doubts)


def test_a_change_wins_on_every_fold_or_by_its_spread() -> None:
    plain = (20.0, 20.0, 20.0)
    assert gains((20.1, 20.4, 20.2), plain)  # by little, on every fold
    assert gains((19.9, 22.0, 22.0), plain)  # not on every fold, by more than folds differ
    assert not gains((18.0, 22.5, 20.5), plain)
    assert not gains((20.0, 20.0, 20.9), plain)  # on one fold alone
    assert not gains((20.1, 20.1, 20.1), plain)


def test_equal_functions_are_quantised_equally(tmp_path: Path) -> None:
    """Gemm, MatMul with an Add, a convolution with one tap: the choice must not make the difference.

    But for scales of blocks of channels, which dense products alone have.
    """
    w, b, v, d = weights(0, 24, 32) / 4, weights(1, 32), weights(2, 32, 10), weights(3, 10)
    spellings = {
        "gemm": [
            helper.make_node("Gemm", ["x", "w", "b"], ["s"]),
            helper.make_node("Sigmoid", ["s"], ["r"]),
            helper.make_node("Gemm", ["r", "v", "d"], ["y"]),
        ],
        "matmul": [
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("Add", ["p", "b"], ["s"]),
            helper.make_node("Sigmoid", ["s"], ["r"]),
            helper.make_node("MatMul", ["r", "v"], ["q"]),
            helper.make_node("Add", ["q", "d"], ["y"]),
        ],
        "conv": [
            helper.make_node("Reshape", ["x", "image"], ["i"]),
            helper.make_node("Conv", ["i", "wc", "b"], ["s"]),
            helper.make_node("Sigmoid", ["s"], ["r"]),
            helper.make_node("Conv", ["r", "vc", "d"], ["q"]),
            helper.make_node("Reshape", ["q", "flat"], ["y"]),
        ],
    }
    constants = {"w": w, "b": b, "v": v, "d": d, "image": np.array([1, 24, 1, 1]), "flat": np.array([1, 10])}
    constants |= {"wc": w.T[:, :, None, None].copy(), "vc": v.T[:, :, None, None].copy()}
    samples = [{"x": weights(100 + i, 1, 24)} for i in range(16)]
    found = []
    for nodes in spellings.values():
        read = {name for node in nodes for name in node.input}
        used = {name: array for name, array in constants.items() if name in read}
        model = model_of(nodes, {"x": (1, 24)}, {"y": None}, used)
        conversion = _convert(model, tmp_path, calibration=samples, without=[CHANNEL_SCALES])
        found.append(_unseen_db(conversion, [{"x": weights(500 + i, 1, 24)} for i in range(40)], "y"))
    assert max(found) - min(found) < 0.5, found


def test_biases_take_back_what_coarse_weights_shift(tmp_path: Path) -> None:
    """One loud channel leaves the others few steps: their sums are off on average."""
    samples, model = _samples(12, 100), _network(loud=40.0, function="Relu")
    chosen = _convert(
        model, tmp_path, calibration=samples, without=["choose-ranges", "equalise-channels", "round-weights"]
    )
    plain = _convert(model, tmp_path, calibration=samples, without=[*ALL, "equalise-channels"])
    assert any("biases" in note for note in chosen.notes)
    gained, before = (_unseen_db(c, _samples(8, 500), "z") for c in (chosen, plain))
    assert gained > before + 1
    assert compare(chosen, np.random.default_rng(0)).lsb_to_quantized <= 1.01


def test_layer_by_layer_only_what_passes_a_relu_counts(tmp_path: Path) -> None:
    """Half of the samples saturate, which leaves their sums 7 too large, but negative as they should be.

    The weight 0.4 / 127 rounds to nothing; what that takes from the other half is all that biases give back.
    """
    lost = np.float32(0.4 / 127)
    w, b = np.array([[-1, -1], [0, lost]], np.float32), np.full(2, 0.5, np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["s"]),
        helper.make_node("Relu", ["s"], ["r"]),
        helper.make_node("Gemm", ["r", "v"], ["y"]),
    ]
    model = model_of(nodes, {"x": (1, 2)}, {"y": None}, {"w": w, "b": b, "v": weights(0, 2, 3)})
    up_to_one = [{"x": np.ones((1, 2), np.float32)}]
    converted = _convert(model, tmp_path, calibration=up_to_one, without=[*ALL, "equalise-channels"])
    program, steps, plain = converted.program, converted._steps, converted._quantisation
    assert program is not None
    products = biased_products(program, steps)[:1]
    samples = [{"x": np.array([[x, 1]], np.float32)} for x in (*np.arange(10) / 127, *[8.0] * 10)]
    seen = look("", program, samples, Wanted((), products), [0] * 20)
    simulation = Simulation(program, steps, plain)
    (found,) = corrected_biases(simulation, samples, plain, products, seen.means).values()
    np.testing.assert_allclose(found, [0, lost], atol=0.1 * lost)


def test_outputs_that_squash_are_judged_by_what_they_squash(tmp_path: Path) -> None:
    conversion = _convert(_network(), tmp_path)
    assert deciding_values(conversion.program, conversion._steps) == ("z",)


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_samples_to_keep_any_out(count: int, tmp_path: Path) -> None:
    samples = _samples(count, 100)
    chosen, plain = (
        _convert(_network(), tmp_path, calibration=samples, without=without) for without in ((), ALL)
    )
    assert not any(note.startswith("calibration: ") for note in chosen.notes)
    scales = [{t.name: t.scale for t in c.graph.tensors.values()} for c in (chosen, plain)]
    assert scales[0] == scales[1]


def test_the_worst_output_counts_for_most() -> None:
    """Shares of noise are averaged, not decibels: 40 dB of one output do not make up for 0 dB of another."""
    nodes = [helper.make_node("Gemm", ["x", w], [y], name=y) for w, y in (("w", "a"), ("v", "b"))]
    model = model_of(
        nodes, {"x": (1, 4)}, {"a": None, "b": None}, {"w": weights(0, 4, 9), "v": weights(1, 4, 9)}
    )
    floats = dict(zip("ab", session(model).run(None, {"x": weights(2, 1, 4)}), strict=True))
    exact = {name: [array] for name, array in floats.items()}

    def off(**shares: float) -> float:
        """Every value off by a share of it."""
        return score(exact, [{name: array * (1 + shares[name]) for name, array in floats.items()}])

    assert off(a=0.1, b=0.1) == pytest.approx(20, abs=0.01)
    assert off(a=1.0, b=0.01) == pytest.approx(-10 * np.log10((1 + 1e-4) / 2), abs=0.01)
    assert off(a=0.0, b=0.0) == pytest.approx(60)


def test_an_input_that_is_one_number(tmp_path: Path) -> None:
    """Its samples are arrays, too, as ONNX Runtime wants them."""
    nodes = [helper.make_node("Mul", ["x", "gain"], ["m"]), helper.make_node("MatMul", ["m", "w"], ["y"])]
    model = model_of(nodes, {"x": (1, 4), "gain": ()}, {"y": None}, {"w": weights(0, 4, 3)})
    onnx.save(model, tmp_path / "model.onnx")
    gains = np.linspace(1, 2, 9).astype(np.float32)
    np.savez(tmp_path / "model.calibration.npz", x=weights(1, 9, 1, 4), gain=gains)
    converted = convert(tmp_path / "model.onnx")
    assert any("calibration: ranges" in note for note in converted.notes)


@pytest.mark.parametrize(
    ("loud", "bias", "said"),
    [
        (200.0, 0.01, "212 times its biases"),
        (200.0, 0.1, ""),  # 21 times
        (255.0, 0.01, "251 times its biases"),
        (256.0, 0.01, ""),  # no byte
        (200.5, 0.01, ""),
        (-200.0, 0.01, ""),
        (16.0, 0.001, ""),  # a dark image, or labels
    ],
)
def test_biases_tell_whether_pixels_were_scaled(loud: float, bias: float, said: str, tmp_path: Path) -> None:
    """By hand: sums of (0, 0) and (loud, 100) deviate by loud / 2 and 50, biases are 30 and 40 `bias`."""
    constants = {"w": np.eye(2, dtype=np.float32), "b": np.array([30, 40], np.float32) * np.float32(bias)}
    loud_other = min(loud, 100.0) if loud > 0 else 100.0
    model = model_of(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="first")],
        {"x": (1, 2)},
        {"y": (1, 2)},
        constants,
    )
    samples = [{"x": np.array([[loud, loud_other]], np.float32) * (i % 2)} for i in range(8)]
    doubts = [doubt for doubt in _convert(model, tmp_path, calibration=samples).doubts if "biases" in doubt]
    assert [said in doubt for doubt in doubts] == ([True] if said else [])
