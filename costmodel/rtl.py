"""Latency model `rtl`: cycles of Gemmini's RTL behind a real memory system, calibrated on FireSim.

    cycles = (issue^p + array^p + load^p + store^p)^(1/p) + start

Four engines work in parallel on successive tiles; the slowest decides, the exponent rounds the
corner where two are close.
    issue   the core issues one loop instruction (and its configuration) per tile
    array   strips of at most `side` pixels stream through the array, a short strip costs as much as
            one of side / 2 pixels (and of 4)
    load    DMA requests of at most 64 bytes (MAX_BYTES), one row of a tile each, however short, plus
            cache lines that miss in the SoC's L2 and then in the last-level cache
    store   rows leaving the accumulator, plus output lines that miss
Misses follow from the DRAM loop order: when a loop brings lines back, they are still cached if what
was touched in between fits.  A power-of-two row pitch leaves sets unused, so a row is taken to
occupy its pitch (`Stream.pitch_lines`).

All of it is powers, products and sums, increasing in every field of `Work` and differentiable, so
one formula serves Python numbers, numpy arrays and torch tensors.  There are two makers of `Work`:
costmodel.rtl_work (exact, from a `Nest`; called by costmodel.evaluate.layer_cost) and
costmodel.rtl_relaxed (torch, from the terms of a relaxed mapping; called by relaxed_terms).

The coefficients in rtl_coefficients.json are written by `python -m benchmarks.fit_rtl`, with the
cross-validated error that reports print (`validation_error`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

COEFFICIENTS = Path(__file__).parent / "rtl_coefficients.json"
LINE_BYTES = 64
CACHE_SETS = 1024
"""Lines after which addresses meet in one set (a 512 KB cache of 8 ways); only powers of two matter."""

Number = Any
"""int, float, numpy array or torch tensor."""
Operand = str
"""W, I or O."""


@dataclass(frozen=True)
class Coefficients:
    """Everything that was fitted.  Cycles, bytes, or pure numbers; all positive."""

    start: float
    """Cycles per layer: first fill, last drain, fence."""
    issue_conv: float
    """Cycles per tile of a convolution (LOOP_CONV_WS)."""
    issue_matmul: float
    """Cycles per tile of a matrix product (LOOP_WS)."""
    request_conv: float
    """Cycles per load request."""
    byte_conv: float
    """Cycles per byte loaded."""
    request_matmul: float
    byte_matmul: float
    store_row: float
    """Cycles per accumulator row stored."""
    l2_miss: float
    """Extra cycles per line loaded that the L2 does not hold."""
    memory_miss: float
    """Extra cycles per line loaded that the last-level cache does not hold either."""
    store_miss: float
    """Extra cycles per output line that the L2 does not hold."""
    l2_bytes: float
    """Bytes touched between two uses of a line at which half of the lines are lost."""
    memory_bytes: float
    """The same for the last-level cache."""
    sharpness: float
    """Exponent of the step from all hits to all misses."""
    overlap: float
    """Exponent p: 1 is no overlap between engines, infinity a perfect one."""


class Reuse(NamedTuple):
    """How one operand's cache lines come and go in DRAM order."""

    lines: Number
    """Distinct lines."""
    again: Sequence[tuple[Number, Number]]
    """(how many times a loop uses the same lines, bytes touched between two of them)."""


class Work(NamedTuple):
    """What a layer makes the hardware do; every field may only lengthen it."""

    is_matmul: Number
    """1 for a matrix product, 0 for a convolution: two instruction sequences."""
    tiles: Number
    """Visits of an accumulator tile."""
    array_cycles: Number
    requests: Number
    """Loads of at most MAX_BYTES of one row."""
    loaded_bytes: Number
    stored_rows: Number
    weights: Reuse
    inputs: Reuse
    outputs: Reuse
    footprint: Number
    """Bytes of all lines together: whether the layer starts with warm caches."""


class Engines(NamedTuple):
    """Cycles that each engine is busy."""

    issue: Number
    array: Number
    load: Number
    store: Number


def engines(work: Work, c: Coefficients) -> Engines:
    """Busy cycles of the four engines of one layer."""
    matmul, conv = work.is_matmul, 1 - work.is_matmul
    loads = (work.weights, work.inputs)
    load = (
        work.requests * (c.request_matmul * matmul + c.request_conv * conv)
        + work.loaded_bytes * (c.byte_matmul * matmul + c.byte_conv * conv)
        + c.l2_miss * sum(misses(reuse, work.footprint, c.l2_bytes, c.sharpness) for reuse in loads)
        + c.memory_miss * sum(misses(reuse, work.footprint, c.memory_bytes, c.sharpness) for reuse in loads)
    )
    lost = misses(work.outputs, work.footprint, c.l2_bytes, c.sharpness)
    return Engines(
        work.tiles * (c.issue_matmul * matmul + c.issue_conv * conv),
        work.array_cycles,
        load,
        work.stored_rows * c.store_row + lost * c.store_miss,
    )


def cycles(work: Work, c: Coefficients) -> Number:
    """Predicted RTL cycles of one layer."""
    # Kilocycles, so that powers stay inside single precision.
    powers = sum((busy * 1e-3) ** c.overlap for busy in engines(work, c))
    return powers ** (1 / c.overlap) * 1e3 + c.start


def misses(reuse: Reuse, footprint: Number, capacity: float, sharpness: float) -> Number:
    """Lines fetched from behind a cache of `capacity` bytes, the first use included.

    A reuse misses with probability 1 / (1 + (capacity / touched)^sharpness); the first use is one
    at the distance of the whole layer (caches are warm from producing the operands).
    """

    def lost(touched: Number) -> Number:
        return 1 / (1 + (capacity / touched) ** sharpness)

    times: Number = 1
    for again, touched in reuse.again:
        times = times * (1 + (again - 1) * lost(touched))
    return reuse.lines * (times - 1 + lost(footprint))


#: What an engine is called where reports say what binds.
BOUND_NAME = {"issue": "issue", "array": "compute", "load": "L3", "store": "L3"}


def latency(work: Work) -> tuple[int, str]:
    """Cycles by the committed coefficients and what binds: `issue`, `compute` or `L3`."""
    c, _ = calibration()
    busy = engines(work, c)._asdict()
    return math.ceil(cycles(work, c)), BOUND_NAME[max(busy, key=lambda engine: float(busy[engine]))]


class Stream(NamedTuple):
    """An operand's tile as rows in DRAM: contiguous segments at a fixed pitch."""

    rows: Number
    """Segments of the tile."""
    segment: Number
    """Bytes of one."""
    whole: Number
    """Bytes of the segment in the whole layer (all channels)."""
    least: Number
    """Bytes a use drags along at least: a cache line, or the whole segment if that is shorter."""
    pitch_lines: Number
    """Largest power of two that divides the pitch in lines: the rest of the sets stays unused."""


class Loop(NamedTuple):
    """One DRAM loop; the masks (0 or 1) say how it moves an operand: W, I, O in `OPERANDS` order."""

    trips: Number
    moves_rows: Sequence[Number]
    moves_segment: Sequence[Number]
    reduces: Number


OPERANDS = ("W", "I", "O")


def pitch_lines(row_bytes: int) -> int:
    """`Stream.pitch_lines` of rows of `row_bytes`."""
    lines, rest = divmod(row_bytes, LINE_BYTES)
    return 1 if rest else min(lines & -lines, CACHE_SETS)


def reuse_in_caches(
    streams: Sequence[Stream],
    loops: Iterable[Loop],
    largest: Callable[[Number, Number], Number],
    *,
    reload: bool,
) -> tuple[list[Reuse], Number]:
    """Reuse of W, I and O (in this order) and the layer's footprint in bytes.

    `loops` are the DRAM loops, innermost first.  `reload`: every tile loads its operands anew, even
    those that did not change; otherwise only from the innermost loop on that changes them.
    `largest` is the maximum of two numbers.
    """
    loops = list(loops)
    reductions: Number = 1
    for loop in loops:
        reductions = reductions * (1 + loop.reduces * (loop.trips - 1))
    rows = [stream.rows for stream in streams]
    segment = [stream.segment for stream in streams]
    changed: list[Number] = [int(reload)] * 3
    again: list[list[tuple[Number, Number]]] = [[], [], []]
    inside: Number = 1

    def held(at: int) -> Number:
        """Bytes of all cache lines that one pass over the loops so far needs of an operand."""
        lines = largest(segment[at], streams[at].least) / LINE_BYTES
        return rows[at] * largest(lines, streams[at].pitch_lines) * LINE_BYTES

    def touched() -> Number:
        # Outputs are stored when final only: in one of all reduction steps.
        return held(0) + held(1) + held(2) * inside / reductions

    for loop in loops:
        between = touched()
        more = loop.trips - 1
        for at, stream in enumerate(streams):
            in_rows, in_segment = loop.moves_rows[at], loop.moves_segment[at]
            grown = segment[at] * loop.trips
            grown = grown + stream.whole - largest(grown, stream.whole)
            old, new = largest(segment[at], stream.least), largest(grown, stream.least)
            # Neighbouring segments share a line; a loop that does not move the operand uses all again.
            times = 1 + in_segment * (loop.trips * old / new - 1)
            if at != 2:
                times = times + (1 - in_rows - in_segment) * changed[at] * more
            again[at].append((times, between))
            rows[at] = rows[at] * (1 + in_rows * more)
            segment[at] = segment[at] + in_segment * (grown - segment[at])
            moved = (in_rows + in_segment) * (more + 1 - largest(more, 1))
            changed[at] = 1 - (1 - changed[at]) * (1 - moved)
        inside = inside * (1 + loop.reduces * more)
    reuse = [
        Reuse(rows[at] * largest(segment[at], stream.least) / LINE_BYTES, again[at])
        for at, stream in enumerate(streams)
    ]
    return reuse, touched()


@lru_cache(maxsize=1)
def calibration() -> tuple[Coefficients, Mapping[str, float]]:
    """The committed coefficients and their validation figures (cv_spearman, cv_mape, ...)."""
    content = json.loads(COEFFICIENTS.read_text(encoding="utf-8"))
    return Coefficients(**content["coefficients"]), content["validation"]


def validation_error() -> str:
    """One phrase for reports: how far the prediction is from RTL on layers it was not fitted to."""
    _, figures = calibration()
    return (
        f"rtl model: {figures['cv_mape']:.0f} % mean, {figures['cv_median_ape']:.0f} % median error, "
        f"Spearman {figures['cv_spearman']:.3f} on {figures['rows']:.0f} FireSim mappings of layers left out"
    )
