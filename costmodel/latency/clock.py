"""Clock: cycles of one layer of the emitted program on Gemmini behind a Rocket core, fitted to RTL.

    cycles = (core^p + array^p + load^p + store^p)^(1/p) + visit * visits

    core    instructions that the core issues: RoCC commands, each with what the program computes around it;
            a hardware loop is a handful of them per tile
    array   pairs of preload and compute: a strip of pixels takes its rows, a short one `short_strip`
    load    DMA requests of at most 64 bytes of one row, their bytes, and cache lines that the L2 lacks
    store   rows that leave the accumulator
    visits  of the layer, one per group tile: fences, the first loads, the last stores

Host operators take cycles per byte.  Unlike `rtl`, which the search may minimise, this model sees how a layer
is issued, and it is fitted to programs that this tool emitted: the figures are in clock_coefficients.json, by
`python -m benchmarks fit_clock` from the runs of `python -m benchmarks rtl`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from costmodel.mapping.decision import LatencyModel

COEFFICIENTS = Path(__file__).parent / "clock_coefficients.json"


@dataclass(frozen=True)
class ClockCoefficients:
    """Cycles, all positive; `overlap` is the exponent p."""

    visit: float
    """Per visit of a layer."""
    command: float
    """Per RoCC command that the core issues one by one."""
    loop: float
    """Per tile that a hardware loop runs."""
    short_strip: float
    """Cycles of a preload and compute of fewer rows than this."""
    request: float
    """Per load of at most 64 bytes of one row."""
    byte: float
    """Per byte loaded."""
    miss: float
    """Per cache line loaded that the L2 does not hold."""
    store_row: float
    """Per accumulator row stored."""
    overlap: float
    host: float
    """Per byte that a host operator reads or writes, times the operator's weight in HOST_WEIGHTS."""


class LayerCounts(NamedTuple):
    """What one layer makes core and Gemmini do, over all its visits."""

    visits: int
    commands: float
    """RoCC commands issued one by one."""
    loops: float
    """Tiles that a hardware loop runs."""
    full_rows: float
    """Rows of full strips, which take a cycle each."""
    short_strips: tuple[tuple[float, float], ...]
    """(rows, how many) of strips of fewer rows than the array has."""
    requests: float
    loaded_bytes: float
    missed_lines: float
    stored_rows: float


HOST_WEIGHTS: Mapping[str, float] = {
    "add": 0.1,
    "copy": 0.5,
    "lookup": 1.0,
    "max_pool": 2.0,
    "softmax": 12.0,
    "layer_norm": 12.0,
}
"""Cycles per byte of an operator, relative to an element-wise one; 1 where none is given."""


FLOAT_MAC_CYCLES = 5.0
"""Of a multiply-accumulate in float32 on the core: a load, a product, a sum and their share of the loop, one
each cycle of Rocket's pipeline but for stalls.  Not measured on RTL."""


def layer_cycles(counts: LayerCounts, c: ClockCoefficients) -> float:
    """Cycles of one layer on the array."""
    array = counts.full_rows + sum(max(rows, c.short_strip) * times for rows, times in counts.short_strips)
    engines = (
        counts.commands * c.command + counts.loops * c.loop,
        array,
        counts.requests * c.request + counts.loaded_bytes * c.byte + counts.missed_lines * c.miss,
        counts.stored_rows * c.store_row,
    )
    together: float = sum((engine * 1e-3) ** c.overlap for engine in engines) ** (1 / c.overlap) * 1e3
    return together + counts.visits * c.visit


def host_cycles(op: str, nbytes: int, visits: int, c: ClockCoefficients, macs: int = 0) -> float:
    """Cycles of an operator that the core runs (or of an addition, which Gemmini's DMA does); `macs` are its
    multiply-accumulates in float32."""
    return nbytes * c.host * HOST_WEIGHTS.get(op, 1.0) + visits * c.visit + macs * FLOAT_MAC_CYCLES


@lru_cache(maxsize=1)
def clock() -> tuple[ClockCoefficients, Mapping[str, Any]]:
    """The committed coefficients, and how far each latency model was from RTL.

    The latter is {programs, by_model: {model: {median_error, p90_error, spearman}}}; the clock's figures are
    those of programs left out of its fit.
    """
    content = json.loads(COEFFICIENTS.read_text(encoding="utf-8"))
    return ClockCoefficients(**content["coefficients"]), content["validation"]


def error_against_rtl(model: LatencyModel | Literal["clock"]) -> str:
    """How far a latency model was from RTL cycles on programs of this tool, to stand beside every latency."""
    _, validation = clock()
    found = validation["by_model"][model]
    return (
        f"median error {100 * found['median_error']:.0f} %, nine in ten below "
        f"{100 * found['p90_error']:.0f} % against RTL, {validation['programs']} small programs"
    )
