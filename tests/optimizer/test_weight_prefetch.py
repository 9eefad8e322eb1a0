"""Prefetching as a pass on a finished schedule, and the bound that holds for it."""

import pytest

from fadiff.costmodel.group.weight_prefetch import planned_prefetches, without_prefetches
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import Schedule, singleton_groups
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer import optimize
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.finish.traffic_limit import dram_bytes
from fadiff.optimizer.finish.weight_prefetch import HIDDEN, prefetching, with_prefetches
from fadiff.optimizer.layer.space import Rules
from tests.costmodel.networks import conv, graph, whole_tile

LARGE = load_target("gemmini-large")


def network():
    """A compute-bound convolution, then a product that waits for its weights, twice."""
    layers = []
    for i in range(2):
        layers += [
            conv(f"a{i}", f"x{2 * i}", f"x{2 * i + 1}", 64, 64, 14, 14, 5, 1, 2),
            conv(f"b{i}", f"x{2 * i + 1}", f"x{2 * i + 2}", 64, 64, 14, 14, 1),
        ]
    layers.append(conv("c", "x4", "y", 2048, 64, 14, 14, 1))
    return graph(layers, ("x0",), ("y",))


def tiles(net):
    """Whole layers, but for the many output channels of `c`."""
    return {x.name: whole_tile(x.dims, 32, K=32 if x.name == "c" else x.dims.K) for x in net.layers}


@pytest.mark.parametrize("profile", ["hw", "dosa"])
def test_changes_only_latency_where_nothing_is_mapped_again(profile):
    net = network()
    mappings = tiles(net)
    schedule = Schedule(net, LARGE, mappings, singleton_groups(net), profile)
    found = prefetching(schedule, Problem(net, Rules(LARGE, profile)))
    assert found.mappings == schedule.mappings
    planned = planned_prefetches(found)
    assert planned
    before, after = evaluate(schedule), evaluate(found)
    assert after.energy_pj == before.energy_pj
    assert dram_bytes(after) == dram_bytes(before)
    loads = sum(prefetch.nbytes for prefetch in planned.values()) / LARGE.bandwidth.dram_bytes
    assert before.latency_cycles - after.latency_cycles >= HIDDEN * loads  # nothing is in the tile buffer
    assert without_prefetches(found) == schedule


def test_maps_again_where_room_is_missing_within_the_limit_of_bytes():
    """The tile of `a0` fills the scratchpad; another one leaves room for the weights of the next layer."""
    net = network()
    small = LARGE.model_copy(update={"scratchpad_bytes": 32 * 1024})
    problem = Problem(net, Rules(small))
    schedule = optimize(net, small, method="layerwise").schedule
    found = prefetching(schedule, problem)
    assert evaluate(found).edp_uj_cycles <= evaluate(schedule).edp_uj_cycles
    limited = prefetching(schedule, problem, most_bytes=dram_bytes(evaluate(schedule)))
    assert dram_bytes(evaluate(limited)) <= dram_bytes(evaluate(schedule))


@pytest.mark.parametrize(("profile", "latency"), [("hw", "roofline"), ("dosa", "roofline"), ("hw", "clock")])
def test_the_bound_holds_for_schedules_that_prefetch(profile, latency):
    net = network()
    method = "exact" if latency == "roofline" else "layerwise"
    found = optimize(net, LARGE, profile=profile, method=method, latency=latency)
    early = with_prefetches(found)
    assert early.bound == "relaxed"
    assert early.value <= found.value
    assert early.gap >= 0
    assert early.cost == evaluate(early.schedule, latency)
    # Nor is what any other prefetching schedule costs below it.
    mappings = tiles(net)
    problem = Problem(net, Rules(LARGE, profile, latency=latency))
    other = prefetching(Schedule(net, LARGE, mappings, singleton_groups(net), profile), problem)
    assert evaluate(other, latency).edp_uj_cycles >= early.lower_bound
