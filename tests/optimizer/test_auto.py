"""The default method enumerates, and knows when to stop."""

import subprocess
import sys

import pytest

from fadiff.costmodel.target.target import load_target
from fadiff.optimizer import optimize
from tests.optimizer.graphs import residual

SMALL = load_target("gemmini-small")


@pytest.mark.parametrize("profile", ["hw", "dosa"])
def test_it_ends_with_the_best_schedule_known_and_a_bound(monkeypatch, profile):
    monkeypatch.setattr("fadiff.optimizer.search.CERTIFIED_FRONTS", 2)
    graph = residual(size=16, channels=16)
    found, best, alone = (
        optimize(graph, SMALL, profile=profile, method=method) for method in ("auto", "exact", "layerwise")
    )
    assert found.bound == "relaxed" and best.bound == "proven"
    assert found.lower_bound <= best.value * (1 + 1e-9) <= found.value * (1 + 2e-9)
    assert found.value <= alone.value


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
