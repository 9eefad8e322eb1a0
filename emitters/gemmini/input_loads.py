"""Prints how a layer's inputs get into the scratchpad: tile by tile, the next one during products of this.

Of a tile that nothing loaded ahead, the lines that products use later load during those of the lines before.
"""

from __future__ import annotations

from fadiff.converter.ir.loops import Dim
from fadiff.emitters.gemmini.expression import Expr, add, box_extent, mul, sub
from fadiff.emitters.gemmini.form import PIXELS
from fadiff.emitters.gemmini.next_tile import next_tile_of, products_of
from fadiff.emitters.gemmini.positions import Positions
from fadiff.emitters.gemmini.printer import CPrinter
from fadiff.emitters.gemmini.weight_loads import TAPS


class InputPrinter:
    """Prints the loads of one layer's input tiles to `input_row`; `image` must be declared."""

    def __init__(self, c: CPrinter, positions: Positions, places: tuple[int, ...], *, boxed: bool) -> None:
        """`places`: of the buffers, none where others keep the input in local memory; `boxed`: it is in the
        tile buffer, where the channels of all groups of a pixel are together."""
        self.c, self.at, self.places, self.boxed = c, positions, places, boxed
        self.form = positions.form
        self.gaps = self._may_have_gaps()
        # Packed loads are between fences, and so are loads with gaps.
        waits = self.gaps or self.form.repeats > 1
        self.next_tile = None if waits else next_tile_of(positions, "I", places)
        self.products = 0 if waits or not places else self._products_of_all_lines()
        """During which the lines of a tile load; 0: they load before."""

    def declare(self) -> None:
        """Before the nest: what is being loaded meanwhile, nothing yet."""
        if self.products:
            self.c.line("image_box_t input_tile = {0};")
        if self.next_tile is not None:
            self.c.line("image_box_t next_input = {0};")

    def load_tile(self) -> None:
        """The input tile, where the nest fetches it."""
        ahead = self.next_tile
        if self.gaps and (len(self.places) > 1 or self.at.region.start):
            # Pixels that no tap reads: nothing orders the next load of their rows after this one.
            self.c.call("wait_for_gemmini")
        if ahead is None:
            self._load_first()
            return
        with self.c.block(f"if ({ahead.is_first})"):
            self._load_first()
        self.c.call("load_box", "&next_input", "INT32_MAX", "INT32_MAX")
        with ahead.exists(self.c):
            other = sub(sum(self.places), "input_row")
            self.c.call(
                "next_input = image_box", "&image", other, *self._box(ahead.positions), ahead.products
            )

    def _load_first(self) -> None:
        """A tile that is not loaded yet: all of it, or the lines that are used first."""
        if not self.products:
            self.c.call("load_image", "&image", "input_row", *self._box(self.at))
            return
        m, y = self.form.mapping, self.form.y
        lines = box_extent(m.tile_l1.P, y.stride, m.tile_l2.R, y.dilation)
        self.c.call("input_tile = image_box", "&image", "input_row", *self._box(self.at), self.products)
        self.c.call("load_box", "&input_tile", "INT32_MAX", lines)

    def load_share(self) -> None:
        """Before a product: the lines it uses, what is due of the rest and of the next tile."""
        if self.products:
            at, y = self.at, self.form.y
            first = add(mul(at.within_l2("P"), y.stride), mul(at.within_l2("R"), y.dilation))
            lines = add(first, box_extent(at.extent("L0", "P"), y.stride, 1, 1))
            self.c.call("load_box", "&input_tile", "INT32_MAX", lines)
            self.c.call("load_box", "&input_tile", "moves_due(&input_tile.pace)", "INT32_MAX")
        if self.next_tile is not None:
            self.c.call("load_box", "&next_input", "moves_due(&next_input.pace)", "INT32_MAX")

    def _products_of_all_lines(self) -> int:
        nest, tile = self.at.nest, self.form.mapping.tile_l2
        loops = nest.outer + nest.inner
        for i in range(nest.fetch_position("I", "L2"), len(loops)):
            if loops[i].dim == "P" and tile.N == 1:
                return products_of(self.form, nest, i)
        return 0

    def _box(self, at: Positions) -> list[Expr]:
        form = self.form
        h, w = at.box()
        y, x = at.input_pixel("L2")
        channel = at.input_channel(boxed=self.boxed)
        if not form.depthwise:
            group_stride = form.dims.C if self.boxed else form.input_strides[0]
            channel = add(channel, mul(at.group("L2", boxed=self.boxed), group_stride))
        images = at.start("L2", "N"), at.extent("L2", "N")
        return [*images, y, h, x, w, channel, at.extent("L2", form.input_channel)]

    def _may_have_gaps(self) -> bool:
        tile, bounds = self.form.mapping.tile_l2, self.at.nest.full

        def sizes(d: Dim) -> set[int]:
            if d in self.at.region.start:
                return set(range(1, tile[d] + 1))
            return {tile[d], bounds[d] % tile[d] or tile[d]}

        return any(
            axis.has_gaps(outputs, taps)
            for axis, p, r in zip((self.form.y, self.form.x), PIXELS[1:], TAPS, strict=True)
            for outputs in sizes(p)
            for taps in sizes(r)
        )
