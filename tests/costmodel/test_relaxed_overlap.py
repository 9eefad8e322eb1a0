"""Groups that share time: the differentiable twin of costmodel.schedule.group_overlap."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodel.group.fusion import ScheduleError
from costmodel.mapping.shape import shape_of
from costmodel.relaxed.model import OS, Node, RelaxedModel
from costmodel.schedule.evaluate import evaluate
from costmodel.schedule.group_overlap import prefetch_weights, resource_latency
from tests.costmodel.networks import conv, graph, whole_tile
from tests.costmodel.relaxed_cases import TARGET, branching, cases, chains, point_of


def test_nodes_that_stand_for_several_layers_prefetch_as_often():
    """Compute-bound and weight-bound layers in turn: one transition each way, counted as it occurs."""
    network = graph(
        [conv("a", "t0", "t1", 64, 64, 12, 12, 5, 1, 2), conv("b", "t1", "t2", 64, 64, 12, 12)],
        ("t0",),
        ("t2",),
    )
    chosen = {layer.name: whole_tile(layer.dims, 16) for layer in network.layers}
    chosen = {name: replace(m, order_l3=OS.l3, order_l2=OS.l2, order_l1=OS.l1) for name, m in chosen.items()}

    slow = TARGET.model_copy(update={"bandwidth": TARGET.bandwidth.model_copy(update={"dram_bytes": 4.0})})

    def saved(repeat, sequence):
        nodes = [Node(shape_of(layer), repeat) for layer in network.layers]
        totals = []
        for how in ("sum", "prefetch"):
            model = RelaxedModel(nodes, [], slow, group_latency=how, sequence=sequence, dtype=torch.float64)
            totals.append(model(point_of(list(chosen.values()))).total_latency_cycles.item())
        return totals[0] - totals[1]

    once = saved(1.0, [0, 1])
    assert once > 0
    assert saved(3.0, [0, 1, 0, 1, 0, 1]) == pytest.approx(3 * once)
    assert 0 < saved(2.0, [0, -1, 1, 0, 1]) <= once


def test_rtl_latency_has_nothing_to_prefetch():
    with pytest.raises(ValueError, match="sum"):
        RelaxedModel([], [], TARGET, latency="rtl", group_latency="prefetch")


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@pytest.mark.parametrize("fusion_model", ["sound", "paper"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_group_latency_equals_exact(profile, fusion_model, data):
    """The next group's weights under compute, and the busiest resource: cycles round up layer by layer."""
    paper = fusion_model == "paper"
    case, executable = data.draw(cases(data.draw(st.one_of(chains(), branching())), paper=paper))
    assume(executable)
    slow = TARGET.bandwidth.model_copy(update={"dram_bytes": data.draw(st.sampled_from([0.5, 2.0, 8.0]))})
    target = TARGET.model_copy(update={"bandwidth": slow})
    try:
        schedule = case.schedule(target, profile, fusion_model)
    except ScheduleError:
        assume(False)
    cost = evaluate(schedule)
    rounding = 3 * len(case.nodes)
    for how, expected in (
        ("sum", cost.latency_cycles),
        ("prefetch", prefetch_weights(schedule, cost).latency_cycles),
        ("overlap", resource_latency(schedule, cost)),
    ):
        relaxed = case.relaxed(
            target, profile, fusion_model=fusion_model, group_latency=how, sequence=case.sequence
        )
        assert relaxed.total_latency_cycles.item() == pytest.approx(expected, abs=rounding), how
