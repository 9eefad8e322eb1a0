"""What Timeloop counts otherwise than Gemmini: tiles that keep what they share, cycles of a level.

(costmodel/nests/count.py counts any loop nest of perfect factors by these rules.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Count(NamedTuple):
    """Accesses of one tensor at one level, per instance of the level."""

    instances: int
    reads: int
    fills: int
    updates: int

    @property
    def total(self) -> int:
        """Accesses of all instances."""
        return self.instances * (self.reads + self.fills + self.updates)


class Loop(NamedTuple):
    """A temporal loop above a tile: trips, and how far one step moves the tile along each axis."""

    trips: int
    step: tuple[int, ...]


def words_entering(tile: Sequence[int], loops: Iterable[Loop], *, forgets_direction: bool = False) -> int:
    """Words that enter a buffer holding one `tile`, over all iterations of `loops` (innermost first).

    Consecutive tiles share what overlaps as long as they move in one direction, that of the
    innermost moving loop.  Timeloop steps every loop once and lets that step stand for all others,
    so when an outer loop steps, the loops inside it jump back by one: if the tile then stays where
    it was nothing is fetched, if it moves as the innermost moving loop does the overlap is kept,
    otherwise the whole tile is fetched.

    `forgets_direction`: releases before 2025 take a step that does not move the tile for a change of
    direction, so the overlap survives only if the innermost loop of all moves the tile, and a tile
    that jumps back to where it was is fetched again.
    """
    words = total = math.prod(tile)
    jumped = (0,) * len(tile)
    first: tuple[int, ...] | None = None
    kept = 0
    for trips, step in loops:
        if trips == 1:
            continue
        moved = tuple(a - b for a, b in zip(step, jumped, strict=True))
        if first is None and (any(moved) or forgets_direction):
            first = step
            kept = math.prod(max(0, extent - by) for extent, by in zip(tile, step, strict=True))
        if any(moved):
            stays = kept if moved == first else 0
        else:
            stays = 0 if forgets_direction and any(jumped) else words
        total = trips * total - (trips - 1) * stays
        jumped = tuple(a + b for a, b in zip(jumped, step, strict=True))
    return total


def cycles_at(counts: Iterable[Count], compute_cycles: int, bandwidth: float) -> int:
    """Cycles a level needs for its tensors, at `bandwidth` words per cycle and instance.

    In doubles and in Timeloop's order of operations (BufferLevel::ComputePerformance), which can
    round up to one cycle more than the quotient.
    """
    reads = writes = 0.0
    for tensor in counts:
        reads += tensor.reads / compute_cycles
        writes += (tensor.fills + tensor.updates) / compute_cycles
    per_cycle = reads + writes
    if per_cycle <= bandwidth:
        return compute_cycles
    return math.ceil(compute_cycles / (bandwidth / per_cycle))
