"""A machine as data: memories and fan-outs from the outermost in, as Timeloop architectures describe them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fadiff.converter.errors import BadInput
from fadiff.converter.ir.dims import Dim

Operand = Literal["W", "I", "O"]
OPERANDS: tuple[Operand, ...] = ("W", "I", "O")
"""Weights, inputs, outputs of a product."""
DATA_SPACES: Mapping[Operand, str] = {"W": "Weights", "I": "Inputs", "O": "Outputs"}
"""Timeloop's names of them."""


class MachineError(BadInput, ValueError):
    """A machine that cannot be, or cannot run a layer: the message names the node and what to do."""


@dataclass(frozen=True)
class LoopLimits:
    """What the loops of a level may be (Timeloop: constraints of its temporal or spatial loops).

    `exact` factors; `most` largest factors; `inner` dimensions whose loops must be innermost.
    """

    exact: Mapping[Dim, int] = field(default_factory=dict)
    most: Mapping[Dim, int] = field(default_factory=dict)
    inner: tuple[Dim, ...] = ()

    def largest(self, dim: Dim) -> float:
        """Largest factor of a dimension."""
        return self.exact.get(dim, self.most.get(dim, math.inf))


@dataclass(frozen=True)
class Memory:
    """One memory level: `words` per instance, bandwidths in words per cycle and instance, energies in pJ.

    Energies are for one access of `block` words by `cluster` instances together; `leak_pj` for one cycle of
    one instance.  It keeps `keeps`, and of `may_keep` what a mapping chooses; the other operands pass by.
    """

    name: str
    keeps: frozenset[Operand]
    may_keep: frozenset[Operand] = frozenset()
    words: float = math.inf
    block: int = 1
    cluster: int = 1
    word_bits: int = 8
    read_bandwidth: float = math.inf
    write_bandwidth: float = math.inf
    shared_bandwidth: float = math.inf
    read_pj: float = 0.0
    write_pj: float = 0.0
    update_pj: float = 0.0
    leak_pj: float = 0.0
    limits: LoopLimits = LoopLimits()


@dataclass(frozen=True)
class FanOut:
    """`size` equal parts below, along one axis of a mesh; `limits` say which dimensions may be spread."""

    name: str
    axis: Literal["X", "Y"]
    size: int
    limits: LoopLimits = LoopLimits()


Level = Memory | FanOut


@dataclass(frozen=True)
class Machine:
    """Levels from the outermost memory in; what multiplies stands below the last.

    Raises:
        MachineError: two levels of one name, an operand that the outermost memory does not keep, no memory.
    """

    name: str
    levels: tuple[Level, ...]
    mac_pj: float
    mac_bits: int = 8

    def __post_init__(self) -> None:
        if not self.memories or not isinstance(self.levels[0], Memory):
            raise MachineError("the outermost level must be a memory; add the DRAM")
        missing = [DATA_SPACES[o] for o in OPERANDS if o not in self.memories[0].keeps]
        if missing:
            where = self.memories[0].name
            raise MachineError(f"{where} does not keep {', '.join(missing)}; the outermost memory must")
        names = [(level.name, level.axis if isinstance(level, FanOut) else "") for level in self.levels]
        for name in names:
            if names.count(name) > 1:
                raise MachineError(f"two levels are called {name[0]}; give each a name of its own")

    @property
    def memories(self) -> tuple[Memory, ...]:
        """Outermost first."""
        return tuple(level for level in self.levels if isinstance(level, Memory))

    @property
    def fan_outs(self) -> tuple[FanOut, ...]:
        """Outermost first."""
        return tuple(level for level in self.levels if isinstance(level, FanOut))

    @property
    def multipliers(self) -> int:
        """How many work at once at most."""
        return math.prod(fan_out.size for fan_out in self.fan_outs)
