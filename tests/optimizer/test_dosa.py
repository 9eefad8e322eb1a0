"""DOSA's model, rounding, start points and map-space."""

import numpy as np
import pytest
import torch

from fadiff.converter.ir.loops import DIMS
from fadiff.costmodel.mapping.columns import MappingColumns
from fadiff.costmodel.mapping.shape import shape_of
from fadiff.costmodel.relaxed.model import ORDERS
from fadiff.costmodel.schedule.batch import evaluate_columns
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer import optimize
from fadiff.optimizer.gradient.cosa import TILED, cosa_start, hardware_of
from fadiff.optimizer.gradient.dosa import _nearest
from fadiff.optimizer.gradient.dosa_loss import FACTORS, DosaLoss
from fadiff.optimizer.layer.candidates import divisors
from tests.costmodel.networks import conv
from tests.optimizer.graphs import Net, separable

SMALL, LARGE = load_target("gemmini-small"), load_target("gemmini-large")
SHAPES = [
    shape_of(conv("a", "x", "y", 24, 32, 8, 8, 3, 1, 1)),
    shape_of(conv("b", "x", "y", 48, 16, 6, 6, 1, 2, 0)),
]


def random_factors(rng, shape):
    """Divisors that leave nothing over; spatial factors within an array of 16."""
    found = dict.fromkeys(FACTORS, 1)
    for d in TILED:
        left = shape.dims[d]
        names = {"C": ["rows", "c"], "K": ["columns", "k"], "P": ["p0", "p"], "Q": ["q0", "q"]}.get(
            d, [d.lower()]
        )
        for name in names:
            options = [x for x in divisors(left) if name not in ("rows", "columns") or x <= 16]
            found[name] = int(rng.choice(options))
            left //= found[name]
    return [found[name] for name in FACTORS]


def test_model_equals_the_exact_one_at_divisors():
    rng = np.random.default_rng(0)
    factors = np.array([[random_factors(rng, shape) for shape in SHAPES] for _ in range(60)])
    order = rng.integers(0, 3, factors.shape[:2])
    loss = DosaLoss(SHAPES, [1, 1], [1, 1], SMALL)
    energy, latency = loss.cost(torch.tensor(factors, dtype=torch.float32), torch.from_numpy(order))
    for i, shape in enumerate(SHAPES):
        f = dict(zip(FACTORS, factors[:, i].T, strict=True))
        tile = {d: f[d.lower()] for d in TILED}
        tile |= {
            "C": f["c"] * f["rows"],
            "K": f["k"] * f["columns"],
            "P": f["p"] * f["p0"],
            "Q": f["q"] * f["q0"],
        }
        one = np.ones_like(f["c"])
        l2 = np.stack([tile.get(d, one) for d in DIMS], axis=1)
        rows = np.stack([f["rows"] if d == "C" else one for d in DIMS], axis=1)
        cols = np.stack([f["columns"] if d == "K" else one for d in DIMS], axis=1)
        orders = tuple((o.l3, o.l2, o.l1) for o in ORDERS)
        columns = MappingColumns(l2.T, l2.T, (rows * cols).T, rows.T, cols.T, orders, order[:, i])
        exact = evaluate_columns(shape, columns, SMALL, "dosa")
        np.testing.assert_allclose(energy[:, i], exact.energy, rtol=1e-4)
        np.testing.assert_allclose(latency[:, i], exact.latency, atol=1, rtol=1e-4)


def test_penalties_count_missing_factors_and_excess():
    loss = DosaLoss(SHAPES[:1], [1], [1], SMALL)
    legal = torch.ones(1, 1, len(FACTORS))
    assert loss.penalties(legal).item() == 0
    half = legal.clone()
    half[..., FACTORS.index("p")] = 0.5
    assert loss.penalties(half).item() == pytest.approx(0.25)
    wide = legal.clone()
    wide[..., FACTORS.index("rows")] = SMALL.side + 2  # columns of C: within the layer, beyond the array
    assert loss.penalties(wide).item() == pytest.approx(40)


@pytest.mark.parametrize(
    ("factor", "left", "nearest"), [(5.4, 12, 6), (4.4, 12, 4), (0.2, 12, 1), (7.6, 21, 7)]
)
def test_rounding_takes_the_nearest_divisor(factor, left, nearest):
    assert _nearest(factor, left) == nearest


def test_start_fills_the_buffers():
    """All of a small layer fits: the start is the whole layer on as much of the array as divides it."""
    start = cosa_start(SHAPES[0], hardware_of(LARGE), LARGE)
    assert start.tile == tuple(SHAPES[0].dims[d] for d in TILED)
    assert (start.rows, start.columns) == (32, 24)


def test_result_is_in_dosas_map_space(monkeypatch):
    monkeypatch.setattr("fadiff.optimizer.gradient.dosa.STEPS", 40)
    monkeypatch.setattr("fadiff.optimizer.gradient.dosa.ROUND_EVERY", 20)
    found = optimize(separable(size=12), SMALL, method="dosa", profile="dosa")
    for layer in found.schedule.graph.tensor_core_layers:
        mapping = found.schedule.mappings[layer.name]
        assert mapping.is_divisor(layer.dims)
        assert mapping.tile_l1 == mapping.tile_l2
        assert mapping.rows.S == 1


def test_a_network_without_array_layers_has_nothing_to_search():
    net = Net(8, 4)
    found = optimize(net.build(net.add("a", net.x, net.x)), SMALL, method="dosa")
    assert not found.schedule.mappings
