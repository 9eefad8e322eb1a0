"""Whatever a search proposes, the decoded schedule is legal and costs what the decoder says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.evaluate import evaluate
from costmodel.target import load_target
from optimizer.decode import VARIABLES, Batch, Decoder, Encoding
from optimizer.problem import Problem
from optimizer.space import Rules
from tests.optimizer.graphs import residual, separable

GRAPHS = {"separable": separable(), "residual": residual()}


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("tiling", ["ragged", "divisor"])
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), fused=st.floats(0, 1))
def test_every_point_decodes_to_a_legal_schedule(profile, name, tiling, seed, fused):
    graph = GRAPHS[name]
    problem = Problem(graph, Rules(load_target("gemmini-small"), profile, tiling, True))
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
