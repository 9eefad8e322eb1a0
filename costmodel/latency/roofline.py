"""Roofline latency: array and memories work in parallel, the slowest decides.  Cycles are integers."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fadiff.costmodel.count.traffic import Memory, Move, Number
from fadiff.costmodel.target.target import Target


def bytes_per_memory(moves: Iterable[Move]) -> dict[Memory, Number]:
    """Bytes through each memory, reads and writes together."""
    totals: dict[Memory, Number] = {}
    for move in moves:
        totals[move.memory] = totals[move.memory] + move.bytes if move.memory in totals else move.bytes
    return totals


def bandwidths(target: Target, columns: Number) -> dict[Memory, Number]:
    """Bytes per cycle of each memory that can bind, with `columns` array columns in use."""
    word = target.accumulator_bytes_per_word
    return {
        "accumulator": target.bandwidth.accumulator_words_per_column * columns * word,
        "scratchpad": target.scratchpad_bytes_per_cycle,
        "tile-buffer": target.bandwidth.tile_buffer_bytes,
        "dram": target.bandwidth.dram_bytes,
        "host": target.bandwidth.dram_bytes,
    }


BOUND_NAME: dict[Memory, str] = {
    "accumulator": "L1",
    "scratchpad": "L2",
    "tile-buffer": "tile-buffer",
    "dram": "L3",
    "host": "host",
}


def roofline(moves: Iterable[Move], compute_cycles: int, columns: int, target: Target) -> tuple[int, str]:
    """Cycles and what binds: `compute`, `L1`, `L2`, `L3` or `tile-buffer`."""
    cycles, bound = compute_cycles, "compute"
    moved = bytes_per_memory(moves)
    for memory, bandwidth in bandwidths(target, columns).items():
        needed = math.ceil(moved.get(memory, 0) / bandwidth)
        if needed > cycles:
            cycles, bound = needed, BOUND_NAME[memory]
    return cycles, bound
