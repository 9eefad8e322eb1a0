"""How bytes, space and operators are counted: what the two profiles differ in, rule by rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fadiff.costmodel.target.target import Target

Profile = Literal["hw", "dosa"]
LatencyModel = Literal["roofline", "clock"]
"""`clock`: cycles of the program as it is emitted; `roofline`: of what is only counted."""


@dataclass(frozen=True)
class Counting:
    """The rules of one profile."""

    in_rows: bool
    """Capacity in Gemmini's rows: refetched tiles count twice, no tile splits a block of the array.  Else in
    bytes, all of which are used."""
    clips_padding: bool
    """Input boxes end at the image; else padding is part of the input."""
    moves_accumulator: bool
    """Accumulator tiles are initialised by mvin (a bias is loaded), partial sums stored as whole words,
    outputs drained by mvout.  Else as Timeloop: first read elided, one element a sum, drain free, no bias."""
    loads_zeros: bool
    """Depthwise weights come with the zeros of their block-diagonal array tiles."""
    has_tile_buffer: bool
    """What stays on chip between layers is in the tile buffer, place by place; else it is copied into the
    scratchpad."""
    charges_operators: bool
    """Adds and operators on the core cost something."""
    latency: LatencyModel
    """Cycles of the program as it is emitted, or of a roofline."""

    @property
    def unit(self) -> str:
        """Of scratchpad sizes."""
        return "rows" if self.in_rows else "bytes"

    def scratchpad_size(self, target: Target) -> int:
        """Capacity in `unit`."""
        return target.scratchpad_rows if self.in_rows else target.scratchpad_bytes

    def partial_sum_bytes(self, target: Target) -> int:
        """Of one unfinished output in DRAM."""
        return target.accumulator_bytes_per_word if self.moves_accumulator else target.element_bytes

    def latency_model(self, *, paper: bool = False) -> LatencyModel:
        """Of what is counted by these rules; no program does what the paper's fusion model counts."""
        return "roofline" if paper else self.latency

    def copies_into_scratchpad(self, *, paper: bool = False) -> bool:
        """Whether a fused tensor waits in the scratchpad; the paper's model copies by any rules."""
        return paper or not self.has_tile_buffer


COUNTING: dict[Profile, Counting] = {
    "hw": Counting(True, True, True, True, True, True, "clock"),
    "dosa": Counting(False, False, False, False, False, False, "roofline"),
}
