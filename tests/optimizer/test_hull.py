"""Hull machinery against brute force over all choices."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fadiff.optimizer.layer.fronts import minkowski
from fadiff.optimizer.layer.hull import Solution, lower_hull, minimise_edp, pareto_front

points = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=8)
layers = st.lists(points, min_size=1, max_size=4)


def solver(parts):
    def solve(a, b):
        chosen = [min(part, key=lambda p: a * p[0] + b * p[1]) for part in parts]
        return Solution(float(sum(p[0] for p in chosen)), float(sum(p[1] for p in chosen)), tuple(chosen))

    return solve


def best_product(parts):
    return min(sum(p[0] for p in c) * sum(p[1] for p in c) for c in product(*parts))


@given(layers)
def test_minimum_and_bound_equal_brute_force(parts):
    result = minimise_edp(solver(parts))
    best = best_product(parts)
    assert result.best.energy * result.best.latency == best
    assert result.lower_bound == pytest.approx(best)


@given(layers, st.integers(2, 4))
def test_bound_holds_when_stopped_early(parts, limit):
    result = minimise_edp(solver(parts), limit=limit)
    assert result.lower_bound <= best_product(parts) * (1 + 1e-9)


@given(points)
def test_pareto_front_is_what_nothing_beats(part):
    e, lat = (np.array(x, dtype=float) for x in zip(*part, strict=True))
    front = {(e[i], lat[i]) for i in pareto_front(e, lat)}
    expected = {p for p in part if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in part)}
    assert front == {(float(a), float(b)) for a, b in expected}


@given(layers)
def test_minkowski_sum_is_the_hull_of_all_sums(parts):
    fronts = []
    for part in parts:
        e, lat = (np.array(x, dtype=float) for x in zip(*part, strict=True))
        hull = lower_hull(e, lat)
        fronts.append((e[hull], lat[hull]))
    energy, latency, choice = minkowski(fronts)
    for a, b in ((1.0, 1e-6), (1e-6, 1.0), (1.0, 1.0), (3.0, 2.0), (1.0, 7.0)):
        exact = sum(min(a * p[0] + b * p[1] for p in part) for part in parts)
        assert (a * energy + b * latency).min() == pytest.approx(exact)
    for row, e, lat in zip(choice, energy, latency, strict=True):
        assert e == sum(f[0][i] for f, i in zip(fronts, row, strict=True))
        assert lat == sum(f[1][i] for f, i in zip(fronts, row, strict=True))
