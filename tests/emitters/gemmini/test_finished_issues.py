"""What `with_issues` makes of schedules nobody chose: legal, bit for bit, never slower, within its bytes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings

from fadiff.costmodel.group.fusion import ScheduleError, plan_group
from fadiff.costmodel.schedule.clock import program_cycles
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import GroupTile, Schedule
from fadiff.optimizer.baselines.gemmini_auto import automatic_schedule
from fadiff.optimizer.cut.partition import Objective
from fadiff.optimizer.finish.issue import with_issues
from fadiff.optimizer.finish.traffic_limit import dram_bytes
from fadiff.optimizer.finish.whole_groups import taken_apart
from tests.emitters.gemmini.executed import Case, check
from tests.emitters.gemmini.gemmini_cases import (
    SEEDS,
    SETTINGS,
    bmm_case,
    group_case,
    held_case,
    layer_case,
    rows_case,
)
from tests.emitters.gemmini.test_pooling import pooled_case

KINDS = [layer_case, bmm_case, group_case, held_case, rows_case, pooled_case]


def clock_edp(schedule: Schedule) -> float:
    return evaluate(schedule).energy_pj * sum(program_cycles(schedule).values())


@settings(SETTINGS, max_examples=7)
@given(SEEDS)
def test_any_schedule(seed: int) -> None:
    rng = random.Random(seed)
    case = rng.choice(KINDS)(rng)
    assume(case is not None)
    assert case is not None
    issued = with_issues(case.schedule)
    assert clock_edp(issued) <= clock_edp(case.schedule) * (1 + 1e-9)
    check(Case(issued))


@pytest.mark.parametrize("seed", range(20, 28))
def test_never_slower_than_gemmini_h(seed: int) -> None:
    """Even where least energy is asked for."""
    rng = random.Random(seed)
    case = rng.choice([layer_case, bmm_case, group_case])(rng)
    assert case is not None
    automatic = automatic_schedule(case.graph, case.schedule.target, row_packing=True)
    objectives: tuple[Objective, ...] = ("energy", "edp")
    for objective in objectives:
        issued = with_issues(case.schedule, None, objective)
        assert sum(program_cycles(issued).values()) <= sum(program_cycles(automatic).values()) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_no_more_bytes_than_they_may_move(seed: int) -> None:
    rng = random.Random(seed)
    case = rng.choice([group_case, pooled_case])(rng)
    assert case is not None
    limit = dram_bytes(evaluate(case.schedule))
    issued = with_issues(case.schedule, limit)
    assert dram_bytes(evaluate(issued)) <= limit
    assert clock_edp(issued) <= clock_edp(case.schedule) * (1 + 1e-9)


def test_groups_of_one_tile_are_layers_one_after_the_other() -> None:
    """The same bytes and energy, whole tensors in the tile buffer; pools stay with their convolution."""
    apart = 0
    for seed in range(120):
        case = pooled_case(random.Random(seed))
        if case is None or case.schedule.target.side == 4:
            continue
        (group,) = case.schedule.groups
        last = plan_group(case.graph, group)[group.layers[-1]].size[2:]
        whole = replace(group, tile=GroupTile(*last), halo="recompute")
        try:
            schedule = replace(case.schedule, groups=(whole,))
        except ScheduleError:
            continue
        taken = taken_apart(schedule)
        before, after = evaluate(schedule), evaluate(taken)
        assert after.energy_pj == pytest.approx(before.energy_pj)
        assert dram_bytes(after) == dram_bytes(before)
        if taken.groups != schedule.groups:
            check(Case(taken))
            apart += 1
        if apart == 4:
            return
    pytest.fail("no group came apart")
