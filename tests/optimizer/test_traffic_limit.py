"""A limit on DRAM bytes: kept, executed as scored, and no dearer than it has to be."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer import SearchResult, optimize
from fadiff.optimizer.finish.replacements import Replacement, with_replacements
from fadiff.optimizer.finish.traffic_limit import automatic_bytes, dram_bytes, within
from tests.optimizer.graphs import Net


@pytest.fixture(scope="module")
def found() -> SearchResult:
    """Depthwise layers on an image of four pixels: weights are nearly all that moves."""
    net = Net(size=2, channels=16)
    x = net.x
    for i in range(3):
        x = net.conv(f"expand{i}", x, 96)
        x = net.conv(f"depthwise{i}", x, 96, 3, depthwise=True)
        x = net.conv(f"project{i}", x, 16)
    return optimize(net.build(x), load_target("gemmini-large"), method="exact")


def test_a_schedule_within_the_limit_stays_as_it_is(found: SearchResult) -> None:
    assert within(found, dram_bytes(found.cost)) is found


@pytest.mark.parametrize("share", [0.99, 0.9])
def test_the_limit_is_kept_and_the_cost_is_that_of_the_schedule(found: SearchResult, share: float) -> None:
    limit = int(share * dram_bytes(found.cost))
    limited = within(found, limit)
    assert dram_bytes(limited.cost) <= limit
    assert limited.cost == evaluate(limited.schedule)
    assert limited.schedule.target == found.schedule.target


def test_a_tighter_limit_costs_more(found: SearchResult) -> None:
    """Weighed as the choice is, by rtl latency."""
    some, more = (within(found, int(share * dram_bytes(found.cost))) for share in (0.62, 0.56))
    assert dram_bytes(more.cost) < dram_bytes(some.cost)
    first, second = (evaluate(result.schedule, "clock").edp_uj_cycles for result in (some, more))
    assert first < second


def test_what_automatic_tiles_move_can_always_be_reached(found: SearchResult) -> None:
    limit = automatic_bytes(found.schedule)
    assert dram_bytes(within(found, limit).cost) <= limit


def test_an_impossible_limit_says_what_is_possible(found: SearchResult) -> None:
    with pytest.raises(ScheduleError, match="at most 10 bytes; the fewest are"):
        within(found, 10)


def test_the_limit_holds_where_tensors_lose_their_place(
    found: SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first choice is undone, as fragmented places in the tile buffer may: the next one saves more."""
    calls = []

    def undone_once(schedule: Schedule, replacements: Iterable[Replacement]) -> Schedule:
        calls.append(schedule)
        return schedule if len(calls) == 1 else with_replacements(schedule, replacements)

    monkeypatch.setattr("fadiff.optimizer.finish.traffic_limit.with_replacements", undone_once)
    limit = int(0.99 * dram_bytes(found.cost))
    assert dram_bytes(within(found, limit).cost) <= limit
    assert len(calls) > 1
