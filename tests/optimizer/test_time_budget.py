"""A time budget covers all of a search: no work is begun after it but what every result needs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fadiff.costmodel.target.target import load_target
from fadiff.optimizer import Settings, optimize
from fadiff.optimizer.baselines import genetic, random_search
from fadiff.optimizer.baselines.random_search import random_search as drawn
from fadiff.optimizer.baselines.stage import Stage
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.dram_limit import automatic_bytes, within
from fadiff.optimizer.layer.hull import HullResult, Solution
from fadiff.optimizer.layer.space import Rules
from tests.optimizer.graphs import residual, separable

LARGE = load_target("gemmini-large")
OVER = 1e-9
"""Seconds: over when the first is asked for."""


def test_no_group_is_priced_when_time_is_up():
    spent, plenty = (
        Problem(separable(), Rules(LARGE), time_budget=budget, residency=False) for budget in (OVER, 1e9)
    )
    group = next(iter(spent.candidates))
    for problem in (spent, plenty):
        problem.unfused(group)  # single layers are needed in any case
    before = len(spent.fronts)
    assert not len(spent.price_group(group)) and len(spent.fronts) == before
    assert len(plenty.price_group(group)) and len(plenty.fronts) > before


def test_no_population_is_begun_when_time_is_up():
    def never(rows: np.ndarray) -> np.ndarray:
        raise AssertionError("evaluated")

    over = Stage(np.array([3]), np.array([0]), never, is_over=lambda: True, is_timed=True, seed=0)
    genetic.evolve(over)
    random_search.draw_rows(over)


def test_the_bound_of_a_baseline_is_on_its_budget(monkeypatch):
    seen = []

    def search(problem):
        seen.append((problem.time_budget, len(problem.fronts), problem.seconds))
        return drawn(problem)

    def slow(problem):
        problem.alone  # noqa: B018 - fronts that the baseline must not profit from
        problem.started -= 60.0
        return HullResult(Solution(1.0, 1.0, ()), 1.0)

    monkeypatch.setattr("fadiff.optimizer.search.relaxed", slow)
    monkeypatch.setattr("fadiff.optimizer.baselines.random_search.random_search", search)
    found = optimize(separable(blocks=1), LARGE, method="random", time_budget=60.5)
    ((budget, fronts, seconds),) = seen
    assert budget <= 0.5 and fronts == 0 and seconds < 60
    assert found.seconds >= 60 and found.lower_bound == 1e-6


@pytest.mark.parametrize("method", ["gradient", "exact", "random", "genetic", "bayesian", "dosa"])
def test_there_is_a_schedule_and_a_bound_without_any_time(method):
    found = optimize(separable(blocks=1), LARGE, method=method, time_budget=OVER)
    assert 0 < found.lower_bound <= found.value * (1 + 1e-9) and math.isfinite(found.gap)


def test_what_is_settled_after_a_search_has_its_own_time():
    found = optimize(residual(), LARGE, method="layerwise", time_budget=OVER)
    same = optimize(residual(), LARGE, method="layerwise")
    limit = automatic_bytes(residual(), LARGE)
    assert within(found, limit).cost.dram_bytes == within(same, limit).cost.dram_bytes <= limit


def test_searches_without_a_budget_have_a_limit_that_grows_with_the_network(monkeypatch):
    settings = Settings()
    assert settings.limit(residual()) > settings.limit(separable()) > 60
    assert Settings(time_budget=3).limit(separable()) == 3
    whole = optimize(separable(), LARGE, settings)
    monkeypatch.setattr("fadiff.optimizer.cut.settings.AMPLE_SECONDS", 0.0)
    monkeypatch.setattr("fadiff.optimizer.cut.settings.AMPLE_SECONDS_PER_LAYER", 0.0)
    cut_short = optimize(separable(), LARGE, settings)
    assert cut_short.value >= whole.value
    assert len(cut_short.history) <= len(whole.history)
