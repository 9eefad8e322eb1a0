"""Activation functions as stores through I-GELU: how near to their tables, and bit-exact in C."""

from __future__ import annotations

from dataclasses import replace
from math import erf, exp, sqrt
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fadiff.converter.check.reference import run_reference
from fadiff.converter.ir.builder import GraphBuilder
from fadiff.converter.ir.graph import Graph
from fadiff.converter.ir.host import Lookup
from fadiff.converter.ir.loops import Access, Loops
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.serialize import (
    read_document,
    schedule_from_document,
    to_document,
    write_document,
)
from fadiff.costmodel.target.target import Target, load_target
from fadiff.emitters.gemmini import emit
from fadiff.emulator.build import include_flags
from fadiff.optimizer.realise.activations import MOST_LSB, nearest_igelu, realised_activation
from fadiff.optimizer.realise.realised import with_realised
from fadiff.optimizer.search import optimize
from tests.emitters.gemmini.compilers import need, run_compiler
from tests.emitters.gemmini.executed import Case, check

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EVERY = np.arange(-128, 128)


def target_of(side: int, *, unit: bool = True) -> Target:
    """A small Gemmini."""
    return load_target("gemmini-small").model_copy(update={"side": side, "has_normalizations": unit})


def gelu(x: float) -> float:
    return x * (1 + erf(x / sqrt(2))) / 2


def silu(x: float) -> float:
    return x / (1 + exp(-x))


def table_of(function: Callable[[float], float], most: float) -> np.ndarray:
    """int8 [256] of inputs up to `most`."""
    step = function(most) / 127
    return np.array([round(function(x * most / 128) / step) for x in EVERY.tolist()], np.int8)


def values_of(polynomial: tuple[int, int], scale: float) -> np.ndarray:
    """What I-GELU makes of every int8, in Python's integers: those of 32 bits hold all of it."""
    b, c = polynomial
    found = []
    for x in EVERY.tolist():
        p = (min(abs(x), -b) + b) ** 2 + c
        value = x * ((p if x >= 0 else -p) + c)
        assert max(abs(p), abs(value)) < 2**31
        found.append(np.clip(np.rint(np.float32(value) * np.float32(scale)), -128, 127))
    return np.array(found, np.int64)


def lookup(size: int, table: np.ndarray) -> Graph:
    builder, dense = GraphBuilder("activation"), Access(0, (1,))
    x, y = builder.input("x", (size,), scale=0.1), builder.tensor("y", (size,), scale=0.1)
    entries = builder.tensor("table", (256,), scale=0.1, data=table)
    builder.host("y", Lookup(Loops((size,), (dense,), dense)), (x, entries), (y,))
    return builder.build((y,))


@pytest.mark.parametrize(
    ("function", "most", "least_db"),
    [(gelu, 3.0, 39), (gelu, 5.0, 44), (gelu, 8.0, 44), (silu, 5.0, 36), (silu, 8.0, 40), (silu, 12.0, 43)],
)
def test_functions_are_a_step_from_their_tables(
    function: Callable[[float], float], most: float, least_db: float
) -> None:
    table = table_of(function, most).astype(np.int64)
    found = nearest_igelu(table.astype(np.int8).tobytes())
    assert found is not None
    errors = values_of(*found) - table
    assert np.abs(errors).max() <= MOST_LSB
    assert 10 * np.log10((table @ table) / (errors @ errors)) > least_db


@pytest.mark.parametrize("function", [np.tanh, lambda x: 1 / (1 + np.exp(-x)), lambda x: x * x])
def test_other_functions_are_left_to_the_core(function: Callable[[float], float]) -> None:
    assert nearest_igelu(table_of(function, 4.0).tobytes()) is None


@settings(max_examples=40, deadline=None)
@given(most=st.floats(0.5, 40), gain=st.floats(0.2, 3), sign=st.sampled_from([-1, 1]))
def test_what_is_found_is_as_near_as_it_promises(most: float, gain: float, sign: int) -> None:
    """Also of functions that are mirrored, and saturate."""
    step = gelu(most) / 127 / gain
    table = np.array([sign * gelu(x * most / 128) / step for x in EVERY.tolist()])
    table = np.clip(np.rint(table), -128, 127).astype(np.int8)
    found = nearest_igelu(table.tobytes())
    if found is not None:
        assert np.abs(values_of(*found) - table).max() <= MOST_LSB


@pytest.mark.parametrize("side", [8, 16, 32])
@pytest.mark.parametrize("size", [256 * 40, 37 * 12])
def test_c_computes_the_same_integers(side: int, size: int) -> None:
    """As ONNX Runtime in int32, and as Python; bytes as predicted."""
    table = table_of(gelu, 4.0)
    graph = lookup(size, table)
    realised = realised_activation(graph, graph.layers[0], target_of(side))
    assert realised is not None
    graph = with_realised(graph, realised)
    x = np.resize(EVERY, size).astype(np.int8)
    found = nearest_igelu(table.tobytes())
    assert found is not None
    np.testing.assert_array_equal(run_reference(graph, {"x": x})["y"], np.resize(values_of(*found), size))
    schedule = optimize(graph, target_of(side), method="exact").schedule
    check(Case(schedule))
    with pytest.raises(ScheduleError, match="no has_normalizations"):
        replace(schedule, target=target_of(side, unit=False))


def test_a_schedule_file_keeps_the_polynomial(tmp_path: Path) -> None:
    """Which is no second activation."""
    graph = lookup(512, table_of(gelu, 4.0))
    realised = realised_activation(graph, graph.layers[0], target_of(16))
    assert realised is not None
    schedule = optimize(with_realised(graph, realised), target_of(16), method="exact").schedule
    document = to_document(schedule, evaluate(schedule), generator="test")
    write_document(document, tmp_path / "schedule.json")
    assert schedule_from_document(read_document(tmp_path / "schedule.json")).graph.layers == realised.layers
    layer = document.layers[0].model_copy(update={"activation": "relu"})
    with pytest.raises(ValueError, match="in place of activation relu"):
        schedule_from_document(document.model_copy(update={"layers": (layer,)}))


def test_the_core_keeps_what_the_unit_cannot_do() -> None:
    """No unit; elements in another order; a table that it does not come near to."""
    graph = lookup(512, table_of(gelu, 4.0))
    layer = graph.layers[0]
    assert realised_activation(graph, layer, target_of(16, unit=False)) is None
    swapped = Loops((16, 32), (Access(0, (1, 16)),), Access(0, (32, 1)))
    turned = replace(layer, operator=Lookup(swapped))
    assert realised_activation(graph, turned, target_of(16)) is None
    steep = lookup(512, table_of(np.tanh, 4.0))
    assert realised_activation(steep, steep.layers[0], target_of(16)) is None


def test_hardware_without_the_unit_is_refused(tmp_path: Path) -> None:
    """By the compiler, which reads its header."""
    graph = lookup(512, table_of(gelu, 4.0))
    realised = realised_activation(graph, graph.layers[0], target_of(16))
    assert realised is not None
    schedule = optimize(with_realised(graph, realised), target_of(16), method="exact").schedule
    firmware = emit(schedule, model_name="small", out_dir=tmp_path / "firmware")
    for unit in (True, False):
        flags = include_flags(target_of(16, unit=unit), tmp_path / str(unit))
        done = run_compiler(need("gcc"), "-std=gnu11", *flags, "-fsyntax-only", "small.c", folder=firmware)
        assert (done.returncode == 0) == unit, done.stderr
        assert ("built with has_normalizations" in done.stderr) != unit
