"""Which layers take the place of others follows the objective."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rtl import converted
from fadiff.costmodel.schedule.evaluate import NetworkCost
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer.cut.partition import Objective
from fadiff.optimizer.cut.settings import Settings
from fadiff.optimizer.realise.choice import CLOSE, EXACT, Cheaper, realised_graph
from fadiff.optimizer.search import optimize

STEM = "3x48x48 c16k3s2 r dw3 r c24k1"
"""With merged columns fewer cycles, but no group with the depthwise layer: more bytes."""


@pytest.mark.parametrize(
    "text", [STEM, "24x5x5 se8", "16x8x8 c16k3 &0 mp2", "32x8x8 gap fc10", "80x96 ln fc96"]
)
def test_no_objective_is_served_better_by_another(text: str, tmp_path: Path) -> None:
    """Nor is EDP without any of these layers."""
    target = load_target("gemmini-default")
    graph = converted(text, target, tmp_path)[0].graph

    def cost(objective: Objective, realises: bool = True) -> NetworkCost:
        settings, found = Settings(objective=objective), graph
        if realises:
            found = realised_graph(graph, target, (*CLOSE, *EXACT), Cheaper(graph, target, settings))
        return optimize(found, target, settings).cost

    default = cost("edp")
    assert cost("latency").latency_cycles <= default.latency_cycles
    assert cost("energy").energy_pj <= default.energy_pj * (1 + 1e-9)
    assert default.edp_uj_cycles <= cost("edp", realises=False).edp_uj_cycles * (1 + 1e-9)


def test_a_stem_is_merged_for_cycles_and_not_for_energy(tmp_path: Path) -> None:
    target = load_target("gemmini-default")
    graph = converted(STEM, target, tmp_path)[0].graph
    taken = {
        objective: realised_graph(graph, target, EXACT, Cheaper(graph, target, Settings(objective=objective)))
        is not graph
        for objective in ("latency", "energy")
    }
    assert taken == {"latency": True, "energy": False}
