"""Random chains and branching graphs: whatever is fused, the differentiable twin equals the exact model."""

import math

import networkx as nx
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.group.nodes import Node
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.shape import shape_of
from fadiff.costmodel.relaxed.model import ORDERS
from fadiff.costmodel.schedule.evaluate import group_cost
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile
from tests.costmodel.networks import conv, graph
from tests.costmodel.relaxed_cases import SIDE, TARGET, Case, branching, cases, chains, fusable_edges, looped


def assert_equal(case, profile, *, paper=False):
    options = {"fusion_model": "paper"} if paper else {}
    cost = case.relaxed(TARGET, profile, **options)
    assert cost.penalties["shape"].item() == pytest.approx(0, abs=1e-12)
    by_clock = profile == "hw" and not paper
    mappings = {name: looped(mapping, profile) for name, mapping in case.mappings.items()}
    exact = {}
    for group in case.groups:
        for one in group_cost(case.network, group, mappings, TARGET, profile, paper=paper):
            exact[one.name] = one
    for index, layer in enumerate(case.network.layers):
        one = exact[layer.name]
        moved = {}
        for _, move in one.moves:
            moved[move.memory] = moved.get(move.memory, 0) + move.bytes
        for memory, total in cost.memory_bytes.items():
            assert total[0, index].item() == pytest.approx(moved.get(memory, 0), rel=1e-9), (
                layer.name,
                memory,
            )
        assert cost.energy_pj[0, index].item() == pytest.approx(one.energy_pj, rel=1e-9), layer.name
        cycles = cost.latency_cycles[0, index].item()
        if by_clock and layer.op == "add":  # without waits between its operands
            assert 0 < cycles <= one.latency_cycles + 1, layer.name
        else:
            assert cycles == pytest.approx(one.latency_cycles, rel=1e-9, abs=1), layer.name


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_chain_equals_exact(profile, data):
    case, executable = data.draw(cases(data.draw(chains())))
    assume(executable)
    assert_equal(case, profile)


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_branching_graph_equals_exact(profile, data):
    case, executable = data.draw(cases(data.draw(branching())))
    assume(executable)
    assert_equal(case, profile)


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_paper_model_equals_exact(profile, data):
    case, executable = data.draw(cases(data.draw(st.one_of(chains(), branching())), paper=True))
    assume(executable)
    assert_equal(case, profile, paper=True)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_shape_penalty_is_zero_exactly_for_groups_that_run(data):
    case, executable = data.draw(cases(data.draw(st.one_of(chains(), branching()))))
    assume(executable or not deadlocked(case))  # decoding takes such groups apart
    assert (case.relaxed().penalties["shape"].item() < 1e-12) == executable


def deadlocked(case):
    """Whether groups that could run one by one wait for each other."""
    dag = nx.DiGraph(case.edges)
    dag.add_nodes_from(range(len(case.nodes)))
    members = [[case.index_of(name) for name in group.layers] for group in case.groups]

    def acyclic(joined):
        quotient = dag
        for group in joined:
            for other in group[1:]:
                quotient = nx.contracted_nodes(quotient, group[0], other, self_loops=False)
        return nx.is_directed_acyclic_graph(quotient)

    return all(acyclic([group]) for group in members) and not acyclic(members)


RULES = ("mapping", "array", "memory", "buffer", "final", "shape")


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_penalties_are_zero_exactly_for_legal_schedules(profile, data):
    """Memories of random sizes: legality and penalties draw the same line, group by group."""
    case, executable = data.draw(cases(data.draw(st.one_of(chains(), branching()))))
    assume(executable)
    target = TARGET.model_copy(
        update={
            "scratchpad_bytes": SIDE * 2 ** data.draw(st.integers(3, 12)),
            "accumulator_bytes": 4 * SIDE * 2 ** data.draw(st.integers(2, 9)),
            "tile_buffer_bytes": 2 ** data.draw(st.integers(3, 16)),
        }
    )
    try:
        case.schedule(target, profile)
    except ScheduleError as error:
        legal, why = False, str(error)
    else:
        legal, why = True, ""
    found = case.relaxed(target, profile).penalties
    broken = {name: found[name].item() for name in RULES if found[name].item() > 1e-9}
    assert (not broken) == legal, (broken, why)


def test_tile_buffer_is_free_for_every_group_anew():
    """Two pairs of layers, each with room for its own intermediate only."""
    layers = [conv(f"l{i}", f"t{i}", f"t{i + 1}", 16, 16, 8, 8, 3, 1, 1) for i in range(4)]
    network = graph(layers, ("t0",), ("t4",))
    groups = [
        FusionGroup((f"l{i}", f"l{i + 1}"), GroupTile(1, 8, 8), frozenset((f"l{i}", f"l{i + 1}")))
        for i in (0, 2)
    ]
    whole = Mapping(
        Dims(K=16, C=16, P=8, Q=8, R=3, S=3),
        Dims(K=16, C=16, P=8, Q=8, R=3, S=3),
        Dims(K=16, C=16, P=8, Q=8),
        Dims(C=16),
        Dims(K=16),
        *ORDERS[0],
    )
    sigma = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
    nodes = [Node(shape_of(layer)) for layer in layers]
    case = Case(
        network, groups, {layer.name: whole for layer in layers}, nodes, fusable_edges(network), sigma
    )
    one = 8 * 8 * 16
    fits = TARGET.model_copy(update={"tile_buffer_bytes": one})
    case.schedule(fits)
    assert case.relaxed(fits).penalties["buffer"].item() == 0
    short = TARGET.model_copy(update={"tile_buffer_bytes": one // 2})
    with pytest.raises(ScheduleError, match="tile-buffer"):
        case.schedule(short)
    assert case.relaxed(short).penalties["buffer"].item() == pytest.approx(2 * math.log(2) ** 2)
