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
was touched in between fits.  Rows at a power-of-two pitch crowd in few cache sets, so they lose lines
as if they occupied their whole pitch (`Stream.pitch_lines`).

All of it is powers, products and sums, increasing in every field of `Work` and differentiable, so
one formula serves Python numbers, numpy arrays and torch tensors.  There are two makers of `Work`:
costmodel.latency.rtl_work (exact, from a `Nest`; called by costmodel.schedule.evaluate.layer_cost) and
costmodel.relaxed.rtl (torch, from the terms of a relaxed mapping; called by relaxed).

The coefficients in rtl_coefficients.json are written by `python -m benchmarks fit_rtl`, with the
cross-validated error that reports print (`validation_error`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

COEFFICIENTS = Path(__file__).parent / "rtl_coefficients.json"
LINE_BYTES = 64
CACHE_SETS = 1024
"""Lines after which addresses meet in one set (a 512 KB cache of 8 ways); only powers of two matter."""

Number = Any
"""int, float, numpy array or torch tensor."""


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
    load_side: float
    """Exponent: loads take (side / 16)^this times as long."""
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
    """How one operand's cache lines come and go in DRAM order.

    `again` and `touched` have one entry per DRAM loop, innermost first; none if a line, once loaded,
    is never needed again.
    """

    lines: Number
    """Distinct lines."""
    again: Sequence[Number]
    """How many times the loop uses the same lines."""
    touched: Sequence[Number]
    """Bytes touched between two of these uses, as the sets see them that hold the operand."""
    footprint: Number
    """The same for the whole layer: whether the first use finds the line."""


class Work(NamedTuple):
    """What a layer makes the hardware do; every field may only lengthen it."""

    is_matmul: Number
    """1 for a matrix product, 0 for a convolution: two instruction sequences."""
    side: Number
    """Of the array: the wider, the fewer loads are in flight."""
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


class Engines(NamedTuple):
    """Cycles that each engine is busy."""

    issue: Number
    array: Number
    load: Number
    store: Number


def engines(work: Work, c: Coefficients) -> Engines:
    """Busy cycles of the four engines of one layer."""
    matmul, conv = work.is_matmul, 1 - work.is_matmul
    missed = [
        misses(reuse, c.l2_bytes, c.sharpness) * c.l2_miss
        + misses(reuse, c.memory_bytes, c.sharpness) * c.memory_miss
        for reuse in (work.weights, work.inputs)
    ]
    load = (
        work.requests * (c.request_matmul * matmul + c.request_conv * conv)
        + work.loaded_bytes * (c.byte_matmul * matmul + c.byte_conv * conv)
        + missed[0]
        + missed[1]
    )
    return Engines(
        work.tiles * (c.issue_matmul * matmul + c.issue_conv * conv),
        work.array_cycles,
        load * (work.side / 16) ** c.load_side,
        work.stored_rows * c.store_row + misses(work.outputs, c.l2_bytes, c.sharpness) * c.store_miss,
    )


def cycles(work: Work, c: Coefficients) -> Number:
    """Predicted RTL cycles of one layer."""
    return together(engines(work, c), c)


def together(busy: Engines, c: Coefficients) -> Number:
    """Cycles of one layer whose engines are `busy` so long."""
    # Kilocycles, so that powers stay inside single precision.
    powers = sum((engine * 1e-3) ** c.overlap for engine in busy)
    return powers ** (1 / c.overlap) * 1e3 + c.start


def part_of_load(work: Work, requests: float, nbytes: int, share: float, c: Coefficients) -> float:
    """Load cycles of the first `share` of a layer's weights: their requests, bytes and first misses."""
    first = Reuse(work.weights.lines * share, (), (), work.weights.footprint)
    nothing = Reuse(0, (), (), 1)
    part = work._replace(requests=requests, loaded_bytes=nbytes, weights=first, inputs=nothing)
    return float(engines(part, c).load)


def misses(reuse: Reuse, capacity: float, sharpness: float) -> Number:
    """Lines fetched from behind a cache of `capacity` bytes, the first use included.

    A use misses with probability 1 / (1 + (capacity / touched)^sharpness); the first one is a use at
    the distance of the whole layer (caches are warm from producing the operands).
    """

    def lost(touched: Number) -> Number:
        return 1 / (1 + (capacity / touched) ** sharpness)

    times: Number = 1
    for again, touched in zip(reuse.again, reuse.touched, strict=True):
        times = times * (1 + (again - 1) * lost(touched))
    return reuse.lines * (times - 1 + lost(reuse.footprint))


BOUND_NAME = {"issue": "issue", "array": "compute", "load": "L3", "store": "L3"}
"""What an engine is called where reports say what binds."""


def latency(work: Work, more_load: float = 0.0) -> tuple[int, str]:
    """Cycles by the committed coefficients and what binds: `issue`, `compute` or `L3`.

    `more_load`: load cycles for another layer; negative: what another layer loads for this one.
    """
    c, _ = calibration()
    engine = engines(work, c)
    engine = engine._replace(load=max(0.0, engine.load + more_load))
    busy = engine._asdict()
    return math.ceil(together(engine, c)), BOUND_NAME[max(busy, key=lambda name: float(busy[name]))]


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


Walk = Literal["rows", "segment", "stay"]


class Loop(NamedTuple):
    """One DRAM loop."""

    trips: Number
    walks: Sequence[Walk]
    """How it moves W, I and O: to other rows, along the segment, or not at all."""
    reduces: bool
    """Its iterations add up to the same outputs."""


OPERANDS = ("W", "I", "O")


def pitch_lines(row_bytes: int) -> float:
    """`Stream.pitch_lines` of rows of `row_bytes`; rows shorter than a line share one."""
    if row_bytes < LINE_BYTES:
        return row_bytes / LINE_BYTES
    lines, rest = divmod(row_bytes, LINE_BYTES)
    return 1 if rest else min(lines & -lines, CACHE_SETS)


class _Walker:
    """One operand under the loops so far, innermost first.

    `changed`, 0 to 1: whether one of them moves the operand, so that it has to be loaded again.
    """

    def __init__(self, stream: Stream, largest: Callable[[Number, Number], Number], changed: Number) -> None:
        self.rows, self.segment, self.whole, self.least, self.pitch_lines = stream
        self.largest, self.changed = largest, changed

    def used(self) -> Number:
        """Bytes of all lines used so far."""
        return self.rows * self.largest(self.segment, self.least)

    def held(self) -> Number:
        """Bytes of a cache that was used as unevenly everywhere: sets in between stay empty."""
        return self.rows * self.largest(self.largest(self.segment, self.least), self.pitch_lines * LINE_BYTES)

    def stay(self, trips: Number) -> Number:
        """Everything again, if it has to be loaded again at all."""
        return 1 + self.changed * (trips - 1)

    def walk_rows(self, trips: Number) -> None:
        """Other rows every time."""
        self.rows = self.rows * trips
        self._moved(trips)

    def walk_segment(self, trips: Number) -> Number:
        """Neighbouring segments share lines: how many times each line is used."""
        before = self.largest(self.segment, self.least)
        grown = self.segment * trips
        self.segment = grown + self.whole - self.largest(grown, self.whole)
        self._moved(trips)
        return trips * before / self.largest(self.segment, self.least)

    def _moved(self, trips: Number) -> None:
        """A loop of one trip moves nothing; in between, gradually."""
        moved = trips - self.largest(trips - 1, 1)
        self.changed = 1 - (1 - self.changed) * (1 - moved)


class CacheUse(NamedTuple):
    """Cache behaviour of the three operands."""

    weights: Reuse
    inputs: Reuse
    outputs: Reuse


def cache_use(
    streams: Sequence[Stream],
    loops: Sequence[Loop],
    largest: Callable[[Number, Number], Number],
    *,
    reload: bool = False,
) -> CacheUse:
    """Cache behaviour of W, I and O (`streams`, in this order).

    `loops` are the DRAM loops, innermost first.  `reload`: every tile loads its operands anew, even
    those that did not change; otherwise only from the innermost loop on that changes them.
    `largest` is the maximum of two numbers.
    """
    walkers = [_Walker(stream, largest, int(reload)) for stream in streams]
    outputs = walkers[2]
    reductions: Number = 1
    for loop in loops:
        reductions = reductions * loop.trips if loop.reduces else reductions

    def in_use() -> list[Number]:
        """Bytes that each operand's sets hold: its own lines crowd in them, others are spread evenly."""
        # Outputs are stored when final only: in one of all reduction steps.
        share = (1, 1, 1 / reductions)
        used = [walker.used() * part for walker, part in zip(walkers, share, strict=True)]
        total = used[0] + used[1] + used[2]
        return [
            total - mine + walker.held() * part
            for walker, part, mine in zip(walkers, share, used, strict=True)
        ]

    again: tuple[list[Number], ...] = ([], [], [])
    touched: tuple[list[Number], ...] = ([], [], [])
    for loop in loops:
        for distances, distance in zip(touched, in_use(), strict=True):
            distances.append(distance)
        for walker, walk, times in zip(walkers, loop.walks, again, strict=True):
            if walk == "segment":
                times.append(walker.walk_segment(loop.trips))
            elif walk == "stay" and walker is not outputs:
                times.append(walker.stay(loop.trips))
            else:
                times.append(1)
                if walk == "rows":
                    walker.walk_rows(loop.trips)
        reductions = reductions / loop.trips if loop.reduces else reductions
    w, i, o = (
        Reuse(walker.used() / LINE_BYTES, times, distances, whole)
        for walker, times, distances, whole in zip(walkers, again, touched, in_use(), strict=True)
    )
    return CacheUse(w, i, o)


@lru_cache(maxsize=1)
def calibration() -> tuple[Coefficients, Mapping[str, float]]:
    """The committed coefficients and their validation figures (cv_spearman, cv_mape, ...)."""
    content = json.loads(COEFFICIENTS.read_text(encoding="utf-8"))
    return Coefficients(**content["coefficients"]), content["validation"]


def validation_error() -> str:
    """One sentence for reports: what was compared, and how well it agreed."""
    _, figures = calibration()
    rows = f"{figures['rows']:.0f} mappings measured on FireSim (RTL)"
    return (
        f"On {rows}, each predicted by a fit that never saw its layer shape: mean error "
        f"{figures['cv_mape']:.0f} %, median {figures['cv_median_ape']:.0f} %, "
        f"Spearman {figures['cv_spearman']:.3f}"
    )
