"""Clock: cycles of one layer of the emitted program on Gemmini behind a Rocket core, fitted to RTL.

    cycles = (core^p + array^p + (load - first)^p + (store - last)^p)^(1/p) + first + last
             + loop * loops + visit * visits + 0.41 * command * row commands
    first, last = load / tiles * visits, store / tiles * visits

    core    RoCC commands that the core issues one by one, each with what the program computes around it: a
            block of weights takes 5.6 commands more, a tile whose loads are worked out 15.1, but of a layer
            of one tile, of which all is known when it is compiled
    array   pairs of preload and compute: a strip of pixels takes its rows, a short one waits until fewer than
            five results are in the mesh, each in it for its rows and two sides; with new weights a side
    load    aligned DMA requests of at most 64 bytes of one row, their bytes, further copies of pixels that
            are packed into rows of the array, and cache lines that the last-level cache lacks
    store   rows that leave the accumulator
    rows    commands that store rows one by one, each with a scale of its own, while Gemmini waits for them
    tiles   of the scratchpad: nothing overlaps the first one's load and the last one's store in a visit
    loops   tiles that a hardware loop runs: a handful of commands each
    visits  of the layer, one per group tile: fences

Host operators take the cycles per element of the target's core.  The figures are fitted to programs that this
tool emitted: clock_coefficients.json, by `python -m benchmarks fit_clock` from runs of `python -m benchmarks
rtl`.  One formula serves Python numbers, numpy columns of mappings and torch tensors; who counts is
`clock_work.py` (exact) and fadiff.costmodel.relaxed.clock (torch).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from fadiff.costmodel.mapping.counting import LatencyModel
from fadiff.costmodel.mapping.numbers import Number, positive
from fadiff.costmodel.target.target import Target

COEFFICIENTS = Path(__file__).parent / "clock_coefficients.json"
FITTED_SIDE = 16
"""Of the array whose programs the coefficients were fitted to."""
FITTED_DRAM_BYTES = 8.0
"""A cycle, of the memory behind the cache there: where there are more, missing lines come as much sooner."""


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
    """Of a preload and compute at least, and a fifth of its rows more."""
    new_weights: float
    """Cycles of a preload and compute that brings new weights."""
    request: float
    """Per aligned load of at most 64 bytes of one row."""
    pixel_copy: float
    """Per further copy of a pixel that is written more than once."""
    byte: float
    """Per byte loaded."""
    miss: float
    """Per cache line loaded that the last-level cache lacks."""
    store_row: float
    """Per accumulator row stored."""
    added_byte: float
    """Per byte of operands and sum of an addition, which Gemmini's DMA moves."""
    overlap: float


class LayerCounts(NamedTuple):
    """What one layer makes core and Gemmini do over all its visits, under one mapping or columns of them."""

    visits: Number
    commands: Number
    """RoCC commands issued one by one; BLOCK and BOX more for what the core works out."""
    loops: Number
    """Tiles that a hardware loop runs."""
    tiles: Number
    """Of the scratchpad, however they are run; no fewer than `visits`."""
    full_rows: Number
    """Rows of full strips, which take a cycle each."""
    blocks: Number
    """Of weights that a strip brings into the array."""
    short_strips: tuple[tuple[Number, Number], ...]
    """(rows, how many) of strips of fewer rows than the array has."""
    requests: Number
    copies: Number
    loaded_bytes: Number
    missed_lines: Number
    stored_rows: Number
    row_commands: Number = 0
    """That Gemmini waits for: configurations and stores of rows with scales of their own, in ROW_COMMANDs."""


class EngineCycles(NamedTuple):
    """How long each engine is busy with a layer, if nothing holds it up."""

    core: Number
    array: Number
    load: Number
    store: Number


BOUND_NAME = {"core": "issue", "array": "compute", "load": "L3", "store": "L3"}
"""What an engine is called where reports say what binds."""


NO_STRIP = 1e-9
"""So that the mean of no strips is a number."""
BLOCK = 5.6
"""Commands that products of an accumulator tile with a block of weights take besides their own: where all is,
and which loads are due by then."""
BOX = 15.1
"""Commands that a tile of an operand takes whose loads the core works out, to spread them over products."""
ROW_COMMAND = 0.41
"""Commands that a config_st or mvout of a row with a scale of its own takes; Gemmini waits for this loop.

BLOCK and BOX were fitted to eight layers timed on RTL, this one to 36: `python -m benchmarks fit_issue`.
"""
TILED_COMMAND = 0.4
"""Commands that one of a tile of LOOP_WS takes which the core issues, also of its stores of rows."""
TILE = 10.0
"""Commands that such a tile takes besides, of several."""
RESULTS = 5
"""That are in the mesh at a time (max_simultaneous_matmuls of MeshWithDelays.scala)."""


def strip_cycles(rows: Number, c: ClockCoefficients) -> Number:
    """Of a preload and compute with the weights of the one before."""
    least = c.short_strip + rows / RESULTS
    return least + positive(rows - least)


def preload_cycles(strip: Number, c: ClockCoefficients) -> Number:
    """How much longer it is with new weights, if it takes `strip` cycles without."""
    return positive(c.new_weights - strip)


def engine_cycles(counts: LayerCounts, c: ClockCoefficients) -> EngineCycles:
    """What `layer_cycles` overlaps."""
    times = counts.full_rows / c.new_weights + sum(times for _, times in counts.short_strips)
    strips = sum(strip_cycles(rows, c) * times for rows, times in counts.short_strips)
    array = counts.full_rows + strips
    array = array + counts.blocks * preload_cycles(array / (times + NO_STRIP), c)
    load = counts.requests * c.request + counts.copies * c.pixel_copy
    load = load + counts.loaded_bytes * c.byte + counts.missed_lines * c.miss
    store = counts.stored_rows * c.store_row
    return EngineCycles(counts.commands * c.command, array, load, store)


def first_and_last(counts: LayerCounts, engines: EngineCycles) -> tuple[EngineCycles, Number]:
    """How long engines overlap, and first loads and last stores, which nothing overlaps."""
    share = counts.visits / counts.tiles
    overlapped = engines._replace(load=engines.load * (1 - share), store=engines.store * (1 - share))
    return overlapped, (engines.load + engines.store) * share


def issue_cycles(counts: LayerCounts, c: ClockCoefficients) -> Number:
    """How long the core issues what Gemmini waits for."""
    return counts.loops * c.loop + counts.row_commands * ROW_COMMAND * c.command


def layer_cycles(counts: LayerCounts, c: ClockCoefficients) -> Number:
    """Cycles of one layer on the array."""
    overlapped, alone = first_and_last(counts, engine_cycles(counts, c))
    together = sum((engine * 1e-3) ** c.overlap for engine in overlapped) ** (1 / c.overlap) * 1e3
    return together + alone + issue_cycles(counts, c) + counts.visits * c.visit


Validation = Mapping[int, Mapping[str, Any]]
"""By side of the arrays that programs were timed on: {by_model: {model: {programs, median_error, p90_error,
spearman}}}."""


@lru_cache(maxsize=1)
def clock() -> tuple[ClockCoefficients, Validation]:
    """The committed coefficients, and how far each latency model was from RTL.

    The clock's figures are those of programs left out of its fit.
    """
    content = json.loads(COEFFICIENTS.read_text(encoding="utf-8"))
    validation = {int(side): found for side, found in content["validation"].items()}
    return ClockCoefficients(**content["coefficients"]), validation


CORE_COEFFICIENTS = ("command", "loop", "visit")
"""Those that a target gives in its `core`; the others in its `engines`."""


MESH = ("short_strip", "new_weights")
"""Those that are rows of the array."""


def at_side(c: ClockCoefficients, factors: Mapping[str, float], side: int) -> ClockCoefficients:
    """Coefficients of a 16 x 16 array on another one: each times its factor for every doubling of the side.

    New weights take `side` rows to preload, a row of output more beats to store.  Narrower arrays, of which
    none was timed, take those of 16 but for what the mesh takes.
    """
    doublings = math.log2(side / FITTED_SIDE)
    scaled = {name: factors[name] for name in factors if doublings > 0 or name in MESH}
    return replace(c, **{name: getattr(c, name) * factor**doublings for name, factor in scaled.items()})


@lru_cache(maxsize=1)
def side_factors() -> Mapping[str, float]:
    """The committed `factors` of `at_side`."""
    found: Mapping[str, float] = json.loads(COEFFICIENTS.read_text(encoding="utf-8"))["per_doubling"]
    return found


@lru_cache(maxsize=8)
def clock_of(target: Target) -> ClockCoefficients:
    """The committed coefficients at the target's side, with those that it gives in their place."""
    given = {
        field.name: getattr(target.core if field.name in CORE_COEFFICIENTS else target.engines, field.name)
        for field in fields(ClockCoefficients)
    }
    own = at_side(clock()[0], side_factors(), target.side)
    own = replace(own, miss=own.miss * FITTED_DRAM_BYTES / target.bandwidth.dram_bytes)
    return replace(own, **{name: cycles for name, cycles in given.items() if cycles is not None})


def error_against_rtl(model: LatencyModel, target: Target) -> str:
    """How far a latency model was from RTL cycles on programs of this tool, to stand beside every latency.

    The array that was timed is named: the widest that is no wider than the target's.  Of the clock on a
    target whose `engines` were calibrated: how far it was from that hardware.
    """
    own = target.engines.calibration
    if model == "clock" and own is not None:
        return (
            f"median error {100 * own.median_error:.0f} %, nine in ten below {100 * own.p90_error:.0f} % "
            f"on this hardware, {own.layers} layers"
        )
    _, validation = clock()
    side = max((timed for timed in validation if timed <= target.side), default=min(validation))
    found, others = validation[side]["by_model"][model], ""
    uses = ("held_out", "networks")
    apart, whole = (validation[side].get(use) if model == "clock" else None for use in uses)
    if apart is not None:
        others = (
            f"; {100 * apart['median_error']:.0f} % and {100 * apart['p90_error']:.0f} % on "
            f"{apart['programs']} of other kinds that it was never fitted to"
        )
    if whole is not None:
        others += (
            f"; {100 * whole['median_error']:.0f} %, at most {100 * whole['worst']:.0f} %, "
            f"in {whole['runs']} run{'s' * (whole['runs'] > 1)} of networks"
        )
    return (
        f"median error {100 * found['median_error']:.0f} %, nine in ten below "
        f"{100 * found['p90_error']:.0f} % against RTL, {found['programs']} small programs "
        f"on {side} x {side}{others}"
    )
