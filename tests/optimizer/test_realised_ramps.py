"""Activation functions as sums of ramps: how near to their tables, and bit-exact in C."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fadiff.converter.check.reference import run_reference
from fadiff.converter.ir.graph import HostLayer
from fadiff.converter.ir.host import Lookup
from fadiff.converter.ir.loops import Access, Loops
from fadiff.optimizer.cut.settings import Settings
from fadiff.optimizer.realise.activations import MOST_LSB
from fadiff.optimizer.realise.choice import Cheaper
from fadiff.optimizer.realise.ramps import (
    MOST_RAMPS,
    Ramps,
    nearest_ramps,
    realised_ramps,
)
from fadiff.optimizer.realise.realised import with_realised
from fadiff.optimizer.search import optimize
from tests.emitters.gemmini.executed import Case, check
from tests.optimizer.test_realised_activations import EVERY, gelu, lookup, silu, table_of, target_of

if TYPE_CHECKING:
    from collections.abc import Callable


def hard_swish(x: float) -> float:
    return x * min(max(x + 3, 0), 6) / 6


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def sums_of(ramps: Ramps) -> np.ndarray:
    """What ramps make of every int8, one by one in Python's numbers."""
    found = []
    for x in EVERY.tolist():
        parts = [min(max(g * x + s, -128), 127) for g, s in zip(ramps.gains, ramps.shifts, strict=True)]
        total = ramps.bias + sum(w * part for w, part in zip(ramps.weights, parts, strict=True))
        found.append(min(max(round(float(np.float32(total) * np.float32(ramps.scale))), -128), 127))
    return np.array(found)


@pytest.mark.parametrize(
    ("function", "most", "count", "least_db"),
    [
        (gelu, 3.0, 6, 41),
        (gelu, 8.0, 4, 43),
        (silu, 5.0, 6, 41),
        (silu, 12.0, 5, 43),
        (hard_swish, 16.0, 6, 43),
        (sigmoid, 4.0, 6, 43),
    ],
)
def test_a_few_ramps_come_near_to_a_table(
    function: Callable[[float], float], most: float, count: int, least_db: float
) -> None:
    table = table_of(function, most)
    found = nearest_ramps(table.tobytes())
    assert found is not None and len(found.gains) <= count
    errors = sums_of(found) - table
    assert 10 * np.log10(np.square(table.astype(float)).sum() / (errors @ errors)) > least_db


@settings(max_examples=40, deadline=None)
@given(data=st.binary(min_size=256, max_size=256), smooth=st.integers(1, 200))
def test_what_is_found_is_as_near_as_it_promises(data: bytes, smooth: int) -> None:
    """Of any table, smooth or not; instructions hold its numbers."""
    noise = np.frombuffer(data, np.int8).astype(float)
    around = np.convolve(noise, np.ones(smooth), "same")
    table = np.rint(127 * around / max(np.abs(around).max(), 1)).astype(np.int8)
    found = nearest_ramps(table.tobytes())
    if found is not None:
        errors = sums_of(found) - table
        assert np.abs(errors).max() <= MOST_LSB
        assert len(found.gains) <= MOST_RAMPS and found.scale > 0
        assert max(map(abs, (*found.gains, *found.weights))) <= 127
        assert abs(found.bias) + 128 * sum(map(abs, found.weights)) < 2**31


def test_lines_and_constants_need_no_more_than_one() -> None:
    for table in (EVERY, -EVERY // 2):
        found = nearest_ramps(table.astype(np.int8).tobytes())
        assert found is not None and len(found.gains) == 1
    assert nearest_ramps(np.zeros(256, np.int8).tobytes()) is None
    assert nearest_ramps(np.tile([-100, 100], 128).astype(np.int8).tobytes()) is None


@pytest.mark.parametrize("side", [8, 16, 32])
@pytest.mark.parametrize("size", [256 * 40, 37 * 12])
def test_c_computes_the_same_integers(side: int, size: int) -> None:
    """As ONNX Runtime, and as Python; bytes as predicted."""
    table = table_of(gelu, 4.0)
    graph = lookup(size, table)
    realised = realised_ramps(graph, graph.layers[0], target_of(side))
    assert realised is not None
    graph = with_realised(graph, realised)
    x = np.resize(EVERY, size).astype(np.int8)
    found = nearest_ramps(table.tobytes())
    assert found is not None
    np.testing.assert_array_equal(run_reference(graph, {"x": x})["y"], np.resize(sums_of(found), size))
    check(Case(optimize(graph, target_of(side), method="exact").schedule))


def test_it_is_taken_where_the_core_takes_much_longer() -> None:
    """Not for a handful of elements; not of another order, nor of tables that no few ramps come near to."""
    target, fewest_cycles = target_of(16), Settings(objective="latency")
    for size, taken in ((64, False), (16384, True)):
        graph = lookup(size, table_of(silu, 8.0))
        realised = realised_ramps(graph, graph.layers[0], target)
        assert realised is not None and Cheaper(graph, target, fewest_cycles)(graph, realised) == taken
    layer = graph.layers[0]
    assert isinstance(layer, HostLayer)
    turned = replace(layer, operator=Lookup(Loops((16, 32), (Access(0, (1, 16)),), Access(0, (32, 1)))))
    assert realised_ramps(graph, turned, target) is None
    rough = lookup(512, np.tile([-100, 100], 128).astype(np.int8))
    assert realised_ramps(rough, rough.layers[0], target) is None
