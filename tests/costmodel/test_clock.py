"""The clock model: counts of small programs by hand, and what must hold of any coefficients."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fadiff.costmodel.latency.cache import Reuse, misses
from fadiff.costmodel.latency.clock import (
    ClockCoefficients,
    LayerCounts,
    at_side,
    clock,
    error_against_rtl,
    layer_cycles,
)
from fadiff.costmodel.latency.clock_work import aligned_requests
from fadiff.costmodel.schedule.clock import network_cycles, program_counts, program_cycles
from fadiff.costmodel.schedule.clock_parts import layer_parts, program_parts
from fadiff.costmodel.target.core import Core
from fadiff.costmodel.target.engines import CalibrationError
from fadiff.costmodel.target.target import load_target
from tests.costmodel.schedules import alone, residual

C = ClockCoefficients(
    visit=100,
    command=20,
    loop=170,
    short_strip=8,
    new_weights=16,
    request=1,
    pixel_copy=1,
    byte=0.0625,
    miss=8,
    store_row=1,
    added_byte=0.4,
    overlap=50,
)
NOTHING = LayerCounts(1, 0, 0, 10**9, 0, 0, (), 0, 0, 0, 0, 0)
"""So many tiles that filling and draining are nothing."""


@pytest.mark.parametrize(
    ("counts", "cycles"),
    [
        (NOTHING._replace(commands=50), 50 * 20),
        (NOTHING._replace(loops=3), 3 * 170),
        (NOTHING._replace(row_commands=100), 100 * 0.41 * 20),
        (NOTHING._replace(full_rows=640, short_strips=((3, 10), (12, 5))), 640 + 10 * (8 + 3 / 5) + 5 * 12),
        (NOTHING._replace(full_rows=640, blocks=9), 640),
        (NOTHING._replace(short_strips=((12, 20),), blocks=3), 17 * 12 + 3 * 16),
        (NOTHING._replace(requests=100, loaded_bytes=6400, missed_lines=10), 100 + 400 + 80),
        (NOTHING._replace(copies=90), 90),
        (NOTHING._replace(stored_rows=70), 70),
    ],
)
def test_the_busiest_engine_decides(counts, cycles):
    assert layer_cycles(counts, C) == pytest.approx(cycles + 100)


def test_engines_overlap_and_visits_add():
    both = NOTHING._replace(commands=50, stored_rows=1000)
    assert layer_cycles(both, C) < 1.05 * 1000 + 100
    assert layer_cycles(both._replace(visits=4), C) - layer_cycles(both, C) == pytest.approx(300)


def test_the_first_load_and_the_last_store_of_a_visit_overlap_nothing():
    counts = NOTHING._replace(full_rows=4000, requests=100, stored_rows=60)
    assert layer_cycles(counts._replace(tiles=1), C) == pytest.approx(4000 + 160 + 100, rel=1e-3)
    assert layer_cycles(counts._replace(tiles=4), C) == pytest.approx(4000 + 40 + 100, rel=1e-3)
    assert layer_cycles(counts._replace(tiles=4, visits=2), C) == pytest.approx(4000 + 80 + 200, rel=1e-3)


@pytest.mark.parametrize(
    ("nbytes", "pitch", "requests"),
    [
        (64, 64, 1),
        (64, 128, 1),
        (32, 32, 1),
        (64, 96, 1.5),
        (16, 16, 1),
        (64, 3, 1 + 63 / 64),
        (1, 3, 1),
        (3, 3, 1 + 2 / 64),
    ],
)
def test_requests_are_aligned(nbytes, pitch, requests):
    assert aligned_requests(nbytes, pitch, 64) == pytest.approx(requests)


@pytest.mark.parametrize("rounds", [0.5, 0.9, 1.15, 1.5, 2, 9])
def test_lines_are_lost_as_by_random_replacement(rounds):
    kept = 0.0
    for _ in range(1000):  # a line is left if none of the misses of a round took its place
        kept = math.exp(-(1 - kept) * rounds)
    lost = misses(Reuse(1, (), (), rounds * 512 * 1024), 512 * 1024)
    assert lost == pytest.approx(1 - kept, abs=0.1)


def test_more_work_never_takes_less_time():
    counts = LayerCounts(2, 40, 3, 3, 500, 8, ((5, 20),), 90, 8, 4000, 12, 70, row_commands=6)
    rounded = replace(C, overlap=3)
    before = layer_cycles(counts, rounded)
    for name, value in counts._asdict().items():
        if name == "tiles":
            continue  # the same work in more of them overlaps more
        assert layer_cycles(counts._replace(**{name: value * 2}), rounded) > before


def test_single_instructions_cost_the_core_more_than_a_loop():
    looped = NOTHING._replace(loops=4, full_rows=4000)
    single = NOTHING._replace(commands=600, full_rows=4000)
    assert layer_cycles(single, C) > layer_cycles(looped, C)


@pytest.mark.parametrize(("side", "strip", "visit"), [(4, 0.5, 1), (16, 8, 1), (32, 32, 3), (64, 128, 9)])
def test_coefficients_grow_with_every_doubling_of_a_side(side, strip, visit):
    """What the mesh takes for every side, the others beyond 16."""
    scaled = at_side(C, {"short_strip": 4, "visit": 3}, side)
    assert scaled.short_strip == pytest.approx(strip)
    assert scaled.visit == pytest.approx(C.visit * visit)
    assert replace(scaled, short_strip=C.short_strip, visit=C.visit) == C


def test_every_layer_of_a_group_has_its_cycles():
    schedule = alone(residual(), ())
    found = program_cycles(schedule)
    assert set(found) == {layer.name for layer in schedule.graph.layers}
    assert all(cycles > 0 for cycles in found.values())


def test_other_coefficients_other_cycles():
    counts = program_counts(alone(residual(), ()))
    assert sum(network_cycles(counts, replace(C, visit=200), Core()).values()) > sum(
        network_cycles(counts, C, Core()).values()
    )


def test_the_committed_fit_says_how_far_it_is_off():
    coefficients, validation = clock()
    models = [model for found in validation.values() for model in found["by_model"].values()]
    assert all(found["programs"] >= 40 for found in models)
    assert all(set(found["by_model"]) == {"clock", "roofline"} for found in validation.values())
    assert all(value > 0 for value in vars(coefficients).values())


@pytest.mark.parametrize(("side", "timed"), [(8, 16), (16, 16), (32, 32), (64, 32)])
@pytest.mark.parametrize("model", ["clock", "roofline"])
def test_an_error_is_that_of_the_array_that_was_timed(model, side, timed):
    printed = error_against_rtl(model, load_target("gemmini-default").model_copy(update={"side": side}))
    found = clock()[1][timed]
    own = found["by_model"][model]
    assert f"median error {100 * own['median_error']:.0f} %" in printed
    assert f"against RTL, {own['programs']} small programs on {timed} x {timed}" in printed
    assert ("never fitted to" in printed) == (model == "clock" and "held_out" in found)
    assert (" of networks" in printed) == (model == "clock" and "networks" in found)


def test_what_is_said_of_held_out_programs_is_of_all_that_were_timed():
    """Beside the fitted figure stands that of programs which no fit may see."""
    apart, by_kind = clock()[1][16]["held_out"], []
    for ratios in apart["by_kind"].values():
        by_kind += ratios
    assert apart["programs"] == len(by_kind) >= 5
    errors = np.abs(np.array(by_kind) - 1)
    assert apart["median_error"] == pytest.approx(np.median(errors), abs=2e-3)
    assert apart["p90_error"] == pytest.approx(np.quantile(errors, 0.9), abs=2e-3)
    assert apart["p90_error"] > clock()[1][16]["by_model"]["clock"]["p90_error"]


def test_a_calibrated_target_has_the_error_on_its_own_hardware():
    target = load_target("gemmini-large")
    own = CalibrationError(median_error=0.04, p90_error=0.11, layers=9)
    calibrated = target.model_copy(update={"engines": target.engines.model_copy(update={"calibration": own})})
    assert "4 %, nine in ten below 11 % on this hardware, 9 layers" in error_against_rtl("clock", calibrated)
    assert error_against_rtl("roofline", calibrated) == error_against_rtl("roofline", target)


@pytest.mark.parametrize("resident", [(), ("A", "S")])
def test_parts_add_up_to_the_cycles_of_every_layer(resident):
    schedule = alone(residual(), resident)
    cycles, clocks = program_cycles(schedule), program_parts(schedule)
    assert {name: clock.cycles for name, clock in clocks.items()} == pytest.approx(cycles)
    assert all(part >= 0 for clock in clocks.values() for part in clock.parts)


def test_an_engine_that_is_alone_takes_all_of_the_overlapped_time():
    busy = layer_parts(NOTHING._replace(full_rows=640), C)
    assert busy.parts.array == pytest.approx(640) and busy.parts.waiting == 100
    both = layer_parts(NOTHING._replace(full_rows=640, stored_rows=640), C).parts
    assert both.array == pytest.approx(both.dma, rel=1e-6)
