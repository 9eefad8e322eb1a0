"""Calibration: measurements made from known coefficients are predicted after it; too few are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fadiff.costmodel.latency.clock import LayerCounts, clock_of, layer_cycles
from fadiff.costmodel.schedule.calibration import MIN_LAYERS, Sample, TooLittleData, calibrate
from fadiff.costmodel.schedule.clock import HostCounts
from fadiff.costmodel.target.core import Core
from fadiff.costmodel.target.target import Target, load_target

PRESET = load_target("gemmini-default")
SLOW_MEMORY = replace(clock_of(PRESET), byte=0.4, request=2.0, miss=60.0, visit=900.0)
SLOW_CORE = Core(instruction=2.6)


def layers(count: int, seed: int) -> list[LayerCounts]:
    """Layers like those of small networks: products, first layers, matrix-vector, few tiles or many."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        rows, tiles = int(random.integers(20, 40000)), int(random.integers(1, 60))
        nbytes = float(rows) * random.choice([0.5, 4.0, 16.0])
        found.append(
            LayerCounts(
                visits=min(tiles, int(random.integers(1, 9))),
                commands=0.0,
                loops=tiles,
                tiles=tiles,
                full_rows=rows,
                blocks=rows // 100,
                short_strips=((int(random.integers(1, 8)), tiles),),
                requests=nbytes / random.choice([3.0, 16.0, 64.0]),
                copies=0.0,
                loaded_bytes=nbytes,
                missed_lines=nbytes / 64 * random.choice([0.0, 0.3, 1.0]),
                stored_rows=rows / random.choice([2.0, 30.0]),
            )
        )
    return found


def host_layers(count: int) -> list[HostCounts]:
    operators = ("softmax", "lookup", "binary")
    return [HostCounts(operators[i % 3], 700.0 * (i + 1), 1 + i % 2) for i in range(count)]


def measured(count: int = 40, seed: int = 1) -> list[Sample]:
    """Cycles of the slow hardware, within 2 % of its coefficients' own."""
    random = np.random.default_rng(seed)
    array = [Sample(work, layer_cycles(work, SLOW_MEMORY)) for work in layers(count, seed)]
    host = [Sample(work, work.cycles(SLOW_MEMORY, SLOW_CORE)) for work in host_layers(count // 3)]
    both = array + host
    noise = random.uniform(0.98, 1.02, len(both))
    return [replace(sample, cycles=sample.cycles * float(by)) for sample, by in zip(both, noise, strict=True)]


def errors(target: Target) -> list[float]:
    """On layers that were in no measurement."""
    c = clock_of(target)
    array = [layer_cycles(work, c) / layer_cycles(work, SLOW_MEMORY) - 1 for work in layers(50, 77)]
    softmax = HostCounts("softmax", 50_000.0, 1)
    host = softmax.cycles(c, target.core) / softmax.cycles(SLOW_MEMORY, SLOW_CORE) - 1
    return [abs(error) for error in (*array, host)]


def test_known_coefficients_are_recovered() -> None:
    found = calibrate(PRESET, measured())
    assert np.median(errors(PRESET)) > 0.3
    assert np.median(errors(found.target)) < 0.03 and np.quantile(errors(found.target), 0.9) < 0.08
    assert found.helps
    assert found.after.median_error < 0.05 < found.before.median_error
    assert found.target.engines.calibration == found.after
    assert found.target.engines.byte == pytest.approx(SLOW_MEMORY.byte, rel=0.15)


def test_a_few_wild_measurements_do_not_carry_the_fit_away() -> None:
    samples = measured()
    wild = [replace(sample, cycles=sample.cycles * 30) for sample in samples[::15]]
    found = calibrate(PRESET, [*samples[1:], *wild])
    assert np.median(errors(found.target)) < 0.06


def test_what_no_layer_touches_is_not_given() -> None:
    found = calibrate(PRESET, measured()).target
    assert found.core.command is None, "no layer was issued instruction by instruction"
    assert found.core.loop is not None and found.core.host.softmax is not None
    assert found.core.host.layer_norm is None


def test_everything_else_of_the_target_stays() -> None:
    found = calibrate(PRESET, measured()).target
    assert found.model_copy(update={"core": PRESET.core, "engines": PRESET.engines}) == PRESET


def test_too_little_data_is_refused() -> None:
    few = measured()[: MIN_LAYERS - 1]
    with pytest.raises(TooLittleData, match=f"{MIN_LAYERS - 1} layers of different work"):
        calibrate(PRESET, few * 5)


def test_a_target_that_fits_already_is_not_improved_by_noise() -> None:
    c = clock_of(PRESET)
    exact = [Sample(work, layer_cycles(work, c)) for work in layers(30, 3)]
    assert not calibrate(PRESET, exact).helps
