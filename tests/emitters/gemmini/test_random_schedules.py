"""Emitted C against ONNX Runtime and the cost model, for schedules nobody chose."""

from __future__ import annotations

import random

from hypothesis import assume, given, settings

from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import GroupTile
from fadiff.costmodel.target.target import load_target
from fadiff.optimizer.search import optimize
from tests.emitters.gemmini.executed import Case, check, measured
from tests.emitters.gemmini.gemmini_cases import (
    SEEDS,
    SETTINGS,
    attention,
    bmm_case,
    group_case,
    grouped_case,
    layer_case,
    rows_case,
    streamed_case,
)
from tests.emitters.gemmini.nets import Net


@settings(SETTINGS, max_examples=16)
@given(SEEDS)
def test_single_layers(seed: int) -> None:
    case = layer_case(random.Random(seed))
    assume(case is not None)
    assert case is not None
    check(case)


@settings(SETTINGS, max_examples=6)
@given(SEEDS)
def test_batched_products(seed: int) -> None:
    case = bmm_case(random.Random(seed))
    assume(case is not None)
    assert case is not None
    check(case)


@settings(SETTINGS, max_examples=10)
@given(SEEDS)
def test_fused_groups(seed: int) -> None:
    case = group_case(random.Random(seed))
    assume(case is not None)
    assert case is not None
    check(case)


@settings(SETTINGS, max_examples=8)
@given(SEEDS)
def test_host_operators_between_fused_layers(seed: int) -> None:
    case = rows_case(random.Random(seed))
    assume(case is not None)
    assert case is not None
    check(case)


@settings(SETTINGS, max_examples=10)
@given(SEEDS)
def test_groups_of_channels_one_after_the_other(seed: int) -> None:
    case = grouped_case(random.Random(seed))
    assume(case is not None)
    assert case is not None
    check(case)


@settings(SETTINGS, max_examples=10)
@given(SEEDS)
def test_some_of_the_channels_one_after_the_other(seed: int) -> None:
    case = streamed_case(random.Random(seed))
    assume(case is not None)
    assert case is not None
    check(case)


def test_attention_is_searched_as_a_group_and_the_scores_stay_out_of_dram() -> None:
    graph, _ = attention(random.Random(4), Net(random.Random(4)), heads=4, p=64, keys=64)
    target = load_target("gemmini-default")
    fused, alone = (
        optimize(graph, target, method="exact", fusion=fusion, residency=False).schedule
        for fusion in (True, False)
    )
    assert [group.layers for group in fused.groups] == [("l0", "l1", "l2")]
    result = check(Case(fused))
    # Each of the 4 x 64 x 64 scores is written once and read once less.
    saved = check(Case(alone)).counts.dram_bytes - result.counts.dram_bytes
    assert saved >= 2 * 4 * 64 * 64
    assert evaluate(fused).edp_uj_cycles < evaluate(alone).edp_uj_cycles


def test_attention_that_exceeds_the_tile_buffer_runs_head_by_head() -> None:
    """One head's scores fit: its keys and values are loaded once, and no head's twice."""
    graph, _ = attention(random.Random(4), Net(random.Random(4)), heads=4, p=64, keys=64)
    target = load_target("gemmini-default").model_copy(update={"tile_buffer_bytes": 64 * 64})
    found = optimize(graph, target, method="exact")
    (group,) = found.schedule.groups
    assert group.tile == GroupTile(1, 64, 1, G=1)
    assert found.gap == 0
    check(Case(found.schedule))


def test_a_head_that_exceeds_the_tile_buffer_runs_over_query_rows_with_resident_values() -> None:
    """The bytes by hand: every operand once, as keys and values of a head stay for all of its rows."""
    graph, _ = attention(random.Random(4), Net(random.Random(4)), heads=4, p=64, keys=64)
    target = load_target("gemmini-default").model_copy(update={"tile_buffer_bytes": 64 * 24})
    schedule = optimize(graph, target, method="exact").schedule
    (group,) = schedule.groups
    assert group.tile is not None and group.tile.G == 1 and group.tile.P <= 24
    assert group.resident_weights == {"l0", "l2"}
    result = check(Case(schedule))
    read = {name: graph.tensors[name].size for name in ("q", "k", "v")}
    moved = measured(result)
    assert {
        t: moved[layer, "dram", t, "read"] for layer, t in (("l0", "q"), ("l0", "k"), ("l2", "v"))
    } == read
    assert result.counts.dram_bytes == sum(read.values()) + graph.tensors["y"].size
