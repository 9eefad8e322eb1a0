"""The differentiable twin equals the exact model wherever the relaxation is integral."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.evaluate import layer_cost
from costmodel.relaxed import ORDERS, Node, RelaxedModel, RelaxedPoint
from costmodel.target import load_target
from tests.costmodel.strategies import layer_shapes, mappings

SMALL = load_target("gemmini-small")


def point_of(mappings_, orders=ORDERS, sigma=None, dtype=torch.float64):
    """One restart at the given integer mappings."""

    def stack(name):
        return torch.tensor([[list(getattr(m, name)) for m in mappings_]], dtype=dtype)

    index = [
        next(i for i, o in enumerate(orders) if (o.l3, o.l2, o.l1) == (m.order_l3, m.order_l2, m.order_l1))
        for m in mappings_
    ]
    order = torch.nn.functional.one_hot(torch.tensor([index]), len(orders)).to(dtype)
    return RelaxedPoint(
        stack("tile_l2"), stack("tile_l1"), stack("tile_l0"), stack("rows"), stack("cols"), order, sigma
    )


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_unfused_layer_equals_exact(profile, data):
    shape = data.draw(layer_shapes())
    mapping = data.draw(mappings(shape, orders=ORDERS))
    exact = layer_cost(shape, mapping, SMALL, profile)
    model = RelaxedModel([Node(shape)], [], SMALL, profile, dtype=torch.float64)
    cost = model(point_of([mapping]))
    per_memory = {}
    for move in exact.moves:
        per_memory[move.memory] = per_memory.get(move.memory, 0) + move.bytes
    for memory, moved in cost.memory_bytes.items():
        assert moved.item() == pytest.approx(per_memory.get(memory, 0), rel=1e-9), memory
    assert cost.energy_pj.item() == pytest.approx(exact.energy_pj, rel=1e-9)
    assert math.ceil(cost.latency_cycles.item() - 1e-6) == exact.latency_cycles
