"""Energy of a layer: every access times the energy of its memory, plus the multiply-accumulates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fadiff.costmodel.count.traffic import Memory, Move, Number
from fadiff.costmodel.target.target import Target


def picojoules_per_byte(target: Target) -> dict[Memory, float]:
    """Energy per byte of each memory (reads and writes cost the same)."""
    return {
        "register": target.energy.register_byte,
        "accumulator": target.accumulator_word_pj / target.accumulator_bytes_per_word,
        "scratchpad": target.scratchpad_byte_pj,
        "tile-buffer": target.tile_buffer_byte_pj,
        "dram": target.energy.dram_byte,
        "host": target.energy.dram_byte,
    }


def picojoules(memory: Mapping[Memory, Number], macs: Number, target: Target) -> Number:
    """Of so many bytes through each memory and of the multiply-accumulates."""
    price = picojoules_per_byte(target)
    energy = macs * target.energy.mac
    for name, moved in memory.items():
        energy = energy + moved * price[name]
    return energy


def energy_breakdown(moves: Iterable[Move], macs: int, target: Target) -> dict[str, float]:
    """Picojoules per memory, and of the array under `mac`."""
    price = picojoules_per_byte(target)
    breakdown: dict[str, float] = {"mac": macs * target.energy.mac} if macs else {}
    for move in moves:
        memory = move.memory
        breakdown[memory] = breakdown.get(memory, 0.0) + move.bytes * price[memory]
    return breakdown
