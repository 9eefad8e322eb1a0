"""A machine as data: memories and fan-outs from the outermost in, as Timeloop architectures describe them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from fadiff.converter.errors import BadInput
from fadiff.converter.ir.loops import RELEVANT, Dim

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
        kept = frozenset[Operand]().union(*(memory.keeps for memory in self.memories))
        missing = [DATA_SPACES[o] for o in OPERANDS if o not in kept]
        if missing:
            raise MachineError(f"no memory keeps {', '.join(missing)}; let the outermost one do so")
        names = [(level.name, level.axis if isinstance(level, FanOut) else "") for level in self.levels]
        for name in names:
            if names.count(name) > 1:
                raise MachineError(f"two levels are called {name[0]}; give each a name of its own")

    @cached_property
    def memories(self) -> tuple[Memory, ...]:
        """Outermost first."""
        return tuple(level for level in self.levels if isinstance(level, Memory))

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Levels of the memories."""
        return tuple(place for place, level in enumerate(self.levels) if isinstance(level, Memory))

    def keeping(self, operand: Operand, keeps: Sequence[frozenset[Operand]]) -> list[int]:
        """Levels of the memories that keep an operand, where each `keeps` some, outermost first."""
        return [place for place, kept in zip(self.places, keeps, strict=True) if operand in kept]

    @property
    def fan_outs(self) -> tuple[FanOut, ...]:
        """Outermost first."""
        return tuple(level for level in self.levels if isinstance(level, FanOut))

    @property
    def shared(self) -> int | None:
        """Level of the outermost memory on chip that is there once and may keep inputs and outputs: layers
        can hand tensors over in it.  None: there is no such memory."""
        for place, level in enumerate(self.levels[1:], start=1):
            if isinstance(level, FanOut):
                return None
            if {"I", "O"} <= level.keeps | level.may_keep:
                return place
        return None

    def holding(self, held: frozenset[Operand], inside: frozenset[Operand], reserved: int) -> Machine:
        """The machine as a layer sees it of which `held` operands lie whole in the shared memory, those of
        them that are `inside` nowhere else; `reserved` of its words are taken.

        Raises:
            MachineError: there is no such memory, or a fixed factor outside it cuts the operand.
        """
        shared = self.shared
        if shared is None:
            raise MachineError("no memory on chip is shared by all multipliers and keeps inputs and outputs")
        whole = dict.fromkeys((dim for operand in held for dim in sorted(RELEVANT[operand])), 1)
        levels = list(self.levels)
        for place, level in enumerate(levels[:shared]):
            exact = level.limits.exact
            if any(exact.get(dim, 1) > 1 for dim in whole):
                raise MachineError(f"fixed factors of {level.name} cut what is to stay below it")
            limits = replace(level.limits, exact={**exact, **whole})
            assert isinstance(level, Memory)
            levels[place] = replace(
                level, keeps=level.keeps - inside, may_keep=level.may_keep - inside, limits=limits
            )
        own = levels[shared]
        assert isinstance(own, Memory)
        levels[shared] = replace(
            own, keeps=own.keeps | held, may_keep=own.may_keep - held, words=own.words - reserved
        )
        return replace(self, levels=tuple(levels))

    @property
    def multipliers(self) -> int:
        """How many work at once at most."""
        return math.prod(fan_out.size for fan_out in self.fan_outs)
