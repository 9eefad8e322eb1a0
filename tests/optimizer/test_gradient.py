"""The relaxation and its descent."""

import torch

from costmodel.target import load_target
from optimizer.decode import VARIABLES, Batch, Decoder, Encoding
from optimizer.gradient import Effort, descend, proposals, schedule_at
from optimizer.network import relaxed_network
from optimizer.problem import Problem
from optimizer.relaxation import Relaxation
from optimizer.space import LayerSpace, Rules
from tests.optimizer.graphs import Net, residual, separable

LARGE = load_target("gemmini-large")


def relaxation_of(graph, form="log", profile="dosa"):
    network = relaxed_network(graph, fusion=True)
    spaces = [LayerSpace.alone(shape, Rules(LARGE, profile)) for shape in network.shapes]
    return network, Relaxation(spaces, network.edges, form)


def test_schedules_anneal():
    tau, beta, weight = zip(*(schedule_at(f) for f in (0.0, 0.5, 1.0)), strict=True)
    assert tau[0] == 1 and abs(tau[2] - 0.1) < 1e-12 and tau[0] > tau[1] > tau[2]
    assert beta == tuple(sorted(beta)) and weight == tuple(sorted(weight))


def test_samples_are_candidates_with_gradients():
    for form in ("log", "paper"):
        _, relaxation = relaxation_of(separable(), form)
        generator = torch.Generator().manual_seed(0)
        variables = relaxation.start(5, generator)
        choices = relaxation.sample(variables, 1.0, generator)
        for i, lists in enumerate(relaxation.lists):
            for j, extents in enumerate(lists):
                found = choices.extents[:, i, j].detach().round().long().tolist()
                assert set(found) <= set(extents), (VARIABLES[j], form)
        choices.extents.log().sum().backward()
        assert torch.isfinite(variables.x.grad).all()


def test_fused_pairs_walk_one_grid():
    """With sigma one, the producer's tile is the consumer's input box (halo of the 3x3 included)."""
    net = Net(16, 8)
    graph = net.build(net.conv("second", net.conv("first", net.x, 8, 3), 8, 3))
    network, relaxation = relaxation_of(graph)
    variables = relaxation.start(4, torch.Generator().manual_seed(1))
    with torch.no_grad():
        variables.sigma.fill_(9.0)
        choices = relaxation.sample(variables, 0.1, None)
        point = relaxation.point(choices)
    first, second = network.node_of["first"], network.node_of["second"]
    for axis in (4, 5):  # P, Q of (G N K C P Q R S)
        need = (point.l2[:, second, axis] + 2).clamp(max=16)
        assert torch.allclose(point.l2[:, first, axis], need, rtol=1e-4)


def test_identical_layers_share_a_node():
    net = Net(8, 8)
    x = net.x
    for i in range(9):
        x = net.conv(f"c{i}", x, 8, 3)
    network = relaxed_network(net.build(x), fusion=True)
    assert len(network.shapes) < 9 and sum(network.repeats) == 9
    assert network.node_of["c4"] == network.node_of["c5"]


def test_descent_improves_on_its_start():
    problem = Problem(residual(size=16), Rules(LARGE, "dosa"))
    encoding = Encoding.of(problem)
    decoder = Decoder(problem, encoding)

    def best(steps):
        found = descend(problem, Effort(restarts=8, steps=steps))
        batch = Batch(found.extents.numpy(), found.order.numpy(), found.fused.numpy())
        energy, latency = decoder.cost(batch)
        return float((energy * latency).min())

    assert best(80) < 0.8 * best(1)


def test_proposals_are_connected_groups():
    problem = Problem(separable(blocks=3), Rules(LARGE, "dosa"))
    found = proposals(problem, descend(problem, Effort(restarts=8, steps=30)), most=3)
    assert found
    pairs = set(relaxed_network(problem.graph, fusion=True).pairs)
    for proposal in found:
        assert 2 <= len(proposal.layers) <= 3
        assert all(pair in pairs for pair in zip(proposal.layers, proposal.layers[1:], strict=False))
