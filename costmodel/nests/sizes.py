"""Sizes of a machine that a designer may choose, and the machine with other ones.

Energies of a memory follow its size: an access costs the square root of how many times larger it is (the
rule of thumb for SRAM of Horowitz, ISSCC 2014: 8 KB 10 pJ, 32 KB 20 pJ), leakage is proportional to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from fadiff.costmodel.nests.machine import FanOut, Level, Machine, MachineError, Memory

_BANDWIDTHS = ("read_bandwidth", "write_bandwidth", "shared_bandwidth")


def sizes_of(machine: Machine) -> dict[str, float]:
    """Sizes by name, as in an architecture file: `buffer.entries` (words of one instance),
    `buffer.read_bandwidth` (words a cycle), `rows.meshY` (parts of one instance above).  What is unlimited
    is no size."""
    found: dict[str, float] = {}
    for level in machine.levels:
        if isinstance(level, FanOut):
            found[f"{level.name}.mesh{level.axis}"] = level.size
        else:
            found[f"{level.name}.entries"] = level.words
            found |= {f"{level.name}.{name}": getattr(level, name) for name in _BANDWIDTHS}
    return {name: size for name, size in found.items() if size < math.inf}


def resized(machine: Machine, sizes: Mapping[str, int]) -> Machine:
    """The machine with other sizes, its energies with them.

    Raises:
        MachineError: it has no such size, or a size is no positive number.
    """
    known = sizes_of(machine)
    for name, size in sizes.items():
        if name not in known:
            raise MachineError(f"{machine.name} has no size {name}; it has {', '.join(known)}")
        if size < 1:
            raise MachineError(f"{name}: {size} is no size; give a positive whole number")
    name = "-".join([machine.name, *map(str, sizes.values())])
    return replace(machine, name=name, levels=tuple(_resized(level, sizes) for level in machine.levels))


def _resized(level: Level, sizes: Mapping[str, int]) -> Level:
    if isinstance(level, FanOut):
        return replace(level, size=sizes.get(f"{level.name}.mesh{level.axis}", level.size))
    bandwidths = {name: sizes.get(f"{level.name}.{name}", getattr(level, name)) for name in _BANDWIDTHS}
    words = sizes.get(f"{level.name}.entries", level.words)
    larger = 1.0 if words == level.words else words / level.words
    return replace(_scaled(level, larger), words=words, **bandwidths)


def _scaled(memory: Memory, larger: float) -> Memory:
    return replace(
        memory,
        read_pj=memory.read_pj * math.sqrt(larger),
        write_pj=memory.write_pj * math.sqrt(larger),
        update_pj=memory.update_pj * math.sqrt(larger),
        leak_pj=memory.leak_pj * larger,
    )
