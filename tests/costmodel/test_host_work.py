"""What host operators take: elements by hand, prices from the target, the same in both models of time."""

from __future__ import annotations

import numpy as np
import pytest

from fadiff.converter.ir.builder import GraphBuilder
from fadiff.converter.ir.graph import Graph
from fadiff.converter.ir.host import (
    AveragePool,
    Binary,
    Copy,
    Exponentials,
    GlobalAveragePool,
    HostOperator,
    Lookup,
    MaxPool,
    PoolWindow,
    Reduce,
    Rows,
    Softmax,
)
from fadiff.converter.ir.loops import Access, Loops
from fadiff.costmodel.group.fusion import plan_group
from fadiff.costmodel.group.host_work import HostWork, host_work
from fadiff.costmodel.latency.clock import clock
from fadiff.costmodel.schedule.clock import program_cycles
from fadiff.costmodel.schedule.schedule import Schedule, singleton_groups
from fadiff.costmodel.target.core import HOST_INSTRUCTIONS, Core
from fadiff.costmodel.target.target import Target, load_target
from tests.emitters.gemmini.executed import random_inputs, run_firmware
from tests.emitters.gemmini.host_nets import elementwise, integers, rows, windows

SHAPE = (2, 5, 6, 7)
SIZE = 2 * 5 * 6 * 7
DENSE = Access(0, (1,))
FLAT, PAIR = (Loops((SIZE,), (DENSE,) * inputs, DENSE) for inputs in (1, 2))
TURNED = Loops((7, 60), (Access(0, (1, 7)),), Access(0, (60, 1)))
WINDOW = PoolWindow((3, 2), (2, 2), (1, 1), (0, 0, 0, 0))
ROWS = Rows(60, 7, 1)


def single(operator: HostOperator, out: tuple[int, ...] = SHAPE) -> Graph:
    builder = GraphBuilder("single")
    x = builder.input("x", SHAPE, scale=0.1)
    y = builder.tensor("y", out, scale=0.1)
    builder.host("layer", operator, (x,), (y,))
    return builder.build((y,))


def masked(mask: list[list[int]]) -> Graph:
    builder, data = GraphBuilder("masked"), np.array(mask, np.int8)
    x = builder.input("x", SHAPE, scale=0.1)
    e = builder.tensor("e", (256,), "int32", data=np.ones(256, np.int32))
    m = builder.tensor("m", data.shape, "int8", data=data)
    y = builder.tensor("y", SHAPE, scale=0.1)
    builder.host("layer", Softmax(ROWS, 1.0, len(mask)), (x, e, m), (y,))
    return builder.build((y,))


def exponentials() -> Graph:
    builder = GraphBuilder("exponentials")
    x = builder.input("x", SHAPE, scale=0.1)
    table = builder.tensor("table", (256,), "int32", data=np.ones(256, np.int32))
    e = builder.tensor("e", SHAPE, scale=1.0)
    reciprocals = builder.tensor("reciprocals", (60,), "float32")
    builder.host("layer", Exponentials(ROWS), (x, table), (e, reciprocals))
    return builder.build((e, reciprocals))


LATER = [[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0, 1]]


def work_of(graph: Graph, name: str = "layer") -> HostWork:
    groups = singleton_groups(graph)
    group = next(group for group in groups if name in group.layers)
    layer = graph.by_name[name]
    return host_work(graph, layer, plan_group(graph, group)[name])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("graph", "operator", "elements"),
    [
        (single(Lookup(FLAT)), "lookup", SIZE + 6),
        (single(Lookup(TURNED)), "lookup", round(SIZE * 1.45) + 7 * 6),
        (single(Copy(FLAT)), "copy_runs", SIZE + 256),
        (single(Copy(TURNED)), "copy_elements", SIZE),
        (single(Copy(FLAT), (2, 420)), "copy_runs", SIZE + 256),
        (single(MaxPool(WINDOW), (2, 2, 3, 7)), "max_pool", round(2 * 2 * 3 * 7 * 6 * 3.2)),
        (
            single(AveragePool(WINDOW, False, 1.0), (2, 2, 3, 7)),
            "average_pool",
            2 * 2 * 3 * 7 * (6 + 4) * 2.5,
        ),
        (single(GlobalAveragePool(1.0), (2, 1, 1, 7)), "global_average_pool", round((SIZE + 14 * 9) * 3.2)),
        (single(Reduce(ROWS, "sum", 1.0), (60,)), "reduce", SIZE + 60 * 24),
        (single(Reduce(Rows(10, 6, 7), "sum", 1.0), (70,)), "reduce", round((SIZE + 70 * 9) * 3.2)),
        (single(Binary(PAIR, "div", 1.0, 1.0, 1.0)), "division", SIZE + 6),
        (single(Binary(PAIR, "add", 1.0, 1.0, 1.0)), "binary", SIZE + 6),
        (single(Softmax(ROWS, 1.0)), "softmax", SIZE + 60 * 13),
        (exponentials(), "exponentials", SIZE + 60 * 7),
        (masked(LATER), "softmax", round(SIZE * (15 / 21 + 0.08 * 6 / 21 + 0.2 * 3 / 60)) + 60 * 13),
        (masked([row[::-1] for row in LATER]), "softmax", round(SIZE * (1 + 0.2 * 3 / 60)) + 60 * 13),
    ],
)
def test_elements_by_hand(graph: Graph, operator: str, elements: int) -> None:
    assert work_of(graph) == HostWork(operator, elements, 1)


@pytest.mark.parametrize("build", [elementwise, windows, rows, integers])
def test_every_operator_has_a_price(build: object) -> None:
    graph = build()  # type: ignore[operator]
    assert {work_of(graph, layer.name).operator for layer in graph.layers} <= set(HOST_INSTRUCTIONS)


def _slow(**core: object) -> Target:
    return Target.model_validate(load_target("gemmini-default").model_dump() | {"core": core})


def test_a_price_of_the_target_replaces_the_default() -> None:
    assert Core().host_cycles("gather", 10) == pytest.approx(64 * 1.3)
    assert Core(instruction=2).host_cycles("gather", 10) == pytest.approx(128)
    timed = Core().host_cycles("softmax", 10)
    assert Core(instruction=2.6).host_cycles("softmax", 10) == pytest.approx(2 * timed)
    assert _slow(host={"softmax": 7}).core.host_cycles("softmax", 10) == 70
    graph = single(Lookup(FLAT))
    schedule = Schedule(graph, _slow(host={"lookup": 9}, visit=50), {}, singleton_groups(graph))
    assert program_cycles(schedule) == {"layer": pytest.approx(9 * (SIZE + 6) + 50)}


def test_the_functional_model_takes_the_same_cycles() -> None:
    graph = rows()
    schedule = Schedule(graph, load_target("gemmini-default"), {}, singleton_groups(graph))
    ran = run_firmware(schedule, random_inputs(graph))
    per_visit = clock()[0].visit
    predicted = program_cycles(schedule)
    assert {layer.name: layer.cycles for layer in ran.layers} == {
        name: pytest.approx(cycles - per_visit, abs=1.5) for name, cycles in predicted.items()
    }
    assert ran.counts.host_busy == pytest.approx(sum(predicted.values()) - len(predicted) * per_visit)
