"""Unequal things in an output are seen: what was joined, columns of unlike size, what only passes through."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from fadiff.converter.check.noise import noise_of, parts_of, small_columns
from fadiff.converter.ir.program import Program, program_of


def _program(
    nodes: list, outputs: dict[str, tuple[int, ...]], between: dict[str, tuple[int, ...]]
) -> Program:
    def value(name: str, shape: tuple[int, ...]):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    weight = numpy_helper.from_array(np.eye(3, dtype=np.float32), "w")
    shape = numpy_helper.from_array(np.array([1, 2, 9]), "shape")
    graph = helper.make_graph(
        nodes,
        "joined",
        [value("x", (1, 2, 3)), value("past", (1, 4, 3))],
        [value(name, s) for name, s in outputs.items()],
        [weight, shape],
        value_info=[value(name, s) for name, s in between.items()],
    )
    return program_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def test_joins_of_joins_behind_functions_and_moves():
    """y[0, j, i]: j = 0 to 2 from `a` (squashed before), 3 to 8 from two operands of another join."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Sigmoid", ["m"], ["a"]),
        helper.make_node("MatMul", ["m", "w"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["c"]),
        helper.make_node("Concat", ["b", "c"], ["bc"], axis=2),
        helper.make_node("Concat", ["a", "bc"], ["abc"], axis=2),
        helper.make_node("Reshape", ["abc", "shape"], ["r"]),
        helper.make_node("Transpose", ["r"], ["y"], perm=[0, 2, 1]),
    ]
    three = dict.fromkeys("mabc", (1, 2, 3))
    between = three | {"bc": (1, 2, 6), "abc": (1, 2, 9), "r": (1, 2, 9)}
    found = parts_of(_program(nodes, {"y": (1, 9, 2)}, between), "y")
    assert found.passed is None and list(found.joined) == ["a", "b", "c"]
    for number, where in enumerate(found.joined.values()):
        expected = np.zeros((1, 9, 2), bool)
        expected[:, 3 * number : 3 * number + 3] = True
        assert np.array_equal(where, expected)


def test_rows_of_a_cache_that_only_pass_through_do_not_count():
    """Four rows of `past` would hide that the new ones are noise."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["new"]),
        helper.make_node("Concat", ["past", "new"], ["y"], axis=1),
    ]
    found = parts_of(_program(nodes, {"y": (1, 6, 3)}, {"new": (1, 2, 3)}), "y")
    assert not found.joined and found.passed is not None
    assert np.array_equal(found.passed[0, :, 0], [True] * 4 + [False] * 2)
    expected = np.ones((5, 1, 6, 3), np.float32)
    measured = expected.copy()
    measured[:, :, 4:] = 0
    assert noise_of(expected, measured).sqnr_db == pytest.approx(10 * np.log10(3), abs=0.01)
    assert noise_of(expected, measured, ~found.passed).sqnr_db == pytest.approx(0)


def test_one_value_has_no_parts():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    assert parts_of(_program(nodes, {"y": (1, 2, 3)}, {}), "y").joined == {}


@pytest.mark.parametrize(
    ("shape", "axis", "label"),
    [
        ((4,), 0, "columns 1 to 2"),
        ((1, 4), 1, "columns 1 to 2"),
        ((1, 4, 60), 1, "channels 1 to 2"),
        ((1, 60, 4), 2, "columns 1 to 2"),
        ((1, 4, 5, 6), 1, "channels 1 to 2"),
    ],
)
def test_columns_of_unlike_size(shape: tuple[int, ...], axis: int, label: str):
    expected = np.random.default_rng(0).standard_normal((20, *shape)).astype(np.float32)
    assert small_columns(expected) == {}
    small = np.zeros(shape, bool)
    np.moveaxis(small, axis, 0)[1:3] = True
    found = small_columns(np.where(small, expected / 100, expected))
    assert list(found) == [label] and np.array_equal(found[label], small)


def test_small_columns_of_unlike_size_do_not_speak_for_one_another():
    expected = np.random.default_rng(0).standard_normal((200, 5)) * [1, 0.06, 1e-3, 0.05, 1]
    found = small_columns(expected)
    assert {label: np.flatnonzero(places).tolist() for label, places in found.items()} == {
        "columns 1, 3": [1, 3],
        "column 2": [2],
    }
    measured = np.where(np.arange(5) == 2, 0, expected * 1.01)
    assert noise_of(expected, measured, found["columns 1, 3"]).sqnr_db == pytest.approx(40, abs=0.01)
    assert noise_of(expected, measured, found["column 2"]).sqnr_db == pytest.approx(0)


@pytest.mark.parametrize(
    ("size", "mark", "decibels"),
    [
        (3.0, 0.0, 40),  # no marks
        (1e10, 0.0, 40),  # watts, unnormalised sums: numbers
        (3.0, -1e9, 40),  # "not here" beside scores
        (1e6, -1e9, 0.0),  # a number like others: it counts, and nearly alone
    ],
)
def test_large_numbers_are_marks_only_far_above_all_others(size: float, mark: float, decibels: float):
    expected = np.random.default_rng(0).standard_normal((8, 50)) * size
    measured = expected * 1.01
    if mark:
        expected[:, :30], measured[:, :30] = mark, 0
    assert noise_of(expected, measured).sqnr_db == pytest.approx(decibels, abs=0.01)


def test_one_sample_does_not_speak_for_the_others():
    """One of ten samples is 1,000 times as loud and exact; the others are noise."""
    expected = np.ones((10, 1, 8), np.float32)
    expected[3] *= 1e3
    measured = np.where(np.arange(10)[:, None, None] == 3, expected, 0)
    found = noise_of(expected, measured)
    assert found.sqnr_db > 50 and found.median_db == found.worst_db == pytest.approx(0)
    quiet = np.ones((10, 1, 8), np.float32)
    quiet[3] = 1e-3  # next to nothing: noise of a hundredth of the others' size is no fault
    assert noise_of(quiet, quiet + 0.01).worst_db == pytest.approx(30, abs=0.1)
