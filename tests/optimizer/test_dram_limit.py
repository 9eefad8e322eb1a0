"""A limit on DRAM bytes: kept, executed as scored, and no dearer than it has to be."""

from __future__ import annotations

import pytest

from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer import SearchResult, optimize
from fadiff.optimizer.dram_limit import automatic_bytes, within
from tests.optimizer.graphs import Net


@pytest.fixture(scope="module")
def found() -> SearchResult:
    """Depthwise layers on an image of four pixels: weights are nearly all that moves."""
    net = Net(size=2, channels=16)
    x = net.x
    for i in range(2):
        x = net.conv(f"expand{i}", x, 96)
        x = net.conv(f"depthwise{i}", x, 96, 3, depthwise=True)
        x = net.conv(f"project{i}", x, 16)
    return optimize(net.build(x), load_target("gemmini-large"), method="exact")


def test_a_schedule_within_the_limit_stays_as_it_is(found: SearchResult) -> None:
    assert within(found, found.cost.dram_bytes) is found


@pytest.mark.parametrize("share", [0.99, 0.9])
def test_the_limit_is_kept_and_the_cost_is_that_of_the_schedule(found: SearchResult, share: float) -> None:
    limit = int(share * found.cost.dram_bytes)
    limited = within(found, limit)
    assert limited.cost.dram_bytes <= limit
    assert limited.cost == evaluate(limited.schedule)
    assert limited.schedule.target == found.schedule.target


def test_a_tighter_limit_costs_more(found: SearchResult) -> None:
    some, more = (within(found, int(share * found.cost.dram_bytes)) for share in (0.7, 0.5))
    assert more.cost.dram_bytes < some.cost.dram_bytes
    assert found.value < some.value < more.value


def test_what_automatic_tiles_move_can_always_be_reached(found: SearchResult) -> None:
    limit = automatic_bytes(found.schedule.graph, found.schedule.target)
    assert within(found, limit).cost.dram_bytes <= limit


def test_an_impossible_limit_says_what_is_possible(found: SearchResult) -> None:
    with pytest.raises(ScheduleError, match="at most 10 bytes; the fewest are"):
        within(found, 10)
