"""Prints how a layer's inputs get into the scratchpad: tile by tile, the next one during products of this."""

from __future__ import annotations

from converter.dims import Dim
from emitters.gemmini.expression import Expr, add, mul, sub
from emitters.gemmini.form import PIXELS
from emitters.gemmini.next_tile import next_tile_of
from emitters.gemmini.positions import Positions
from emitters.gemmini.printer import CPrinter
from emitters.gemmini.weight_loads import TAPS


class InputPrinter:
    """Prints the loads of one layer's input tiles to `input_row`; `image` must be declared."""

    def __init__(self, c: CPrinter, positions: Positions, places: tuple[int, ...], *, boxed: bool) -> None:
        """`places`: of the buffers; `boxed`: the input is in the tile buffer, where the channels of all
        groups of a pixel are together."""
        self.c, self.at, self.places, self.boxed = c, positions, places, boxed
        self.form = positions.form
        self.gaps = self._may_have_gaps()
        # Packed loads are between fences, and so are loads with gaps.
        waits = self.gaps or self.form.repeats > 1
        self.next_tile = None if waits else next_tile_of(positions, "I", places)

    @property
    def primitives(self) -> set[str]:
        """Names of those that are called."""
        return {"load_image"} if self.next_tile is None else {"load_image", "moves_due"}

    def declare(self) -> None:
        """Before the nest: what is being loaded meanwhile, nothing yet."""
        if self.next_tile is not None:
            self.c.line("image_box_t next_input = {0};")

    def load_tile(self) -> None:
        """The input tile, where the nest fetches it."""
        ahead = self.next_tile
        if self.gaps and (len(self.places) > 1 or self.at.region.start):
            # Pixels that no tap reads: nothing orders the next load of their rows after this one.
            self.c.call("wait_for_gemmini")
        if ahead is None:
            self.c.call("load_image", "&image", "input_row", *self._box(self.at))
            return
        with self.c.block(f"if ({ahead.is_first})"):
            self.c.call("load_image", "&image", "input_row", *self._box(self.at))
        self.c.call("load_box", "&next_input", "INT32_MAX")
        with ahead.exists(self.c):
            other = sub(sum(self.places), "input_row")
            self.c.call(
                "next_input = image_box", "&image", other, *self._box(ahead.positions), ahead.products
            )

    def load_share(self) -> None:
        """Before a product: what is due of the next tile."""
        if self.next_tile is not None:
            self.c.call("load_box", "&next_input", "moves_due(&next_input.pace)")

    def _box(self, at: Positions) -> list[Expr]:
        form = self.form
        h, w = at.box()
        y, x = at.input_pixel("L2")
        channel = at.start("L2", form.input_channel)
        if not form.depthwise:
            group_stride = form.dims.C if self.boxed else form.input_strides[0]
            channel = add(channel, mul(at.start("L2", "G"), group_stride))
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
