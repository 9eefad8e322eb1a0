"""The relaxation and its descent."""

import itertools

import numpy as np
import pytest
import torch

from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer import optimize
from fadiff.optimizer.cut.decode import VARIABLES, Decoder, Encoding
from fadiff.optimizer.cut.exact import exact
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.gradient.descent import FEWEST_RESTARTS, Effort, descend, groups_found, schedule_at
from fadiff.optimizer.gradient.joint import gradient
from fadiff.optimizer.gradient.relaxation import KNOWN_AGAIN, Relaxation
from fadiff.optimizer.group.network import relaxed_network
from fadiff.optimizer.layer.candidates import extents
from fadiff.optimizer.layer.space import LayerSpace, Rules
from tests.optimizer.graphs import Net, bottleneck, residual, separable

LARGE = load_target("gemmini-large")


def network_of(graph, profile="hw"):
    return relaxed_network(graph, Problem(graph, Rules(LARGE, profile)).candidates)


def relaxation_of(graph, form="log", profile="dosa"):
    network = network_of(graph, profile)
    spaces = [LayerSpace.alone(shape, Rules(LARGE, profile)) for shape in network.shapes]
    return network, Relaxation(network.nodes, spaces, network.edges, form)


def test_schedules_anneal():
    tau, beta, weight = zip(*(schedule_at(f) for f in (0.0, 0.5, 1.0)), strict=True)
    assert tau[0] == 1 and abs(tau[2] - 0.1) < 1e-12 and tau[0] > tau[1] > tau[2]
    assert beta == tuple(sorted(beta)) and weight == tuple(sorted(weight))


def test_samples_are_candidates_with_gradients():
    for form in ("log", "paper"):
        _, relaxation = relaxation_of(separable(), form)
        generator = torch.Generator().manual_seed(0)
        variables = relaxation.start(5, generator)
        sample = relaxation.sample(variables, 1.0, generator)
        for i, lists in enumerate(relaxation.lists):
            extents = torch.cat([sample.extents, sample.tiles], dim=-1)
            for j, (name, options) in enumerate(zip((*VARIABLES, "P", "Q"), lists, strict=True)):
                found = extents[:, i, j].detach().round().long().tolist()
                assert set(found) <= set(options), (name, form)
        sample.extents.log().sum().backward()
        assert torch.isfinite(variables.x.grad).all()


def test_fused_pairs_walk_one_grid():
    """With sigma one, the group makes the producer compute the consumer's input box (halo of the 3x3
    included); scratchpad tiles are at most that."""
    net = Net(16, 8)
    graph = net.build(net.conv("second", net.conv("first", net.x, 8, 3), 8, 3))
    network, relaxation = relaxation_of(graph)
    variables = relaxation.start(4, torch.Generator().manual_seed(1))
    with torch.no_grad():
        variables.sigma.fill_(9.0)
        sample = relaxation.sample(variables, 0.1, None)
        point = relaxation.point(sample)
    first, second = network.node_of["first"], network.node_of["second"]
    for axis in (0, 1):
        need = (point.group[:, second, axis] + 2).clamp(max=16)
        assert torch.allclose(point.group[:, first, axis], need, rtol=1e-4)
    tiles = point.l2[..., 4:6]  # P, Q of (G N K C P Q R S)
    assert (tiles <= point.group * (1 + 1e-4)).all() and (tiles < 0.9 * point.group).any()


def test_adds_are_nodes_with_an_edge_per_operand():
    graph = residual()
    network = network_of(graph)
    assert [network.nodes[network.node_of[name]].is_add for name in ("a_add", "b_add", "a2")] == [1, 1, 0]
    fusable = {
        ("a1", "a2"),
        ("a2", "a_add"),
        ("a_add", "b1"),
        ("b1", "b2"),
        ("b2", "b_add"),
        ("b_down", "b_add"),
    }
    # The other operand of a_add is the input of the network; no group of four, as programs have at most, has
    # both a_add and b_down.
    assert set(network.edge_of) == fusable
    assert len(network.edges) == len(fusable) == len(set(network.edge_of.values()))
    without = network_of(graph, "dosa")
    assert set(without.edge_of) == {("a1", "a2"), ("b1", "b2")}


def test_an_add_hands_the_tile_of_its_reader_to_both_operands():
    """b2 reads y through a halo of one; its tile reaches a2 through the add."""
    net = Net(16, 8)
    y = net.conv("a1", net.x, 8, 3)
    y = net.add("sum", net.conv("a2", y, 8, 3), y)
    network, relaxation = relaxation_of(net.build(net.conv("b", y, 8, 3)), profile="hw")
    variables = relaxation.start(4, torch.Generator().manual_seed(1))
    with torch.no_grad():
        variables.sigma.fill_(9.0)
        point = relaxation.point(relaxation.sample(variables, 0.1, None))
    tile = {name: point.group[:, i, 0] for name, i in network.node_of.items()}
    for name, halo in (("sum", 2), ("a2", 2), ("a1", 4)):
        assert torch.allclose(tile[name], (tile["b"] + halo).clamp(max=16), rtol=1e-4), name


def test_identical_layers_share_a_node():
    net = Net(8, 8)
    x = net.x
    for i in range(9):
        x = net.conv(f"c{i}", x, 8, 3)
    network = network_of(net.build(x))
    assert len(network.shapes) < 9 and sum(network.repeats) == 9
    assert network.node_of["c4"] == network.node_of["c5"]


def test_descent_improves_on_its_start(monkeypatch):
    """Restarts that begin anywhere, decoded one by one, with nothing handed from one to the other."""
    monkeypatch.setattr("fadiff.optimizer.gradient.descent.RECOMBINED", ())
    problem = Problem(residual(size=16), Rules(LARGE, "dosa"))
    decoder = Decoder(problem, Encoding.of(problem))

    def median(steps):
        found = descend(problem, Effort(restarts=24, steps=steps))
        energy, latency = decoder.cost(found.batch())
        return float(np.median((energy * latency)[:24:KNOWN_AGAIN]))

    assert median(60) < 0.7 * median(1)


def test_restarts_together_are_never_worse_than_layerwise_or_one_of_them():
    problem = Problem(separable(blocks=2), Rules(LARGE, "dosa"))
    found = descend(problem, Effort(restarts=8, steps=20))
    energy, latency = Decoder(problem, Encoding.of(problem)).cost(found.batch())
    together = found.best.energy * found.best.latency
    assert together <= (energy * latency).min() * (1 + 1e-9)
    assert (
        together
        <= optimize(problem.graph, LARGE, profile="dosa", method="layerwise").cost.edp_uj_cycles * 1e6
    )
    exactly = problem.cost(problem.schedule(found.best.argmin))
    assert exactly.edp_uj_cycles * 1e6 == pytest.approx(together)


def test_groups_found_are_connected():
    problem = Problem(separable(blocks=3), Rules(LARGE, "dosa"), most_members=3)
    found = groups_found(problem, descend(problem, Effort(restarts=8, steps=30)))
    assert found
    pairs = set(network_of(problem.graph).edge_of)
    for layers, _ in found:
        assert 2 <= len(layers) <= 3
        assert all(pair in pairs for pair in itertools.pairwise(layers))


def test_descent_trains_the_edges_of_an_add():
    """Descent alone, decoded without the exact polish, fuses a residual block across its add, at little more
    than half the best without adds in groups (fences of its tiles included)."""
    graph = bottleneck(32, 8, 8)
    rules = Rules(load_target("gemmini-small"))
    problem = Problem(graph, rules)
    schedule = problem.schedule(descend(problem, Effort(restarts=16, steps=120)).best.argmin)
    assert [group.layers for group in schedule.groups] == [("a", "b", "sum", "c")]
    without = Problem(graph, rules, fuses_adds=False, residency=False)
    partition = exact(without).partition  # (of single instructions in part, which no proof is about)
    assert evaluate(schedule).edp_uj_cycles < 0.55 * without.cost(without.schedule(partition)).edp_uj_cycles


def test_joint_search_beats_mapping_first_in_a_residual_block():
    """With the layers' own best mappings no group tile comes near what mapping for the group gives.  Descent
    without the exact polish finds the group, and how near it comes differs with torch's arithmetic."""
    graph = bottleneck(16, 16, 8)
    small = load_target("gemmini-small")
    problem = Problem(graph, Rules(small))
    descent = problem.schedule(descend(problem, Effort()).best.argmin)
    joint = optimize(graph, small, residency=False)
    for schedule in (descent, joint.schedule):
        assert [group.layers for group in schedule.groups] == [("a", "b", "sum", "c")]
    alone = optimize(graph, small, method="layerwise")
    mappings = alone.schedule.mappings
    later = [alone.cost.edp_uj_cycles]
    for layers in (("a", "b"), ("a", "b", "sum"), ("b", "sum"), ("b", "sum", "c"), ("a", "b", "sum", "c")):
        rest = [FusionGroup((name,)) for name in ("a", "b", "sum", "c") if name not in layers]
        for p, q, stay in itertools.product(extents(16, "ragged"), extents(16, "ragged"), (True, False)):
            resident = frozenset(layers) - {"sum"} if stay else frozenset()
            groups = [*rest, FusionGroup(layers, GroupTile(1, p, q), resident)]
            groups.sort(key=lambda group: ("a", "b", "sum", "c").index(group.layers[-1]))
            try:
                schedule = Schedule(graph, small, mappings, tuple(groups))
            except ScheduleError:
                continue
            later.append(evaluate(schedule).edp_uj_cycles)
    assert len(later) > 10
    assert joint.cost.edp_uj_cycles < 0.9 * min(later)
    assert joint.cost.edp_uj_cycles <= evaluate(descent).edp_uj_cycles < 0.9 * alone.cost.edp_uj_cycles


def test_a_short_budget_takes_restarts_away():
    problem = Problem(separable(), Rules(LARGE, "dosa"), time_budget=0.01)
    few = descend(problem, Effort(restarts=32, steps=200))
    assert len(few.loss) == FEWEST_RESTARTS
    plenty = Problem(separable(), Rules(LARGE, "dosa"), time_budget=1000.0)
    assert len(descend(plenty, Effort(restarts=6, steps=3)).loss) == 6


def test_what_is_left_of_a_budget_is_for_other_restarts(monkeypatch):
    """Nothing is ever proven here, so that descents follow each other until time is up: after three."""
    seen = []

    def other(problem, effort, again):
        seen.append(again)
        return descend(problem, Effort(4, 2), again)

    monkeypatch.setattr("fadiff.optimizer.gradient.joint.descend", other)
    monkeypatch.setattr("fadiff.optimizer.gradient.joint.CERTIFIED_FRONTS", -1000)
    monkeypatch.setattr(Problem, "out_of_time", lambda problem, share=1.0: len(seen) == 3)
    gradient(Problem(residual(), Rules(LARGE), time_budget=1000.0))
    assert seen == [0, 1, 2]


def test_the_papers_form_can_be_asked_for():
    """Linear distance is Eq. 1; its softmax saturates, so what it finds before polish differs."""
    found = {}
    for form in ("log", "paper"):
        problem = Problem(separable(), Rules(LARGE, "dosa"), relaxation=form)
        found[form] = descend(problem, Effort(restarts=4, steps=20)).extents
    assert not torch.equal(found["log"], found["paper"])
    assert optimize(separable(blocks=1), LARGE, relaxation="paper", time_budget=3.0).bound in (
        "proven",
        "relaxed",
    )


def test_progress_says_best_edp_and_feasible_share():
    said = []
    problem = Problem(separable(), Rules(LARGE, "dosa"), progress=said.append)
    descend(problem, Effort(restarts=8, steps=60))
    assert any("best EDP" in line and "% feasible" in line for line in said)


def test_a_target_without_a_tile_buffer(monkeypatch):
    """Nothing can be fused through it: the descent stays finite and the search ends with single layers."""
    monkeypatch.setattr("fadiff.optimizer.gradient.joint.Effort", lambda: Effort(4, 40))
    target = load_target("gemmini-small").model_copy(update={"tile_buffer_bytes": 0})
    found = optimize(residual(8, 8), target, method="gradient", seed=0)
    assert all(len(group.layers) == 1 for group in found.schedule.groups)
