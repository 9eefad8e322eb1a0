"""Random schedules on float32 arrays: every layer within 1e-5 of ONNX Runtime, every byte as predicted."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings

from fadiff.converter.check.reference import MEASURED, UNCLIPPED, integer_reference, reference_session
from fadiff.converter.ir.graph import Graph, HostLayer, Layer, Tensor, TensorCoreLayer
from fadiff.converter.ir.host import Add, Formula, LayerNorm, Lookup, Softmax
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.emulator.compare import difference
from tests.emitters.gemmini.executed import Case, measured, predicted, run_firmware
from tests.emitters.gemmini.gemmini_cases import (
    SEEDS,
    SETTINGS,
    bmm_case,
    group_case,
    layer_case,
    rows_case,
)
from tests.emitters.gemmini.resident_cases import resident_case


def as_float(case: Case, numbers: np.random.Generator) -> Schedule:
    """The same schedule with float32 tensors and random constants, on the target with 4-byte elements."""
    masks = {
        x.inputs[2]
        for x in case.graph.layers
        if isinstance(x, HostLayer) and x.op == "softmax" and len(x.inputs) > 2
    }

    def tensor(t: Tensor) -> Tensor:
        if t.name in masks:
            return t
        data = None if t.data is None else numbers.normal(size=t.shape).astype(np.float32)
        return replace(t, dtype="float32", scale=None, data=data)

    def layer(x: Layer) -> Layer:
        if isinstance(x, TensorCoreLayer):
            return replace(x, scale=1.0)
        assert isinstance(x, HostLayer)
        match x.operator:
            case Softmax() as operator:  # no table of exponentials
                return replace(x, inputs=(x.inputs[0], *x.inputs[2:]), operator=replace(operator, scale=1.0))
            case Lookup(loops=loops):
                formula = Formula(loops, ("neg x", "exp v0", "add 1.0 v1", "div x v2"))
                return replace(x, operator=formula, inputs=x.inputs[:1])
            case LayerNorm() as operator:
                length = case.graph.tensors[x.inputs[1]].size
                return replace(x, operator=replace(operator, variance_scale=1 / length**2, unit=1 / length))
            case Add() as operator:
                return replace(x, operator=Add(activation=operator.activation))
        assert x.op == "max_pool"
        return x

    graph, target = case.graph, case.schedule.target
    wide = {
        "element_type": "float32",
        "element_bytes": 4,
        "scratchpad_bytes": 4 * target.scratchpad_bytes,
        "tile_buffer_bytes": 4 * target.tile_buffer_bytes,
    }
    return replace(
        case.schedule,
        graph=Graph(
            graph.name,
            {name: tensor(t) for name, t in graph.tensors.items()},
            tuple(map(layer, graph.layers)),
            graph.inputs,
            graph.outputs,
        ),
        target=target.model_copy(update=wide),
    )


@pytest.mark.parametrize("make", [layer_case, bmm_case, group_case, rows_case, resident_case])
@settings(SETTINGS, max_examples=5)
@given(seed=SEEDS)
def test_float_schedules(make: Callable[[random.Random], Case | None], seed: int) -> None:
    case = make(random.Random(seed))
    assume(case is not None)
    assert case is not None
    numbers = np.random.default_rng(seed)
    schedule = as_float(case, numbers)
    graph = schedule.graph
    inputs = {
        name: numbers.normal(size=graph.tensors[name].shape).astype(np.float32) for name in graph.inputs
    }
    result = run_firmware(schedule, inputs)
    session = reference_session(integer_reference(graph, by_layer=True))
    names = [output.name for output in session.get_outputs()]
    written = [name for name in names if name in graph.tensors]
    feeds = {**inputs, **{MEASURED + name: result.tensors[name] for name in written}}
    expected = dict(zip(names, session.run(names, feeds), strict=True))
    for name in written:
        sums = float(expected.get(UNCLIPPED + name, 0.0))
        actual, absent = result.tensors[name], result.absent.get(name)
        found = difference(name, 0, expected[name], actual, absent, unclipped=sums)
        assert found.mismatch is None, (found.relative, schedule)
    assert measured(result) == predicted(schedule)
