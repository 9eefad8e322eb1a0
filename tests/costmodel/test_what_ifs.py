"""Weights of the next group load under compute, as far as slack and space allow."""

from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import Schedule, singleton_groups
from fadiff.costmodel.schedule.what_ifs import prefetch_weights, resource_latency
from fadiff.costmodel.target.target import load_target
from tests.costmodel.networks import conv, graph, whole_tile
from tests.costmodel.schedules import weight_bound

LARGE = load_target("gemmini-large")


def schedule(target=LARGE):
    net = weight_bound()
    mappings = {
        "a": whole_tile(net.by_name["a"].dims, side=32),
        "b": whole_tile(net.by_name["b"].dims, 32, K=32),
    }
    return Schedule(net, target, mappings, singleton_groups(net), "dosa")


def test_hides_the_first_weight_tile():
    plan = schedule()
    cost = evaluate(plan)
    first, second = cost.layers
    assert first.bound == "compute" and second.bound == "L3"
    better = prefetch_weights(plan, cost)
    # One 32 x 32 weight tile of 1 KB at 8 bytes per cycle.
    assert cost.latency_cycles - better.latency_cycles == 1024 // 8
    assert better.energy_pj == cost.energy_pj
    assert resource_latency(plan, cost) <= better.latency_cycles


def test_never_more_than_the_slack():
    plan = schedule(
        LARGE.model_copy(update={"bandwidth": LARGE.bandwidth.model_copy(update={"dram_bytes": 1.0})})
    )
    cost = evaluate(plan)
    assert cost.layers[0].bound == "L3"
    assert prefetch_weights(plan, cost).latency_cycles == cost.latency_cycles


def test_weights_that_came_early_leave_slack():
    """b needs DRAM for 12800 of its 38400 bytes: in its 3600 cycles there is time for 16000 bytes of c."""
    net = graph(
        [
            conv("a", "x", "y", 32, 128, 16, 16, R=5),
            conv("b", "y", "z", 32, 32, 12, 12, R=5),
            conv("c", "z", "out", 32, 32, 8, 8, R=5),
        ],
        ("x",),
        ("out",),
    )
    mappings = {layer.name: whole_tile(layer.dims, 32) for layer in net.tensor_core_layers}
    plan = Schedule(net, LARGE, mappings, singleton_groups(net), "dosa")
    cost = evaluate(plan)
    assert [(layer.bound, layer.latency_cycles) for layer in cost.layers[1:]] == [("L3", 4800), ("L3", 4032)]
    better = prefetch_weights(plan, cost)
    assert [layer.latency_cycles for layer in better.layers[1:]] == [3600, 4032 - 16000 // 8]
