"""What products and convolutions on a loop unit of Gemmini's share: DRAM loops around one call per tile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from fadiff.converter.ir.loops import RELEVANT
from fadiff.costmodel.group.loop_setting import PinnedWeights
from fadiff.costmodel.group.tile_buffer import Strides
from fadiff.emitters.gemmini.expression import Expr, bare
from fadiff.emitters.gemmini.form import Form
from fadiff.emitters.gemmini.nest import Loop, Nest
from fadiff.emitters.gemmini.pipeline import LinesBeside
from fadiff.emitters.gemmini.positions import Positions
from fadiff.emitters.gemmini.printer import CPrinter
from fadiff.emitters.gemmini.side_by_side import Beside


@dataclass(frozen=True)
class LoopTiles(ABC):
    """Prints the body of one layer's function: loops, the halves that operands lie in, a call per tile.

    An operand's tile that stays for several calls is pinned to a half of the scratchpad, and its pointer is
    NULL in all of them but the first.
    """

    c: CPrinter
    at: Positions
    pinned: PinnedWeights | None
    """Weights that stay in the scratchpad from one run of the layer to the next, and where."""
    beside: Beside | LinesBeside | None
    """What the core computes meanwhile."""
    weights: str
    """C expression of the first weight."""
    bias: str
    """Likewise; empty without one."""
    input_box: Strides | None
    """Set for operands in the tile buffer."""
    output_box: Strides | None

    halves: ClassVar[tuple[tuple[str, str], ...]]
    """(operand, C variable that says in which half its tile lies)."""

    @property
    def form(self) -> Form:
        """Of the layer."""
        return self.at.form

    @property
    def nest(self) -> Nest:
        """DRAM loops outside, what the unit does inside."""
        return self.at.nest

    @abstractmethod
    def _tile(self) -> None:
        """The call that runs one tile."""

    def _loops(self) -> None:
        """All loops, with the halves declared before them."""
        for operand, name in self.halves:
            if self._moves(operand):
                self.c.line(f"int32_t {name} = 2;")
        if self.beside is not None:
            self.beside.declare(self.c)
        self._inside(0)

    def _inside(self, depth: int) -> None:
        """Everything in the body of the first `depth` loops."""
        for operand, name in self.halves:
            if self._moves(operand) and depth == self.nest.fetch_position(operand, "L2"):
                self.c.line(f"{name} = 3 - {name};")
        if depth == len(self.nest.outer):
            self._tile()
            if self.beside is not None:
                self.beside.print(self.c)
            return
        loop = self.nest.outer[depth]
        with self.c.loop(loop.variable, loop.bound, loop.step):
            if loop.extent_name is not None:
                self.c.constant(loop.extent_name, loop.extent)
            self._inside(depth + 1)

    def _stays(self, operand: str) -> tuple[Loop, ...]:
        """Loops that use a tile of an operand again."""
        return self.nest.outer[self.nest.fetch_position(operand, "L2") :]

    def _loads(self, operand: str) -> list[str]:
        """Conditions under which a call loads its tile of an operand."""
        name = self.form.layer.name
        if operand != "W" or self.pinned is None or name not in self.pinned.tiles:
            return starts(self._stays(operand))
        again = (loop for loop in self.nest.outer if loop.dim not in RELEVANT["W"])
        return [*filter(None, [self.at.region.first]), *starts(again)]

    def _moves(self, operand: str) -> bool:
        """Whether tiles of an operand that stay for a while follow one another."""
        if operand == "W" and self.pinned is not None:
            return self.pinned.half(self.form.layer.name) is None
        return bool(self._stays(operand)) and self.nest.fetch_position(operand, "L2") > 0

    def _in_halves(self) -> list[Expr]:
        """Where the tile of each operand lies: 0 alternates by itself, 1 and 2 are pinned."""
        return [name if self._moves(operand) else self._half(operand) for operand, name in self.halves]

    def _half(self, operand: str) -> int:
        if operand == "W" and self.pinned is not None:
            return self.pinned.half(self.form.layer.name) or 0
        return 1 if self._stays(operand) else 0


def starts(loops: Iterable[Loop]) -> list[str]:
    """Conditions of the first of all iterations."""
    return [f"{loop.variable} == 0" for loop in loops]


def ends(loops: Iterable[Loop]) -> list[str]:
    """Conditions of the last of all iterations."""
    return [f"{loop.variable} + {loop.step} >= {bare(loop.bound)}" for loop in loops]


def where(conditions: list[str], pointer: Expr) -> Expr:
    """The pointer under all conditions, else NULL."""
    return f"({' && '.join(conditions)} ? {bare(pointer)} : NULL)" if conditions else pointer
