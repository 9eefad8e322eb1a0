"""Prints convolutions that Gemmini's loop unit runs: DRAM loops around `convolution_tile`."""

from __future__ import annotations

from dataclasses import dataclass

from fadiff.converter.ir.loops import REDUCTION
from fadiff.costmodel.group.loop_convolutions import loop_steps
from fadiff.costmodel.group.pooling import Pool
from fadiff.emitters.gemmini.constants import stored_through
from fadiff.emitters.gemmini.expression import Expr, add, bare, mul, plus
from fadiff.emitters.gemmini.form import PIXELS
from fadiff.emitters.gemmini.formula import float_literal
from fadiff.emitters.gemmini.loop_tiles import LoopTiles, ends, starts, where
from fadiff.emitters.gemmini.outputs import pooled_strides, windows_of
from fadiff.emitters.gemmini.weight_loads import TAPS


@dataclass(frozen=True)
class ConvolutionLoops(LoopTiles):
    """Prints the body of one layer's function."""

    halves = (("I", "input_half"), ("W", "weight_half"))

    pool: Pool | None
    """What its stores do."""

    def print(self) -> None:
        """Configuration, loops, tiles."""
        self._declare()
        self.c.call("begin_convolution", "&convolution")
        self._loops()

    def _declare(self) -> None:
        form, c = self.form, self.c
        taps, tap_channels, channel = self._weight_steps()
        stride, dilation = loop_steps(form.layer)
        (in_n, in_y, in_x), (out_n, out_p, out_q) = self._input_strides(), self._output_strides()
        fields = [
            f".height = {form.y.size}, .width = {form.x.size}",
            f".in_lines = {in_n // in_y}, .in_pixels = {in_y // in_x}, .in_stride = {in_x}",
            f".out_lines = {out_n // out_p}, .out_pixels = {out_p // out_q}, .out_stride = {out_q}",
        ]
        if self.input_box is not None:
            n, h, w = self.input_box
            y, x = (add(f"region->in_{axis}", -at) for axis, at in zip("yx", form.first, strict=True))
            fields.append(f".in_first = {bare(add(mul('region->in_n', n), mul(y, h), mul(x, w)))}")
        if self.output_box is not None:
            n, p, q = self.output_box
            fields.append(f".out_first = region->out_n * {n} + region->out_p * {p} + region->out_q * {q}")
        no_bias = "true" if form.layer.bias is None else "false"
        activation, scale = stored_through(form.layer), float_literal(form.layer.scale)
        fields += [
            f".taps = {taps}, .tap_channels = {tap_channels}, .weight_stride = {channel}",
            f".stride = {stride}, .dilation = {dilation}, .up = {form.y.pad}, .left = {form.x.pad}",
            f".pixels_per_row = {form.repeats}, .no_bias = {no_bias}",
            f".activation = {activation}, .scale = {scale}",
        ]
        c.fields("const convolution_t convolution", fields)

    def _tile(self) -> None:
        at, form = self.at, self.form
        reductions = tuple(loop for loop in self.nest.outer if loop.dim in REDUCTION)
        bias = "ZEROS" if form.layer.bias is None else plus(self.bias, at.output_channel(form.dims.K))
        if self.pool is not None:
            windows = [e for d in ("P", "Q") for e in windows_of(self.pool, at, self.nest, d)]
            numbers = [self.pool.kernel, self.pool.stride, *self.pool.pads, *windows]
            self.c.fields("const windows_t windows", list(map(str, numbers)))
        self.c.call(
            "convolution_tile",
            "&convolution",
            "NULL" if self.pool is None else "&windows",
            where(self._loads("I"), self._input()),
            where(self._loads("W"), self._weight()),
            where(starts(reductions), bias),
            where(ends(reductions), self._output()),
            *(e for d in PIXELS for e in (at.start("L2", d), at.extent("L2", d))),
            at.extent("L2", form.output_channel),
            *(e for d in TAPS for e in (at.start("L2", d), at.extent("L2", d))),
            at.extent("L2", form.input_channel),
            *self._in_halves(),
        )

    def _input_strides(self) -> tuple[int, int, int]:
        if self.input_box is None:
            _, n, h, w = self.form.input_strides
            return n, h, w
        n, h, w = self.input_box
        return n, h * self.form.skip[0], w * self.form.skip[1]

    def _input(self) -> str:
        """Of the first pixel of the image, or of its box: the first channel of the tile."""
        form, at = self.form, self.at
        group = form.input_strides[0]
        first: list[Expr] = [form.input_offset]
        if self.input_box is not None:
            group, first = form.dims.C, []
        first.append(at.input_channel(boxed=self.input_box is not None))
        if not form.depthwise:
            first.append(mul(at.group("L2", boxed=self.input_box is not None), group))
        return plus("input", add(*first))

    def _weight_steps(self) -> tuple[int, int, int]:
        """Taps of a kernel line, channels of a tap and elements of a channel of the weights in memory."""
        form = self.form
        if form.depthwise:
            return form.dims.S, form.columns, form.columns
        _, r, s, c = form.weight_strides
        if form.dims.S > 1:
            return (r // s if form.dims.R > 1 else form.dims.S), s // c, c
        return 1, (r // c if form.dims.R > 1 else form.dims.C), c

    def _weight(self) -> str:
        form, at = self.form, self.at
        if form.depthwise:  # one block-diagonal tile per block of channels
            offset = mul(at.start("L2", "G"), form.dims.R * form.dims.S * form.columns)
        else:
            group, *_, channel = form.weight_strides
            offset = add(
                mul(at.start("L2", "G"), group), mul(at.start("L2", "C"), channel), at.start("L2", "K")
            )
        return plus(self.weights, offset)

    def _output_strides(self) -> tuple[int, int, int]:
        if self.output_box is not None:
            return self.output_box
        _, n, p, q = self.form.output_strides
        return (n, p, q) if self.pool is None else pooled_strides(self.pool, q)

    def _output(self) -> str:
        form = self.form
        group, first = form.output_strides[0], form.layer.output.offset
        if self.output_box is not None:
            group, first = form.dims.K, 0
        channel = self.at.output_channel(group, boxed=self.output_box is not None)
        return plus("result", add(first, channel))
