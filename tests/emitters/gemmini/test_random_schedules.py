"""Emitted C against ONNX Runtime and the cost model, for schedules nobody chose."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.emitters.gemmini.gemmini_cases import bmm_case, check, group_case, held_case, layer_case

SETTINGS = settings(
    deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
SEEDS = st.integers(0, 1 << 32)


@settings(SETTINGS, max_examples=40)
@given(SEEDS)
def test_single_layers(seed: int) -> None:
    case = layer_case(random.Random(seed))
    assume(case is not None)
    assert case is not None
    check(case)


@settings(SETTINGS, max_examples=15)
@given(SEEDS)
def test_batched_products(seed: int) -> None:
    case = bmm_case(random.Random(seed))
    assume(case is not None)
    assert case is not None
    check(case)


@settings(SETTINGS, max_examples=25)
@given(SEEDS)
def test_fused_groups(seed: int) -> None:
    case = group_case(random.Random(seed))
    assume(case is not None)
    assert case is not None
    check(case)


@settings(SETTINGS, max_examples=40)
@given(SEEDS)
def test_intermediates_in_local_memory(seed: int) -> None:
    case = held_case(random.Random(seed))
    assume(case is not None)
    assert case is not None
    result = check(case)
    group = case.schedule.groups[0]
    copies = result.counts.instructions.get("store_spad", 0)
    assert bool(copies) == bool(group.in_scratchpad)
