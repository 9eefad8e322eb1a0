"""The choice among nearly equal schedules: wide weight tiles, little lost, limits kept."""

from __future__ import annotations

import pytest

from costmodel.schedule.evaluate import evaluate
from costmodel.schedule.schedule import Schedule
from costmodel.target.target import load_target
from optimizer import SearchResult, optimize
from optimizer.finish.rtl_choice import SLACK, fastest_of_equals
from optimizer.finish.traffic_limit import dram_bytes
from tests.optimizer.graphs import Net, separable


def _rtl(schedule: Schedule) -> float:
    return evaluate(schedule, "rtl").edp_uj_cycles


@pytest.fixture(scope="module")
def product() -> SearchResult:
    """4096 x 4096 weights for one row: nothing but weights moves."""
    net = Net(size=1, channels=4096)
    return optimize(net.build(net.conv("fc", net.x, 4096)), load_target("gemmini-default"), method="exact")


def test_weight_tiles_as_wide_as_a_request(product: SearchResult) -> None:
    """Roofline latency sees bytes only: 16 columns at once fetch the input once and are its optimum."""
    assert product.schedule.mappings["fc"].tile_l2.K == 16
    chosen = fastest_of_equals(product)
    assert chosen.schedule.mappings["fc"].tile_l2.K >= 64
    assert chosen.value <= (1 + SLACK) * product.value
    assert _rtl(chosen.schedule) < 0.7 * _rtl(product.schedule)


def test_no_more_bytes_than_the_limit() -> None:
    net = Net(size=2, channels=256)
    found = optimize(net.build(net.conv("c", net.x, 256, 3)), load_target("gemmini-default"), method="exact")
    limit = dram_bytes(found.cost)
    assert dram_bytes(fastest_of_equals(found, slack=0.01).cost) > limit
    assert dram_bytes(fastest_of_equals(found, limit, slack=0.01).cost) <= limit


@pytest.mark.parametrize("target", ["gemmini-small", "gemmini-large"])
def test_fused_groups_stay_and_costs_are_those_of_the_schedule(target: str) -> None:
    found = optimize(separable(size=12), load_target(target), method="exact")
    chosen = fastest_of_equals(found)
    assert [(g.layers, g.tile) for g in chosen.schedule.groups] == [
        (g.layers, g.tile) for g in found.schedule.groups
    ]
    assert chosen.cost == evaluate(chosen.schedule)
    assert chosen.value <= (1 + SLACK) * found.value
    assert _rtl(chosen.schedule) <= _rtl(found.schedule)


def test_what_fits_together_badly_is_left_alone(
    product: SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors that lose their place on chip can cost more than the groups gained."""
    net = Net(size=1, channels=4096)
    poor = optimize(
        net.build(net.conv("fc", net.x, 4096)), load_target("gemmini-default"), method="gemmini-auto"
    ).schedule
    assert evaluate(poor).edp_uj_cycles > (1 + SLACK) * product.value
    monkeypatch.setattr("optimizer.finish.rtl_choice.with_replacements", lambda *_: poor)
    assert fastest_of_equals(product) is product
