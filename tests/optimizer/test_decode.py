"""Whatever a search proposes, the decoded schedule is legal and costs what the decoder says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer.cut.decode import VARIABLES, Batch, Decoder, Encoding
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.layer.space import Rules
from tests.optimizer.graphs import Net, random_dags, residual, separable

GRAPHS = {"separable": separable(), "residual": residual()}


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("tiling", ["ragged", "divisor"])
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), fused=st.floats(0, 1))
def test_every_point_decodes_to_a_legal_schedule(profile, name, tiling, seed, fused):
    decodes(Problem(GRAPHS[name], Rules(load_target("gemmini-small"), profile, tiling, True)), seed, fused)


@settings(max_examples=30, deadline=None)
@given(graph=random_dags(), seed=st.integers(0, 10**6), fused=st.floats(0.3, 1))
def test_every_point_of_a_random_dag_decodes_to_a_legal_schedule(graph, seed, fused):
    decodes(Problem(graph, Rules(load_target("gemmini-small"))), seed, fused)


def decodes(problem, seed, fused):
    """Random points are legal schedules that cost what the decoder says."""
    encoding = Encoding.of(problem)
    rng = np.random.default_rng(seed)
    batch = Batch(
        rng.integers(1, 40, (3, encoding.nodes, len(VARIABLES))),
        rng.integers(0, 3, (3, encoding.nodes)),
        rng.random((3, encoding.edges)) < fused,
    )
    decoder = Decoder(problem, encoding)
    energy, latency = decoder.cost(batch)
    for b in range(len(batch)):
        schedule = problem.schedule(decoder.partition(batch, b))  # raises if illegal
        cost = evaluate(schedule)
        assert cost.energy_pj == pytest.approx(energy[b], rel=1e-9)
        assert cost.latency_cycles == latency[b]


def test_fused_edges_become_groups():
    problem = Problem(GRAPHS["separable"], Rules(load_target("gemmini-large"), "hw"))
    encoding = Encoding.of(problem)
    full = np.full((1, encoding.nodes, len(VARIABLES)), 16)
    batch = Batch(full, np.zeros((1, encoding.nodes), dtype=int), np.ones((1, encoding.edges), dtype=bool))
    schedule = problem.schedule(Decoder(problem, encoding).partition(batch, 0))
    assert any(len(group.layers) > 1 for group in schedule.groups)


def test_a_fused_edge_takes_the_host_operator_in_between_along():
    net = Net(16, 8)
    graph = net.build(net.conv("b", net.lookup("table", net.conv("a", net.x, 32)), 8))
    problem = Problem(graph, Rules(load_target("gemmini-large")))
    encoding = Encoding.of(problem)
    assert set(encoding.network.edge_of) == {("a", "b")}
    full = np.full((1, encoding.nodes, len(VARIABLES)), 16)
    batch = Batch(full, np.zeros((1, encoding.nodes), dtype=int), np.ones((1, 1), dtype=bool))
    schedule = problem.schedule(Decoder(problem, encoding).partition(batch, 0))
    assert [group.layers for group in schedule.groups] == [("a", "table", "b")]


def test_groups_that_would_wait_for_each_other_fall_apart():
    """Two crossing pairs, each convex: a1 -> a2 needs b1's pair first, and the other way round."""
    net = Net(8, 8)
    a1, b1 = net.conv("a1", net.x, 8), net.conv("b1", net.x, 8)
    a2 = net.add("a2", a1, b1)
    b2 = net.add("b2", b1, a1)
    problem = Problem(net.build(a2, b2), Rules(load_target("gemmini-large")))
    encoding = Encoding.of(problem)
    edge_of = encoding.network.edge_of
    for wanted in ({("a1", "a2"), ("b1", "b2")}, set(edge_of)):
        fused = np.array([[pair in wanted for pair in sorted(edge_of, key=edge_of.__getitem__)]])
        full = np.full((1, encoding.nodes, len(VARIABLES)), 8)
        batch = Batch(full, np.zeros((1, encoding.nodes), dtype=int), fused)
        schedule = problem.schedule(Decoder(problem, encoding).partition(batch, 0))
        groups = [group.layers for group in schedule.groups if len(group.layers) > 1]
        assert len(groups) <= 1


def test_every_point_is_near_what_a_loop_unit_runs():
    problem = Problem(separable(size=4, channels=4, blocks=1), Rules(load_target("gemmini-small")))
    encoding = Encoding.of(problem)
    shape = (1, encoding.nodes, len(VARIABLES))
    batch = Batch(
        np.ones(shape, np.int64), np.zeros(shape[:2], np.int64), np.zeros((1, encoding.edges), np.bool_)
    )
    decoder = Decoder(problem, encoding)
    assert np.isfinite(decoder.alone(batch)[0]).all()
    schedule = problem.schedule(decoder.best(batch).argmin)
    assert all(mapping.issue != "instructions" for mapping in schedule.mappings.values())
