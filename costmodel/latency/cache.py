"""Cache lines that a layer's loads find, or miss, in the SoC's last-level cache.

Misses follow from the DRAM loop order: when a loop brings lines back, they are still cached if what
was touched in between fits.  Rows at a power-of-two pitch crowd in few cache sets, so they lose lines
as if they occupied their whole pitch (`Stream.pitch_lines`).

All of it is powers, products and sums, so one formula serves Python numbers, numpy arrays and torch tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from fadiff.costmodel.mapping.numbers import Number

LINE_BYTES = 64
CACHE_SETS = 1024
"""Lines after which addresses meet in one set (a 512 KB cache of 8 ways); only powers of two matter."""
HALF_LOST = 1.4
"""Bytes touched between two uses of a line at which half of the lines are lost, over those of the cache.

It replaces at random: of r times its size, in a round, h = exp(-(1 - h) r) are left.
"""
SHARPNESS = 5.0
"""How sudden lines start to miss around that: within 0.1 of the same h from r = 0.9 on, 0.16 at r = 1."""


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


NOTHING = Reuse(0, (), (), 1)
"""Of an operand that is on chip."""


def misses(reuse: Reuse, cache_bytes: float) -> Number:
    """Lines fetched from behind a cache of `cache_bytes`, the first use included.

    A use misses with probability 1 / (1 + (capacity / touched)^SHARPNESS), of a capacity of HALF_LOST caches;
    the first one is a use at the distance of the whole layer (caches are warm from producing the operands).
    """
    capacity = HALF_LOST * cache_bytes

    def lost(touched: Number) -> Number:
        return 1 / (1 + (capacity / touched) ** SHARPNESS)

    times: Number = 1
    for again, touched in zip(reuse.again, reuse.touched, strict=True):
        times = times * (1 + (again - 1) * lost(touched))
    return reuse.lines * (times - 1 + lost(reuse.footprint))


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

    def __init__(self, stream: Stream, largest: Callable[[Number, Number], Number]) -> None:
        self.rows, self.segment, self.whole, self.least, self.pitch_lines = stream
        self.largest = largest
        self.changed: Number = 0

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
    """Cache behaviour of what is loaded."""

    weights: Reuse
    inputs: Reuse


def cache_use(
    streams: Sequence[Stream],
    loops: Sequence[Loop],
    largest: Callable[[Number, Number], Number],
) -> CacheUse:
    """Cache behaviour of W and I, given W, I and O (`streams`, in this order).

    `loops` are the DRAM loops, innermost first; operands are loaded again from the innermost loop on that
    changes them.  `largest` is the maximum of two numbers.
    """
    walkers = [_Walker(stream, largest) for stream in streams]
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
    weights, inputs, _ = (
        Reuse(walker.used() / LINE_BYTES, times, distances, whole)
        for walker, times, distances, whole in zip(walkers, again, touched, in_use(), strict=True)
    )
    return CacheUse(weights, inputs)
