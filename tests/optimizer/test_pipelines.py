"""Which groups go through a pipeline: only where all that counts is no worse for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.rtl import converted
from fadiff.console import Console
from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule
from fadiff.costmodel.schedule.serialize import schedule_from_document, to_document
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer import Settings, optimize
from fadiff.optimizer.cut.partition import Objective, value
from fadiff.optimizer.finish.pipelines import LEAST_GAIN, with_pipelines
from fadiff.search import SearchOptions, decide
from tests.emitters.gemmini.executed import Case, check

TARGET = load_target("gemmini-default")
EXACT = Settings(method="exact")
TABLE = "32x14x14 c32k3 sig"


def graph_of(program: str, tmp_path: Path) -> Graph:
    return converted(program, TARGET, tmp_path)[0].graph


def issued(program: str, tmp_path: Path, objective: Objective = "edp") -> Schedule:
    """As it is before groups are pipelined."""
    return optimize(graph_of(program, tmp_path), TARGET, method="exact", objective=objective).schedule


def pipelined(schedule: Schedule) -> list[FusionGroup]:
    return [group for group in schedule.groups if group.pipelined]


def test_a_table_hides_the_convolution(tmp_path):
    """The functional model, which knows nothing of the choice, finds most of what the clock promises."""
    before = issued(TABLE, tmp_path)
    after = with_pipelines(before, EXACT)
    [group] = pipelined(after)
    assert group.tile == GroupTile(1, 7, 14)
    promised = evaluate(before).latency_cycles - evaluate(after).latency_cycles
    one_by_one, in_pipeline = check(Case(before)), check(Case(after))
    assert one_by_one.counts.cycles - in_pipeline.counts.cycles > 0.75 * promised > 0


def test_a_table_hides_the_next_weights_where_all_of_them_have_no_room(tmp_path):
    """In tiles of channels, whose weights are fetched once: of pixels every tile would fetch them all."""
    before = issued("16x256 fc512 gelu", tmp_path)
    after = with_pipelines(before, EXACT)
    [group] = pipelined(after)
    assert group.tile == GroupTile(1, 16, 1, K=256)
    assert schedule_from_document(to_document(after, evaluate(after), generator="")).groups == after.groups
    promised = evaluate(before).latency_cycles - evaluate(after).latency_cycles
    one_by_one, in_pipeline = check(Case(before)), check(Case(after))
    assert one_by_one.counts.cycles - in_pipeline.counts.cycles > 0.75 * promised > 0


def test_channels_fall_into_any_number_of_parts(tmp_path):
    """45 blocks of channels: no half, quarter or eighth of them is whole blocks."""
    before = issued("16x256 fc720 gelu", tmp_path, "latency")
    after = with_pipelines(before, replace(EXACT, objective="latency"))
    [group] = pipelined(after)
    assert group.tile is not None and group.tile.K == 240
    check(Case(after))


@pytest.mark.parametrize("objective", ["edp", "latency", "energy"])
@pytest.mark.parametrize(
    "program", [TABLE, "32x64 fc256 gelu fc64 +0", "24x14x14 c96k1 sig dw3 sig c24k1 +0"]
)
def test_only_what_lowers_the_objective_within_the_limit(program, objective, tmp_path):
    before = issued(program, tmp_path, objective)
    now = evaluate(before)
    for limit in (None, now.dram_bytes, now.dram_bytes - 1):
        after = with_pipelines(before, replace(EXACT, objective=objective), limit)
        then = evaluate(after)
        assert limit is None or then.dram_bytes <= now.dram_bytes
        worth = [value(objective, cost.energy_pj, cost.latency_cycles) for cost in (now, then)]
        assert after == before or worth[1] < (1 - LEAST_GAIN) * worth[0]
        assert bool(pipelined(after)) == (after != before)
        assert with_pipelines(before, replace(EXACT, objective=objective), limit) == after


def test_a_limit_keeps_halos_from_being_fetched_twice(tmp_path):
    before = issued(TABLE, tmp_path)
    bytes_now = evaluate(before).dram_bytes
    [group] = pipelined(with_pipelines(before, EXACT, bytes_now + 2 * 14 * 32))
    assert group.tile == GroupTile(1, 7, 14)
    assert not pipelined(with_pipelines(before, EXACT, bytes_now + 2 * 14 * 32 - 1))


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 1), ({"fusion": False}, 0), ({"method": "layerwise"}, 0), ({"method": "random"}, 0)],
)
def test_layers_that_may_not_be_grouped_are_not(options, expected, tmp_path):
    conversion, _ = converted(TABLE, TARGET, tmp_path)
    search = SearchOptions(**{"method": "exact", "time_budget": 1} | options)
    _, found = decide(conversion, TARGET, search, "gemmini-auto", Console(verbosity=-1))
    assert len(pipelined(found.schedule)) == expected
    assert found.schedule.groups and found.cost == evaluate(found.schedule)
