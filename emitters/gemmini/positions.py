"""Where the tiles of a loop nest start and how far they reach, as C expressions."""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from dataclasses import dataclass, field

from fadiff.converter.ir.loops import Dim
from fadiff.costmodel.mapping.mapping import Level
from fadiff.emitters.gemmini.expression import Expr, add, box_extent, mul
from fadiff.emitters.gemmini.form import PIXELS, Axis, Form
from fadiff.emitters.gemmini.nest import Nest, absolute


@dataclass(frozen=True)
class Region:
    """What one run of the nest computes: first output index of G, K, N, P and Q (0 where absent)."""

    start: MappingABC[Dim, Expr] = field(default_factory=dict)
    first: str = ""
    """C condition: this is the first run for its groups or channels, which loads resident weights.  Empty
    when there is only one."""


@dataclass(frozen=True)
class Positions:
    """Tiles of one layer's nest on a region of its output."""

    form: Form
    nest: Nest
    region: Region

    def start(self, level: Level, d: Dim) -> Expr:
        """First index of the tile of `level` in the whole layer."""
        return add(self.region.start.get(d, 0), absolute(self.nest, level, d))

    def extent(self, level: Level, d: Dim) -> Expr:
        """True size of the tile of `level`."""
        return self.nest.tiles[level].extent[d]

    def within_l2(self, d: Dim) -> Expr:
        """Start of the array block inside the scratchpad tile."""
        return add(self.nest.tiles["L1"].start[d], self.nest.tiles["L0"].start[d])

    def box(self) -> tuple[Expr, Expr]:
        """Height and width of the input box of the scratchpad tile."""
        h, w = (
            box_extent(self.extent("L2", p), axis.stride, self.extent("L2", r), axis.dilation)
            for p, r, axis in self._axes()
        )
        return h, w

    def input_pixel(self, level: Level) -> tuple[Expr, Expr]:
        """Image row and column that the first output and tap of the tile of `level` read."""
        y, x = (
            add(mul(self.start(level, p), axis.stride), mul(self.start(level, r), axis.dilation), -axis.pad)
            for p, r, axis in self._axes()
        )
        return y, x

    def _axes(self) -> tuple[tuple[Dim, Dim, Axis], ...]:
        """Outputs, taps and image, down and across."""
        return ("P", "R", self.form.y), ("Q", "S", self.form.x)

    def group(self, level: Level, *, boxed: bool) -> Expr:
        """First group of the tile of `level`: in the whole layer, or `boxed` in the box of a group tile."""
        return absolute(self.nest, level, "G") if boxed else self.start(level, "G")

    def input_channel(self, *, boxed: bool) -> Expr:
        """First input channel of the scratchpad tile, without its group."""
        return self._channel("L2", self.form.input_channel, boxed=boxed)

    def _channel(self, level: Level, d: Dim, *, boxed: bool) -> Expr:
        """A box has the channels of its group tile only."""
        return absolute(self.nest, level, d) if boxed else self.start(level, d)

    def output_channel(self, group_stride: int, *, boxed: bool = False) -> Expr:
        """First output channel of the accumulator tile; `group_stride` apart from group to group."""
        channel = self._channel("L1", self.form.output_channel, boxed=boxed)
        if self.form.depthwise:
            return channel
        return add(channel, mul(self.group("L1", boxed=boxed), group_stride))

    def output_pixels(self) -> list[Expr]:
        """Start and extent of the accumulator tile along N, P and Q."""
        return [e for d in PIXELS for e in (self.start("L1", d), self.extent("L1", d))]
