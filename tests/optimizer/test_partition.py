"""Cuts of a graph against brute force over all partitions."""

import numpy as np
import pytest

from benchmarks.adversary.partitions import executable, partitions
from fadiff.costmodel.schedule.schedule import FusionGroup
from fadiff.optimizer.cut.partition import Partitioner, ordered
from fadiff.optimizer.group.candidates import candidate_groups, signature
from fadiff.optimizer.group.hull import GroupHull, Way
from fadiff.optimizer.group.residency import PlacedGroup
from tests.optimizer.graphs import dense, exchange, residual, separable, skips


def random_hulls(graph, groups, rng):
    hulls = {}
    for layers in [(layer.name,) for layer in graph.layers] + groups:
        size = int(rng.integers(1, 4))
        energy = np.sort(rng.integers(1, 100, size) * len(layers) ** 0.5)
        latency = np.sort(rng.integers(1, 100, size) * len(layers) ** 0.5)[::-1]
        ways = tuple(Way(FusionGroup(layers), (), ()) for _ in range(size))
        hulls[layers] = GroupHull(energy, latency, ways)
    return hulls


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("make", [separable, residual, exchange, dense, skips])
def test_weighted_sum_equals_brute_force(make, seed):
    graph, rng = make(), np.random.default_rng(seed)
    groups = list(candidate_groups(graph, 4))
    hulls = random_hulls(graph, groups, rng)
    cuts = Partitioner(graph, {layers: layers for layers in hulls})
    by_placed_group = {PlacedGroup(layers): hull for layers, hull in hulls.items()}
    solve = cuts.solver(by_placed_group)
    names = [layer.name for layer in graph.layers]
    for a, b in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (1.0, 5.0)):
        best = min(
            sum(float((a * hulls[g].energy + b * hulls[g].latency).min()) for g in partition)
            for partition in partitions(names, list(hulls))
            if executable(graph, partition)
        )
        found = solve(a, b)
        assert a * found.energy + b * found.latency == pytest.approx(best)
        partition = ordered(graph, cuts.partition(by_placed_group, found.argmin))
        layers = [name for way in partition for name in way.group.layers]
        assert sorted(layers) == sorted(names)


def test_groups_are_convex():
    graph = residual()
    groups = set(candidate_groups(graph, 4))
    assert ("b1", "b2", "b_down", "b_add") in groups
    assert ("a1", "a2", "a_add") in groups
    # b1 -> b2 -> b_add leaves and comes back when b2 is missing.
    assert ("b1", "b_down", "b_add") not in groups
    assert all(not any(n.endswith("add") for n in g) for g in candidate_groups(graph, 4, adds=False))


def test_identical_groups_share_a_signature():
    graph = separable(blocks=3)
    assert signature(graph, ("dw0", "pw0")) == signature(graph, ("dw1", "pw1"))
    assert signature(graph, ("dw0", "pw0")) != signature(graph, ("pw0", "dw1"))
