"""Prints convolutions that Gemmini's loop unit runs: DRAM loops around `convolution_tile`."""

from __future__ import annotations

from dataclasses import dataclass

from converter.ir.dims import REDUCTION
from costmodel.group.loop_convolutions import loop_steps
from emitters.gemmini.constants import ACTIVATIONS
from emitters.gemmini.expression import Expr, add, bare, mul
from emitters.gemmini.form import PIXELS, Form
from emitters.gemmini.formula import float_literal
from emitters.gemmini.nest import Loop, Nest
from emitters.gemmini.operands import Box
from emitters.gemmini.positions import Positions
from emitters.gemmini.printer import CPrinter
from emitters.gemmini.weight_loads import TAPS


@dataclass(frozen=True)
class ConvolutionLoops:
    """Prints the body of one layer's function.

    `input_box` and `output_box` are set for operands in the tile buffer.
    """

    c: CPrinter
    at: Positions
    weights: str
    """C expression of the first weight."""
    bias: str
    input_box: Box | None = None
    output_box: Box | None = None

    @property
    def form(self) -> Form:
        """What is printed."""
        return self.at.form

    @property
    def nest(self) -> Nest:
        """Its loops."""
        return self.at.nest

    def print(self) -> None:
        """Configuration, loops, tiles."""
        self._declare()
        self.c.call("begin_convolution", "&convolution")
        for operand, name in (("I", "input_half"), ("W", "weight_half")):
            if self._moves(operand):
                self.c.line(f"int32_t {name} = 2;")
        self._inside(0)

    def _declare(self) -> None:
        form, c = self.form, self.c
        taps, tap_channels, channel = self._weight_steps()
        stride, dilation = loop_steps(form.layer)
        (in_n, in_y, in_x), (out_n, out_p, out_q) = self._input_strides(), self._output_strides()
        with c.initialiser("const convolution_t convolution"):
            c.line(f".height = {form.y.size}, .width = {form.x.size},")
            c.line(f".in_lines = {in_n // in_y}, .in_pixels = {in_y // in_x}, .in_stride = {in_x},")
            c.line(f".out_lines = {out_n // out_p}, .out_pixels = {out_p // out_q}, .out_stride = {out_q},")
            c.line(f".taps = {taps}, .tap_channels = {tap_channels}, .weight_stride = {channel},")
            c.line(f".stride = {stride}, .dilation = {dilation}, .up = {form.y.pad}, .left = {form.x.pad},")
            no_bias = "true" if form.layer.bias is None else "false"
            activation, scale = ACTIVATIONS[form.layer.activation], float_literal(form.layer.scale)
            c.line(f".pixels_per_row = {form.repeats}, .no_bias = {no_bias},")
            c.line(f".activation = {activation}, .scale = {scale},")

    def _inside(self, depth: int) -> None:
        """Everything in the body of the first `depth` loops."""
        for operand, name in (("I", "input_half"), ("W", "weight_half")):
            if self._moves(operand) and depth == self.nest.fetch_position(operand, "L2"):
                self.c.line(f"{name} = 3 - {name};")
        if depth == len(self.nest.outer):
            self._tile()
            return
        loop = self.nest.outer[depth]
        with self.c.loop(loop.variable, loop.bound, loop.step):
            if loop.extent_name is not None:
                self.c.constant(loop.extent_name, loop.extent)
            self._inside(depth + 1)

    def _stays(self, operand: str) -> tuple[Loop, ...]:
        """Loops that use a tile of an operand again."""
        return self.nest.outer[self.nest.fetch_position(operand, "L2") :]

    def _moves(self, operand: str) -> bool:
        """Whether tiles of an operand that stay for a while follow one another."""
        return bool(self._stays(operand)) and self.nest.fetch_position(operand, "L2") > 0

    def _half(self, operand: str, name: str) -> Expr:
        if not self._stays(operand):
            return 0
        return name if self._moves(operand) else 1

    def _tile(self) -> None:
        at, form = self.at, self.form
        reductions = tuple(loop for loop in self.nest.outer if loop.dim in REDUCTION)
        last = [f"{loop.variable} + {loop.step} >= {bare(loop.bound)}" for loop in reductions]
        bias = "ZEROS" if form.layer.bias is None else _plus(self.bias, at.output_channel(form.dims.K))
        self.c.call(
            "convolution_tile",
            "&convolution",
            _where(_starts(self._stays("I")), self._input()),
            _where(_starts(self._stays("W")), self._weight()),
            _where(_starts(reductions), bias),
            _where(last, self._output()),
            *(e for d in PIXELS for e in (at.start("L2", d), at.extent("L2", d))),
            at.extent("L2", form.output_channel),
            *(e for d in TAPS for e in (at.start("L2", d), at.extent("L2", d))),
            at.extent("L2", form.input_channel),
            self._half("I", "input_half"),
            self._half("W", "weight_half"),
        )

    def _input_strides(self) -> tuple[int, int, int]:
        if self.input_box is None:
            _, n, h, w = self.form.input_strides
            return n, h, w
        n, h, w = self.input_box.strides
        return n, h * self.form.skip[0], w * self.form.skip[1]

    def _input(self) -> str:
        """Of the image's first pixel, which may be outside its box: the first channel of the tile."""
        form, at = self.form, self.at
        group, base = form.input_strides[0], "input"
        first: list[Expr] = [form.input_offset]
        if self.input_box is not None:
            group, (n, h, w) = form.dims.C, self.input_box.strides
            y, x = (add(f"region->in_{axis}", -first) for axis, first in zip("yx", form.first, strict=True))
            base = f"input - {add(mul('region->in_n', n), mul(y, h), mul(x, w))}"
            first = []
        first.append(at.start("L2", form.input_channel))
        if not form.depthwise:
            first.append(mul(at.start("L2", "G"), group))
        return _plus(base, add(*first))

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
        return _plus(self.weights, offset)

    def _output_strides(self) -> tuple[int, int, int]:
        _, n, p, q = self.form.output_strides
        return (n, p, q) if self.output_box is None else self.output_box.strides

    def _output(self) -> str:
        form = self.form
        group, base, first = form.output_strides[0], "result", form.layer.output.offset
        if self.output_box is not None:
            group, first, (n, p, q) = form.dims.K, 0, self.output_box.strides
            base = f"result - (region->out_n * {n} + region->out_p * {p} + region->out_q * {q})"
        return _plus(base, add(first, self.at.output_channel(group)))


def _starts(loops: tuple[Loop, ...]) -> list[str]:
    return [f"{loop.variable} == 0" for loop in loops]


def _where(conditions: list[str], pointer: str) -> str:
    return f"({' && '.join(conditions)} ? {pointer} : NULL)" if conditions else pointer


def _plus(base: str, offset: Expr) -> str:
    return base if offset == 0 else f"{base} + {bare(offset)}"
