"""Networks that compiled without complaint and computed something else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper

from fadiff.converter import convert
from fadiff.converter.check.reference import run_reference
from fadiff.converter.check.storage import from_storage, store_inputs
from tests.converter.oracle import check, ints, model_of, session, sqnr_db, weights

LOWEST = float(np.finfo(np.float32).min)
IMAGE = (1, 4, 8, 8)
ROWS = (2, 6, 10)
SENTINELS = [LOWEST, -np.inf, -1e9]


def _number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


@pytest.mark.parametrize("fill", SENTINELS)
@pytest.mark.parametrize("pads", [(1, 1), (3, 3)])
def test_padding_before_a_max_pool(fill: float, pads: tuple[int, int], tmp_path: Path) -> None:
    """The pool pads itself where it can (less than its kernel)."""
    low, high = pads
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Pad", ["c", "pads", "fill"], ["p"], name="pad"),
        helper.make_node("MaxPool", ["p"], ["y"], name="pool", kernel_shape=[3, 3], strides=[1, 1]),
    ]
    constants = {
        "w": weights(1, 4, 4, 3, 3),
        "pads": ints(0, 0, low, low, 0, 0, high, high),
        "fill": _number(fill),
    }
    checked = check(model_of(nodes, {"x": IMAGE}, {"y": None}, constants), tmp_path)
    ops = [layer.op for layer in checked.conversion.graph.layers]
    assert ("fill" in ops) == (low == 3)
    if low == 1:
        assert checked.sqnr_db > 25
    else:  # the corner windows see nothing but padding
        y = _inner(checked.conversion)
        assert y > 25


def _inner(conversion) -> float:  # type: ignore[no-untyped-def]
    """Signal to noise of what is not a sentinel in the float model."""
    graph = conversion.graph
    floats = session(conversion.float_model)
    x = np.random.default_rng(3).standard_normal(floats.get_inputs()[0].shape).astype(np.float32)
    feeds = {floats.get_inputs()[0].name: x}
    (wanted,) = floats.run(None, feeds)
    name = graph.outputs[0]
    found = from_storage(
        graph.tensors[name], run_reference(graph, store_inputs(graph, feeds))[name], wanted.shape
    )
    seen = wanted > -1e4
    return sqnr_db(wanted[seen], found[seen])


@pytest.mark.parametrize("fill", SENTINELS)
@pytest.mark.parametrize("how", ["where", "where not", "add", "moved", "softmax and maximum"])
def test_blanks_before_maxima(fill: float, how: str, tmp_path: Path) -> None:
    blank = np.zeros(ROWS[1:], bool)
    blank[:, 6:] = True
    last = {"axes": [-1], "keepdims": 0}
    reads = [helper.make_node("ReduceMax", ["m"], ["y"], name="max", **last)]
    if how == "where":
        marks = [helper.make_node("Where", ["blank", "fill", "x"], ["m"], name="where")]
    elif how == "where not":
        marks = [helper.make_node("Where", ["seen", "x", "fill"], ["m"], name="where")]
    else:
        marks = [helper.make_node("Add", ["x", "mask"], ["m"], name="add")]
    if how == "moved":
        reads = [
            helper.make_node("Reshape", ["m", "rows"], ["t"]),
            helper.make_node("MaxPool", ["t"], ["y"], kernel_shape=[10], name="max"),
        ]
    if how == "softmax and maximum":
        reads = [
            helper.make_node("Reshape", ["m", "flat"], ["r"]),
            helper.make_node("Softmax", ["r"], ["p"]),
            helper.make_node("ReduceMax", ["r"], ["e"], axes=[-1]),
            helper.make_node("Add", ["p", "e"], ["y"]),
        ]
    constants = {
        "blank": blank,
        "seen": ~blank,
        "fill": _number(fill),
        "mask": np.where(blank, np.float32(fill), np.float32(0)),
        "flat": ints(12, 10),
        "rows": ints(1, 12, 10),
    }
    used = {value for node in (*marks, *reads) for value in node.input}
    chosen = {name: array for name, array in constants.items() if name in used}
    checked = check(model_of([*marks, *reads], {"x": ROWS}, {"y": None}, chosen, opset=17), tmp_path)
    assert checked.sqnr_db > 25


def test_a_faint_mask_before_a_moved_softmax(tmp_path: Path) -> None:
    """Shifted windows are masked with -100."""
    mask = np.zeros((3, 6, 6), np.float32)
    mask[1, :3, 3:] = mask[1, 3:, :3] = -100
    nodes = [
        helper.make_node("Add", ["x", "mask"], ["m"], name="add"),
        helper.make_node("Reshape", ["m", "flat"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"]),
    ]
    model = model_of(nodes, {"x": (2, 3, 6, 6)}, {"y": None}, {"mask": mask, "flat": ints(6, 6, 6)}, opset=17)
    assert check(model, tmp_path).sqnr_db > 25


def test_a_sentinel_that_is_read_as_a_number_stays_one(tmp_path: Path) -> None:
    """-1e5 that is averaged is a number like others."""
    nodes = [
        helper.make_node("Where", ["c", "fill", "x"], ["m"], name="where"),
        helper.make_node("ReduceMean", ["m"], ["y"], axes=[-1]),
    ]
    constants = {"c": np.arange(10) < 2, "fill": _number(-1e5)}
    checked = check(model_of(nodes, {"x": ROWS}, {"y": None}, constants), tmp_path)
    assert checked.sqnr_db > 40


@pytest.mark.parametrize("op", ["Sum", "Mean"])
def test_partial_sums_have_their_own_range(op: str, tmp_path: Path) -> None:
    """a + b is ten times a + b - b'."""
    nodes = [
        helper.make_node("Mul", ["x", "ten"], ["b"]),
        helper.make_node("Mul", ["x", "minus"], ["c"]),
        helper.make_node(op, ["x", "b", "c"], ["y"], name="sum"),
    ]
    constants = {"ten": _number(10), "minus": _number(-10.5)}
    model = model_of(nodes, {"x": ROWS}, {"y": ROWS}, constants)
    model.graph.node[0].CopyFrom(helper.make_node("Tanh", ["x"], ["t"]))
    model.graph.node.insert(1, helper.make_node("Mul", ["t", "ten"], ["b"]))
    assert check(model, tmp_path).sqnr_db > 20


@pytest.mark.parametrize("alpha", [-1.5, 0.0, 0.5])
@pytest.mark.parametrize("beta", [1.0, -2.0])
@pytest.mark.parametrize("relu", [True, False])
def test_gemm_with_any_alpha(alpha: float, beta: float, relu: bool, tmp_path: Path) -> None:
    nodes: list[NodeProto] = [
        helper.make_node("Gemm", ["x", "w", "b"], ["g"], name="gemm", alpha=alpha, beta=beta)
    ]
    nodes.append(helper.make_node("Relu" if relu else "Identity", ["g"], ["y"], name="last"))
    constants = {"w": weights(1, 8, 5), "b": weights(2, 5) / 10}
    checked = check(model_of(nodes, {"x": (3, 8)}, {"y": (3, 5)}, constants), tmp_path)
    assert checked.sqnr_db > 30


@pytest.mark.parametrize("size", [0.0, 1e-12])
def test_a_bias_outlives_weights_of_next_to_nothing(size: float, tmp_path: Path) -> None:
    """As behind a batch normalisation whose factor was trained to zero."""
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], name="conv")]
    constants = {"w": weights(1, 5, 4, 3, 3) * np.float32(size), "b": weights(2, 5)}
    checked = check(model_of(nodes, {"x": IMAGE}, {"y": None}, constants), tmp_path)
    assert checked.sqnr_db > 30


@pytest.mark.parametrize(("fill", "expected"), [(np.inf, 127), (-np.inf, -128), (LOWEST, -128)])
def test_infinite_padding_saturates_on_its_own_side(fill: float, expected: int, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Pad", ["x", "pads", "fill"], ["p"], name="pad"),
        helper.make_node("ReduceMin" if fill > 0 else "ReduceMax", ["p"], ["y"], axes=[-1], name="extreme"),
    ]
    constants = {"pads": ints(0, 0, 2, 0, 0, 2), "fill": _number(fill)}
    checked = check(model_of(nodes, {"x": ROWS}, {"y": None}, constants), tmp_path)
    layer = next(layer for layer in checked.conversion.graph.layers if layer.op == "fill")
    assert layer.operator.value == expected  # type: ignore[union-attr]
    assert checked.sqnr_db > 25


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_rows_of_a_vocabulary(op: str, tmp_path: Path) -> None:
    """128,000 terms next to one: their sum is over int32, and most of it is what one of them rounds away."""
    count = 128_000
    path = tmp_path / "m.onnx"
    onnx.save(model_of([helper.make_node(op, ["x"], ["y"])], {"x": (1, count)}, {"y": (1, count)}), path)
    tail = np.random.default_rng(0).normal(0, 0.1, (1, count)).astype(np.float32)
    flat, peaked = tail.copy(), tail.copy()
    peaked[0, 5] += 11.5
    samples = [{"x": flat}, {"x": peaked}]
    conversion = convert(path, calibration=samples)
    graph = conversion.graph
    (name,) = graph.outputs
    for sample in samples:
        (wanted,) = session(conversion.float_model).run(None, sample)
        stored = run_reference(graph, store_inputs(graph, sample))[name]
        found = from_storage(graph.tensors[name], stored, wanted.shape)
        assert (
            np.abs(found - wanted).max()
            <= 0.8 * (graph.tensors[name].scale or 1.0) + 0.02 * np.abs(wanted).max()
        )


@pytest.mark.parametrize("lowest", [-1e4, -1e9])
def test_a_padding_mask_of_exactly_ten_thousand(lowest: float, tmp_path: Path) -> None:
    """(1 - mask) * -10000, as BERT has it."""
    shape = (1, 2, 6, 6)
    nodes = [
        helper.make_node("Cast", ["mask"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "f"], ["hidden"]),
        helper.make_node("Mul", ["hidden", "lowest"], ["bias"]),
        helper.make_node("Add", ["x", "bias"], ["m"], name="add"),
        helper.make_node("Softmax", ["m"], ["y"]),
    ]
    model = model_of(nodes, {"x": shape}, {"y": shape}, {"one": _number(1), "lowest": _number(lowest)})
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.INT64, (1, 1, 1, 6)))
    assert check(model, tmp_path).sqnr_db > 25
