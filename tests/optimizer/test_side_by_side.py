"""Which layers run side by side: only where all that counts is no worse for it."""

from __future__ import annotations

import random
from dataclasses import replace

import networkx as nx
import pytest

from fadiff.converter.ir.graph import Graph
from fadiff.converter.ir.host import Copy, Fill
from fadiff.converter.ir.loops import Access, Loops
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.group.resident_tensors import resident_tensors
from fadiff.costmodel.mapping.mapping import LOOPS
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, Schedule
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer import optimize
from fadiff.optimizer.cut.partition import Objective, value
from fadiff.optimizer.finish.pipelines import LEAST_GAIN
from fadiff.optimizer.finish.side_by_side import with_side_by_side
from tests.emitters.gemmini.executed import Case, check
from tests.emitters.gemmini.nets import Net, Shape

TARGET = load_target("gemmini-default")


def branches(tables: int = 0, *, chained: bool = False) -> Graph:
    """A convolution, a layer norm (`chained`: of its output) or tables of its input, an addition of all."""
    net = Net(random.Random(1))
    shape: Shape = (1, 8, 16, 64)
    x = net.input(shape)
    y, _ = net.conv(x, shape, outputs=64, kernel=(7, 7), pads=(3, 3, 3, 3)) or ("", shape)
    total = y
    for operator in [net.lookup] * tables or [net.layer_norm]:
        total = net.add(total, operator(y if chained else x, shape), shape)
    return net.builder.build((total,))


def issued(graph: Graph, objective: Objective = "edp") -> Schedule:
    """As it is before layers run side by side."""
    return optimize(graph, TARGET, method="exact", objective=objective).schedule


def together(schedule: Schedule) -> list[FusionGroup]:
    return [group for group in schedule.groups if group.side_by_side]


def test_a_layer_norm_beside_a_convolution() -> None:
    """The functional model, which knows nothing of the choice, finds most of what the clock promises."""
    before = issued(branches())
    after = with_side_by_side(before, "edp")
    [group] = together(after)
    assert [before.graph.by_name[name].op for name in group.layers] == ["conv", "layer_norm"]
    assert after.mappings[group.layers[0]].issue in LOOPS
    promised = evaluate(before).latency_cycles - evaluate(after).latency_cycles
    one_by_one, side_by_side = check(Case(before)), check(Case(after))
    assert one_by_one.counts.dram_bytes == side_by_side.counts.dram_bytes
    assert one_by_one.counts.cycles - side_by_side.counts.cycles > 0.75 * promised > 0


def test_several_operators_beside_one_layer() -> None:
    before = issued(branches(2))
    after = with_side_by_side(before, "latency")
    [group] = together(after)
    assert len(group.layers) == 3
    check(Case(after))


def test_none_that_needs_the_other() -> None:
    before = issued(branches(chained=True))
    assert with_side_by_side(before, "edp") == before


@pytest.mark.parametrize("objective", ["edp", "latency", "energy"])
@pytest.mark.parametrize("tables", [0, 2])
def test_only_what_lowers_the_objective_at_no_other_price(tables: int, objective: Objective) -> None:
    before = issued(branches(tables), objective)
    after = with_side_by_side(before, objective)
    now, then = (evaluate(schedule) for schedule in (before, after))
    assert then.dram_bytes <= now.dram_bytes and then.energy_pj == pytest.approx(now.energy_pj)
    worth = [value(objective, cost.energy_pj, cost.latency_cycles) for cost in (now, then)]
    assert after == before or worth[1] < (1 - LEAST_GAIN) * worth[0]
    assert bool(together(after)) == (after != before) == (objective != "energy")
    assert with_side_by_side(after, objective) == after


def test_groups_come_after_what_they_need_and_tensors_stay_on_chip() -> None:
    """The operator comes last before, where everything else has run."""
    graph = branches()
    before = issued(graph)
    last = {name: at for at, name in enumerate(nx.topological_sort(graph.dag))}
    groups = sorted(before.groups, key=lambda group: max(last[name] for name in group.layers))
    after = with_side_by_side(replace(before, groups=tuple(groups)), "edp")
    assert together(after)
    assert resident_tensors(after.groups) == resident_tensors(before.groups)


def test_a_fill_stays_before_what_is_written_into_it() -> None:
    """Zeros, then a diagonal of the input in them, then the convolution, of which neither needs anything."""
    net = Net(random.Random(1))
    shape: Shape = (1, 8, 16, 64)
    x = net.input(shape)
    spread = Loops((64,), (Access(0, (1,)),), Access(0, (1025,)))
    padded = net.builder.tensor("padded", (1, 8, 128, 64), scale=0.1)
    net.builder.host("zeros", Fill(0), (), (padded,))
    net.builder.host("diagonal", Copy(spread), (x,), (padded,))
    y, _ = net.conv(x, shape, outputs=64, kernel=(7, 7), pads=(3, 3, 3, 3)) or ("", shape)
    before = issued(net.builder.build((padded, y)))
    after = with_side_by_side(before, "latency")
    check(Case(after))
    first, second, *rest = before.groups
    assert (first.layers, second.layers) == (("zeros",), ("diagonal",))
    with pytest.raises(ScheduleError, match="runs before that of zeros, which would overwrite it"):
        replace(before, groups=(second, first, *rest))
