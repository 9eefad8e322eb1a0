"""The default method: enumeration first, descent on what stays open."""

import subprocess
import sys

import pytest

from fadiff.console import Console
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer import optimize
from fadiff.optimizer.auto import auto
from fadiff.optimizer.cut.problem import Problem
from fadiff.optimizer.gradient.descent import Effort
from fadiff.optimizer.layer.space import Rules
from fadiff.search import SearchOptions, find_schedule
from tests.optimizer.graphs import residual, separable

SMALL = load_target("gemmini-small")


def test_descent_works_on_what_enumeration_leaves_open(monkeypatch):
    monkeypatch.setattr("fadiff.optimizer.auto.CERTIFIED_FRONTS", 2)
    monkeypatch.setattr("fadiff.optimizer.gradient.joint.CERTIFIED_FRONTS", 20)
    monkeypatch.setattr("fadiff.optimizer.gradient.joint.Effort", lambda: Effort(4, 30))
    graph = residual(size=16, channels=16)
    found, best, alone = (
        optimize(graph, SMALL, profile="dosa", method=method) for method in ("auto", "exact", "layerwise")
    )
    assert found.settled is not None and found.settled < 1
    assert found.steps >= 30  # of descent
    assert found.lower_bound <= best.value * (1 + 1e-9) <= found.value * (1 + 2e-9)
    assert found.value < 0.9 * alone.value


def test_without_torch_layers_stay_open_and_a_warning_says_how_to_get_it(monkeypatch, capfd):
    monkeypatch.setattr("fadiff.optimizer.auto.CERTIFIED_FRONTS", 2)
    for module in ("fadiff.optimizer.auto", "fadiff.search"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    graph, search = residual(size=16, channels=16), SearchOptions(profile="dosa")
    found = find_schedule(graph, SMALL, search, Console(-1))
    assert found.settled is not None and found.settled < 1
    assert 0 < found.lower_bound <= found.value
    assert "pip install 'fadiff[torch]'" in capfd.readouterr().err


def test_only_open_layers_and_what_may_fuse_with_them_descend():
    problem = Problem(residual(), Rules(SMALL, "dosa"))
    assert {"a1", "a2", "b1", "b2", "b_down"} <= problem.network.node_of.keys()
    some = Problem(residual(), Rules(SMALL, "dosa"), open=frozenset({"a1"}))
    assert some.network.node_of.keys() == {"a1", "a2"}
    assert some.is_open(("a1", "a2")) and not some.is_open(("b1", "b2"))


@pytest.mark.parametrize("method", ["auto", "exact", "layerwise"])
def test_torch_stays_away_where_nothing_descends(method):
    code = (
        "import sys\n"
        "from fadiff.costmodel.target.target import load_target\n"
        "from fadiff.optimizer import optimize\n"
        "from tests.optimizer.graphs import separable\n"
        f"found = optimize(separable(blocks=1), load_target('gemmini-small'), method='{method}')\n"
        "assert found.gap < 1e-9 and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_proof_settles_all_layers():
    problem = Problem(separable(blocks=1), Rules(SMALL, "hw"))
    assert auto(problem).complete
    assert problem.settled == 1
