"""Prints what becomes of an accumulator tile: bias in, unfinished sums out and in, results out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fadiff.converter.ir.graph import View
from fadiff.converter.ir.loops import Dim
from fadiff.costmodel.group.pooling import Pool
from fadiff.costmodel.group.tile_buffer import Strides
from fadiff.emitters.gemmini.expression import Expr, add, bare, mul
from fadiff.emitters.gemmini.form import PIXELS, Form
from fadiff.emitters.gemmini.local_memory import LocalMemory
from fadiff.emitters.gemmini.nest import Loop, Nest
from fadiff.emitters.gemmini.next_tile import products_of
from fadiff.emitters.gemmini.positions import Positions
from fadiff.emitters.gemmini.printer import CPrinter

OUTPUT_DIMS: tuple[Dim, ...] = ("N", "P", "Q", "G", "K")


@dataclass(frozen=True)
class Psum:
    """Scratch memory for unfinished sums: a dense N P Q K box of acc_t per visit of the loops outside."""

    extents: dict[Dim, int]
    """Of N, P, Q, then groups and output channels per group (depthwise: groups only)."""
    skip: int
    """Outer loops that enclose all revisits: the scratch is used anew inside them."""

    @property
    def strides(self) -> tuple[int, int, int]:
        """In sums, of N, P and Q."""
        channels = self.extents["G"] * self.extents["K"]
        return self.extents["P"] * self.extents["Q"] * channels, self.extents["Q"] * channels, channels

    @property
    def nbytes(self) -> int:
        """Size with 4-byte sums."""
        return 4 * math.prod(self.extents.values())


def psum_of(form: Form, nest: Nest) -> Psum | None:
    """The scratch a layer needs, None when no output tile leaves the accumulator unfinished."""
    revisits = nest.revisits()
    if not revisits:
        return None
    skip = nest.outer.index(revisits[0])
    extents: dict[Dim, int] = {}
    for d in OUTPUT_DIMS:
        steps = [loop.step for loop in nest.outer[:skip] if loop.dim == d]
        bound = nest.full[d]
        extents[d] = steps[-1] if steps else bound
    return Psum(extents, skip)


@dataclass(frozen=True)
class Destinations:
    """Where a finished tile goes: to `output`, in memory or the tile buffer, and more."""

    whole: bool = False
    """`whole_output`: to memory as well, each element once."""
    box: Strides | None = None
    """Of `output` in the tile buffer, where the channels of all groups of a pixel are together."""
    pool: Pool | None = None
    """`pool`: the results are pooled on their way."""


class OutputPrinter:
    """Prints the moves of accumulator tiles at `output_row`; the destinations' structs must be declared."""

    def __init__(
        self, c: CPrinter, positions: Positions, local: LocalMemory, destinations: Destinations
    ) -> None:
        self.c, self.at, self.destinations = c, positions, destinations
        self.crosses_banks = local.crosses_banks
        self.form, self.nest = positions.form, positions.nest
        self.psum = psum_of(self.form, self.nest)
        to = destinations
        self.row_scale, self.by_channel = self.form.layer.row_scale, self.form.layer.channel_scale is not None
        own_scales = self.row_scale is not None or self.by_channel
        self.stores_later = len(local.output) > 1 and self.psum is None and not (to.pool or own_scales)
        """A tile goes to `output` during the products of the next one, a few moves before each."""

    def declare(self) -> None:
        """Before the nest: what is being stored meanwhile, nothing yet."""
        if self.stores_later:
            self.c.line("tile_t last_output = {0};")

    def store_share(self) -> None:
        """Before a product: what is due of the last tile."""
        if self.stores_later:
            self.c.call("move_tile", "&last_output", "moves_due(&last_output.pace)")

    def rest(self) -> None:
        """Before the next tile's stores, and after the nest."""
        if self.stores_later:
            self.c.call("move_tile", "&last_output", "INT32_MAX")

    def begin(self) -> None:
        """The tile's first value: bias, or the sums of the last visit."""
        at, fill = self.at, tuple[Expr, ...]()
        if self.form.layer.bias is not None:
            rows = mul(*(at.extent("L1", d) for d in PIXELS))
            fill = (
                add("bias", at.output_channel(self.form.dims.K)),
                "output_row",
                rows,
                at.extent("L1", self.form.output_channel),
                self.form.columns,
            )
        if self.psum is None:
            if fill:
                self.c.call("load_bias", *fill)
            return
        with self.c.block(f"if ({not_first(self.nest.revisits())})"):
            self.c.call("move_outputs", "&psum", "true", "output_row", *self._psum_box())
        if fill:
            with self.c.block("else"):
                self.c.call("load_bias", *fill)

    def end(self) -> None:
        """Store the tile, or its unfinished sums."""
        if self.psum is None:
            self._store()
            return
        last = " && ".join(f"{r.variable} + {r.step} >= {bare(r.bound)}" for r in self.nest.revisits())
        with self.c.block(f"if ({last})"):
            self._store()
        with self.c.block("else"):
            self.c.call("move_outputs", "&psum", "false", "output_row", *self._psum_box())

    def _store(self) -> None:
        if self.destinations.pool is not None:
            self._store_pooled(self.destinations.pool)
            return
        if self.row_scale is not None:
            self._store_rows(self.row_scale)
            return
        if self.by_channel:
            self._store_channels()
            return
        channels = self.at.extent("L1", self.form.output_channel)
        pixels = self.at.output_pixels()
        group_stride = self.form.output_strides[0]
        box = [*pixels, self.at.output_channel(group_stride), channels]
        boxed = self.destinations.box is not None
        channel = self.at.output_channel(self.form.dims.K if boxed else group_stride, boxed=boxed)
        tile = ("&output", "false", "output_row", *pixels, channel, channels)
        if self.stores_later:
            self.rest()
            products = products_of(self.form, self.nest, self.nest.fetch_position("O", "L1"))
            self.c.call("last_output = tile_of", *tile, products)
        else:
            self.c.call("move_outputs", *tile)
        if self.destinations.whole:
            self.c.call(
                "store_fresh", "&whole_output", "region->fresh_p", "region->fresh_q", "output_row", *box
            )

    def _store_rows(self, scales: View) -> None:
        """Scales of groups before the tile's are passed over; channels of a depthwise layer share them."""
        of_group = 0 if self.form.depthwise else mul(self.at.start("L1", "G"), scales.strides[0])
        self.c.call("store_scaled_rows", "&output", "&scales", of_group, *self._stored_alone())

    def _store_channels(self) -> None:
        factors = add("channel_scales", self.at.output_channel(self.form.dims.K))
        self.c.call("store_scaled_channels", "&output", factors, *self._stored_alone())

    def _stored_alone(self) -> tuple[Expr, ...]:
        """A tile that goes to a tensor in memory."""
        channel = self.at.output_channel(self.form.output_strides[0])
        channels = self.at.extent("L1", self.form.output_channel)
        return ("output_row", *self.at.output_pixels(), channel, channels)

    def _store_pooled(self, pool: Pool) -> None:
        """Every destination gets the windows that lie in the tile: all of the region's along an axis without
        loops outside the tile."""
        (p, p_end), (q, q_end) = (windows_of(pool, self.at, self.nest, d) for d in ("P", "Q"))
        channel = self.at.output_channel(self.form.dims.K)
        tile = (*self.at.output_pixels(), channel, self.at.extent("L1", self.form.output_channel))
        if self.crosses_banks:
            self.c.call("wait_for_gemmini")
        rows = {"output": p, "whole_output": f"MAX({p}, region->fresh_p)"}
        for name, first in rows.items():
            if name == "output" or self.destinations.whole:
                intervals = (f"(interval_t){{{first}, {p_end}}}", f"(interval_t){{{q}, {q_end}}}")
                self.c.call("store_pooled", f"&{name}", "&pool", *intervals, "output_row", *tile)

    def _psum_box(self) -> list[Expr]:
        assert self.psum is not None
        inside = self.nest.outer[self.psum.skip :]
        start: dict[Dim, Expr] = {
            d: add(*(loop.variable for loop in inside if loop.dim == d)) for d in OUTPUT_DIMS
        }
        box = [e for d in PIXELS for e in (start[d], self.at.extent("L1", d))]
        channel = add(mul(start["G"], self.psum.extents["K"]), start["K"])
        return [*box, channel, self.at.extent("L1", self.form.output_channel)]


def windows_of(pool: Pool, at: Positions, nest: Nest, d: Dim) -> tuple[str, str]:
    """First and end of the windows in an accumulator tile, along P or Q."""
    if not any(loop.dim == d for loop in nest.outer):
        return f"region->pool_{d.lower()}.start", f"region->pool_{d.lower()}.end"
    first, count = bare(at.start("L1", d)), bare(at.extent("L1", d))
    return f"({first}) / {pool.stride}", f"({first} + {count} - 1) / {pool.stride} + 1"


def pooled_strides(pool: Pool, pixel: int) -> tuple[int, int, int]:
    """Elements from one image, row and column of a whole pooled tensor to the next."""
    _, p, q = pool.output_size
    return p * q * pixel, q * pixel, pixel


def not_first(loops: tuple[Loop, ...]) -> str:
    """C condition: some of the loops is not in its first iteration."""
    return " || ".join(f"{loop.variable} != 0" for loop in loops)
