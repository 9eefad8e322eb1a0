"""Sizes of a machine that a designer may choose, and the machine with other ones.

Energies of a memory follow its size: an access costs the square root of how many times larger it is (the
rule of thumb for SRAM of Horowitz, ISSCC 2014: 8 KB 10 pJ, 32 KB 20 pJ), leakage is proportional to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from fadiff.costmodel.nests.machine import FanOut, Level, Machine, MachineError, Memory

Bandwidth = Literal["read_bandwidth", "write_bandwidth", "shared_bandwidth"]
BANDWIDTHS: tuple[Bandwidth, ...] = ("read_bandwidth", "write_bandwidth", "shared_bandwidth")


def sizes_of(machine: Machine) -> dict[str, float]:
    """Sizes by name, as in an architecture file: `buffer.entries` (words of one instance),
    `buffer.read_bandwidth` (words a cycle), `rows.meshY` (parts of one instance above).  What is unlimited
    is no size."""
    found: dict[str, float] = {}
    for level in machine.levels:
        if isinstance(level, FanOut):
            found[_mesh(level)] = level.size
        else:
            found[f"{level.name}.entries"] = level.words
            found |= {f"{level.name}.{name}": getattr(level, name) for name in BANDWIDTHS}
    return {name: size for name, size in found.items() if size < math.inf}


class Sized:
    """A machine with other sizes: numbers, or tensors of many machines at once."""

    def __init__(self, machine: Machine, sizes: Mapping[str, Any]) -> None:
        """`sizes` by the names of `sizes_of`; what is missing is the machine's."""
        self.machine, self._sizes = machine, sizes

    def parts(self, fan_out: FanOut) -> Any:
        """Of one instance above."""
        return self._sizes.get(_mesh(fan_out), fan_out.size)

    def entries(self, memory: Memory) -> Any:
        """Words of one instance."""
        return self._sizes.get(f"{memory.name}.entries", memory.words)

    def bandwidth(self, memory: Memory, name: Bandwidth) -> Any:
        """Words a cycle."""
        return self._sizes.get(f"{memory.name}.{name}", getattr(memory, name))

    def access(self, memory: Memory) -> Any:
        """How many times the machine's energy an access costs."""
        return self.leak(memory) ** 0.5

    def leak(self, memory: Memory) -> Any:
        """How many times the machine's energy leaks: how many times the entries there are."""
        entries = self._sizes.get(f"{memory.name}.entries")
        return 1.0 if entries is None else entries / memory.words


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
    sized = Sized(machine, sizes)
    name = "-".join([machine.name, *map(str, sizes.values())])
    return replace(machine, name=name, levels=tuple(_resized(level, sized) for level in machine.levels))


def _resized(level: Level, sized: Sized) -> Level:
    if isinstance(level, FanOut):
        return replace(level, size=sized.parts(level))
    access = sized.access(level)
    return replace(
        level,
        words=sized.entries(level),
        read_bandwidth=sized.bandwidth(level, "read_bandwidth"),
        write_bandwidth=sized.bandwidth(level, "write_bandwidth"),
        shared_bandwidth=sized.bandwidth(level, "shared_bandwidth"),
        read_pj=access * level.read_pj,
        write_pj=access * level.write_pj,
        update_pj=access * level.update_pj,
        leak_pj=sized.leak(level) * level.leak_pj,
    )


def _mesh(fan_out: FanOut) -> str:
    return f"{fan_out.name}.mesh{fan_out.axis}"
