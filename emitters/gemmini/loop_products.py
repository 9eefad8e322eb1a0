"""Prints matrix products that Gemmini's loop unit runs: DRAM loops around `product_tile`."""

from __future__ import annotations

from dataclasses import dataclass

from fadiff.converter.ir.loops import REDUCTION, Dim
from fadiff.emitters.gemmini.constants import stored_through
from fadiff.emitters.gemmini.expression import Expr, add, bare, mul, plus
from fadiff.emitters.gemmini.form import PIXELS
from fadiff.emitters.gemmini.formula import float_literal
from fadiff.emitters.gemmini.loop_tiles import LoopTiles, ends, starts, where
from fadiff.emitters.gemmini.outputs import not_first


@dataclass(frozen=True)
class ProductLoops(LoopTiles):
    """Prints the body of one layer's function."""

    halves = (("I", "a_half"), ("W", "b_half"))

    pitches: tuple[int | None, int | None]
    """Elements from one row of the input and output tiles to the next."""

    def print(self) -> None:
        """Configuration, loops, tiles."""
        c, form = self.c, self.form
        activation, scale = stored_through(form.layer), float_literal(form.layer.scale)
        with c.initialiser("const product_t product"):
            c.line(f".a = {self.pitches[0]}, .b = {form.weight_strides[3]}, .c = {self.pitches[1]},")
            transposed = "true" if form.transposed else "false"
            c.line(f".b_transposed = {transposed}, .activation = {activation}, .scale = {scale},")
        c.call("begin_product", "&product")
        self._loops()

    def _tile(self) -> None:
        self._call("product_tile")

    def _call(self, function: str, *factors: Expr) -> None:
        """`factors` come behind the output."""
        at, form = self.at, self.form
        reductions = tuple(loop for loop in self.nest.outer if loop.dim in REDUCTION)
        bias: Expr = "NULL"
        if form.layer.bias is not None:
            bias = where(starts(reductions), f"{self.bias} + {bare(at.output_channel(form.dims.K))}")
        accumulate = "true" if form.layer.bias is not None else not_first(reductions) or "false"
        self.c.call(
            function,
            "&product",
            where(self._loads("I"), self._input()),
            where(self._loads("W"), self._weight()),
            bias,
            where(ends(reductions), self._output()),
            *factors,
            mul(*(at.extent("L2", d) for d in PIXELS)),
            at.extent("L2", "K"),
            at.extent("L2", "C"),
            accumulate,
            *self._in_halves(),
        )

    def _input(self) -> str:
        form, at = self.form, self.at
        group, n, h, w = form.input_strides
        y, x = at.input_pixel("L2")
        first: list[Expr] = [form.input_offset]
        before = ""
        if self.input_box is not None:
            group = form.dims.C
            n, h, w = self.input_box
            before = f"region->in_n * {n} + region->in_y * {h} + region->in_x * {w}"
            h, w = h * form.skip[0], w * form.skip[1]
            first = []
        first += [mul(at.start("L2", "N"), n), mul(y, h), mul(x, w)]
        first += [at.start("L2", "C"), mul(at.group("L2", boxed=self.input_box is not None), group)]
        return _inside("input", add(*first), before)

    def _weight(self) -> str:
        form, at = self.form, self.at
        along: tuple[Dim, Dim] = ("K", "C") if form.transposed else ("C", "K")
        row, column = (at.start("L2", d) for d in along)
        group = mul(at.start("L2", "G"), form.weight_strides[0])
        return plus(self.weights, add(group, mul(row, form.weight_strides[3]), column))

    def _output(self) -> str:
        form, at = self.form, self.at
        group, *strides = form.output_strides
        before, first = "", [form.layer.output.offset]
        if self.output_box is not None:
            group, strides, first = form.dims.K, list(self.output_box), []
            n, p, q = strides
            before = f"region->out_n * {n} + region->out_p * {p} + region->out_q * {q}"
        pixels = [mul(at.start("L2", d), stride) for d, stride in zip(PIXELS, strides, strict=True)]
        channel = at.output_channel(group, boxed=self.output_box is not None)
        return _inside("result", add(*first, *pixels, channel), before)


@dataclass(frozen=True)
class CoreProducts(ProductLoops):
    """The same, issued by the core."""

    factor: int
    """From the factor of a row to that of the next."""
    stores_sums: bool

    def print(self) -> None:
        """Configuration, loops, tiles."""
        c, form = self.c, self.form
        activation, scale = stored_through(form.layer), float_literal(form.layer.scale)
        along = 1 if form.dims.R > 1 else 2
        a_tap = form.input_strides[1 + along] * (form.y, form.x)[along - 1].dilation
        with c.initialiser("core_product_t product"):
            c.line(f".a = {self.pitches[0]}, .b = {form.weight_strides[3]}, .c = {self.pitches[1]},")
            taps = form.dims.R * form.dims.S
            if taps > 1:
                c.line(f".taps = {taps}, .a_tap = {a_tap}, .b_tap = {form.weight_strides[along]},")
            else:
                c.line(".taps = 1,")
            transposed = "true" if form.transposed else "false"
            c.line(f".b_transposed = {transposed}, .activation = {activation}, .scale = {scale},")
            size = "acc_t" if self.stores_sums else "elem_t"
            block = 0 if form.layer.channel_scale is None else form.layer.channel_block
            c.line(f".size = sizeof({size}), .factor = {self.factor}, .channel_block = {block},")
        c.call("begin_core_product", "&product")
        self._loops()

    def _tile(self) -> None:
        self._call("core_tile", self._factors())

    def _factors(self) -> Expr:
        """Of the tile's first row, or of its first channel."""
        scales = self.form.layer.row_scale
        if self.form.layer.channel_scale is not None:
            return plus("channel_scales", self.at.output_channel(self.form.dims.K))
        if scales is None:
            return "NULL"
        dims: tuple[Dim, ...] = ("G", *PIXELS)
        first = [mul(self.at.start("L2", d), n) for d, n in zip(dims, scales.strides, strict=False)]
        return plus("row_scales", add(scales.offset, *first))


def _inside(base: str, offset: Expr, before: str) -> str:
    """A pointer into a box: of `offset` elements, the first `before` ones are not there."""
    return f"{base} + ({bare(offset)} - ({before}))" if before else plus(base, offset)
