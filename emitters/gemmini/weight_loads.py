"""Prints how a layer's weights get into the scratchpad: tiles, slices of them, or all at once."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from fadiff.converter.ir.loops import DIMS, RELEVANT, Dim
from fadiff.emitters.gemmini.expression import Expr, add, bare, div, minimum, mul, sub
from fadiff.emitters.gemmini.form import Form
from fadiff.emitters.gemmini.local_memory import weight_tile_rows
from fadiff.emitters.gemmini.nest import Loop, Nest
from fadiff.emitters.gemmini.next_tile import NextTile, next_tile_of, products_of
from fadiff.emitters.gemmini.plan import LayerPlan
from fadiff.emitters.gemmini.positions import Positions
from fadiff.emitters.gemmini.printer import CPrinter

SLICE = 64
"""Output channels worth a slice: what one instruction moves of a row (MAX_BYTES)."""
TAPS: tuple[Dim, ...] = ("R", "S")
Spread = tuple[str, int]
"""The `early_t` of loads between products, and over how many of these."""


@dataclass(frozen=True)
class Slices:
    """A weight tile that is loaded slice by slice, one ahead of its use, so that loads and products overlap.

    Its loads are spread over the products of the slice before, as those of `NextTile` are.
    """

    loop: Loop
    """Walks the output channels of the tile; every slice is used up before the next begins."""
    size: int
    """Output channels of a slice: a multiple of the loop's step, at least a whole row segment."""
    reuse: tuple[Loop, ...]
    """Loops around it that use the whole tile again: slices are loaded in their first iteration."""
    products: int
    """Products of a slice."""


def slices_of(form: Form, nest: Nest) -> Slices | None:
    """How to slice the weight tile, None when it is used in another order or is one slice anyway."""
    reuse: list[Loop] = []
    position = nest.fetch_position("W", "L2")
    for i, loop in enumerate((nest.outer + nest.inner)[position:], position + 1):
        if loop.dim == "K":
            steps = max(1, SLICE // loop.step)
            if steps * loop.step >= form.mapping.tile_l2.K:
                return None
            products = steps * products_of(form, nest, i)
            return Slices(loop, steps * loop.step, tuple(reuse), products)
        if loop.dim in RELEVANT["W"]:
            return None
        reuse.append(loop)
    return None


class WeightPrinter:
    """Prints the loads of one layer's weights to `weight_row`; `weights` must be declared."""

    def __init__(self, c: CPrinter, positions: Positions, plan: LayerPlan) -> None:
        self.c, self.at, self.places = c, positions, plan.local.weight
        self.form = plan.form
        self.slices: Slices | None = None
        self.next_tile: NextTile | None = None
        if not (plan.resident or self.form.depthwise or self.form.transposed):
            self.slices = slices_of(plan.form, plan.nest)
            self.next_tile = next_tile_of(positions, "W", self.places)

    def declare(self) -> None:
        """Before the nest: what is being loaded meanwhile, nothing yet."""
        if self.slices is not None:
            self.c.line("early_t slice = {0};")
        if self.next_tile is not None:
            self.c.line("early_t next_weights = {0};")

    def load_tile(self) -> None:
        """The weight tile or its first slice, where the nest fetches it."""
        ahead = self.next_tile
        with self.c.block(f"if ({ahead.is_first})") if ahead is not None else nullcontext():
            self._load_slice(self.at)
        if ahead is None:
            return
        self.c.call("load_early", "&next_weights", "next_weights.end")
        with ahead.exists(self.c):
            other = sub(sum(self.places), "weight_row")
            self._load_slice(ahead.positions, other, spread=("next_weights", ahead.products))

    def _load_slice(
        self, tile: Positions, row: Expr = "weight_row", at: Expr = 0, spread: Spread | None = None
    ) -> None:
        """The weight tile; when it is sliced, only the slice from output channel `at` of the tile on."""
        start: dict[Dim, Expr] = {d: tile.start("L2", d) for d in DIMS}
        extent: dict[Dim, Expr] = {d: tile.extent("L2", d) for d in DIMS}
        if self.slices is not None:
            rows_per_block = mul(extent["R"], extent["S"], extent["C"])
            row = add(row, mul(div(at, self.form.columns), rows_per_block))
            start["K"] = add(start["K"], at)
            extent["K"] = minimum(self.slices.size, sub(extent["K"], at))
        self._load(row, start, extent, spread)

    def start_next_slice(self, loop: Loop) -> None:
        """Inside the slices' loop: this slice has to be there, the next one is loaded during its products."""
        slices = self.slices
        if slices is None or loop is not slices.loop:
            return
        after = add(loop.variable, slices.size)
        conditions = [f"{bare(after)} < {bare(loop.bound)}", *(f"{o.variable} == 0" for o in slices.reuse)]
        boundary = f"{loop.variable} % {slices.size} == 0" if slices.size > loop.step else ""
        with self.c.block(f"if ({boundary})") if boundary else nullcontext():
            self.c.call("load_early", "&slice", "slice.end")
            with self.c.block(f"if ({' && '.join(conditions)})"):
                self._load_slice(self.at, at=after, spread=("slice", slices.products))

    def load_share(self) -> None:
        """Before a product: what is due of the next slice and of the next tile."""
        if self.slices is not None:
            self.c.call("load_share", "&slice")
        if self.next_tile is not None:
            self.c.call("load_share", "&next_weights")

    def load_all(self) -> None:
        """Resident weights, group after group, in the first run for them."""
        first = self.at.region.first
        with self.c.block(f"if ({first})") if first else nullcontext():
            self._load_all()

    def _load_all(self) -> None:
        full, first = self.at.nest.full, self.at.region.start
        start: dict[Dim, Expr] = dict.fromkeys(DIMS, 0)
        start["G"], start["K"] = first.get("G", 0), first.get("K", 0)
        extent: dict[Dim, Expr] = dict(full.as_dict())
        if self.form.depthwise or full.G == 1:
            self._load("weight_row", start, extent)
            return
        with self.c.loop("g", full.G):
            row = add("weight_row", mul("g", rows_per_group(self.form)))
            self._load(row, start | {"G": add(start["G"], "g")}, extent | {"G": 1})

    def _load(
        self,
        first_row: Expr,
        start: dict[Dim, Expr],
        extent: dict[Dim, Expr],
        spread: Spread | None = None,
    ) -> None:
        """`spread`: over products, not at once; neither of depthwise nor of transposed weights."""
        form = self.form
        taps = [e for d in TAPS for e in (start[d], extent[d])]
        if form.transposed:
            column = add(start["C"], mul(start["G"], form.weight_strides[0]))
            self.c.call(
                "load_weights", "&weights", first_row, *taps, start["K"], extent["K"], column, extent["C"]
            )
            return
        if not form.depthwise:
            column = add(start["K"], mul(start["G"], form.weight_strides[0]))
            box = ("&weights", first_row, *taps, start["C"], extent["C"], column, extent["K"])
            if spread is not None:
                variable, products = spread
                self.c.call(f"{variable} = slice_of", *box, products)
            else:
                self.c.call("load_weights", *box)
            return
        # One block-diagonal tile per block of channels; row (channel, r, s) of the blob is a block long.
        groups, block = extent["G"], form.columns
        pitch = form.dims.R * form.dims.S * block
        if isinstance(groups, int) and groups <= block:
            column = mul(start["G"], pitch)
            self.c.call("load_weights", "&weights", first_row, *taps, 0, groups, column, groups)
            return
        with self.c.loop("g", groups, block):
            self.c.constant("g_count", minimum(block, sub(groups, "g")))
            row = add(first_row, mul("g", taps[1], taps[3]))
            column = mul(add(start["G"], "g"), pitch)
            self.c.call("load_weights", "&weights", row, *taps, 0, "g_count", column, "g_count")


def rows_per_group(form: Form) -> int:
    """Scratchpad rows of one group's resident weights."""
    return weight_tile_rows(form, form.dims.replace({"G": 1}))
