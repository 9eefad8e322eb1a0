"""Prints host operators that are members of a fusion group: line by line of their group tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fadiff.converter.ir.graph import Graph, HostLayer
from fadiff.converter.ir.host import Softmax, StridedOperator
from fadiff.costmodel.group.row_operators import mask_rows, row_length, source
from fadiff.emitters.gemmini.expression import Expr, add, bare, mul, sub
from fadiff.emitters.gemmini.host import host_call
from fadiff.emitters.gemmini.memory import Memory
from fadiff.emitters.gemmini.operands import pointer
from fadiff.emitters.gemmini.printer import CPrinter

Pixel = Callable[[str, Expr], str]
"""C address of a tensor's pixel in row p of image n, from the tensor's name and a column."""


class RowPrinter:
    """Prints one operator; `p` is the row in the surrounding loop."""

    def __init__(
        self,
        c: CPrinter,
        graph: Graph,
        memory: Memory,
        layer: HostLayer,
        channels: int,
        pitches: tuple[int, int],
    ) -> None:
        """`channels`: of a pixel, groups included; `pitches`: from pixel to pixel of the input and output."""
        self.c, self.graph, self.memory, self.layer, self.channels = c, graph, memory, layer, channels
        self.pitches = pitches

    def print(self, pixel: Pixel, image: Expr, first: Expr, end: Expr) -> None:
        """Columns `first` to `end` of one line of an image."""
        c, columns = self.c, sub(end, first)
        if isinstance(self.layer.operator, StridedOperator):
            if columns == 1 or set(self.pitches) == {self.channels}:
                c.constant("count", mul(columns, self.channels))
                c.constant("step", 1)
                loops = ".rank = 1, .operands = 2, .shape = &count, .strides = {&step, &step},"
            else:  # channels of a group tile beside others
                c.line(f"const int32_t shape[] = {{{bare(columns)}, {self.channels}}};")
                for name, pitch in zip(("read", "written"), self.pitches, strict=True):
                    c.line(f"const int32_t {name}[] = {{{pitch}, 1}};")
                loops = ".rank = 2, .operands = 2, .shape = shape, .strides = {read, written},"
            with c.initialiser("const loops_t loops"):
                c.line(loops)
            self._call(self.layer, pixel, first, "&loops")
            return
        length, masks = row_length(self.layer), mask_rows(self.layer)
        assert length is not None
        rows = self.channels // length
        if masks <= 1:
            c.line(f"const rows_t rows = {{{bare(mul(columns, rows))}, {length}, 1}};")
            self._call(self.layer, pixel, first, "&rows")
            return
        # Every pixel has a row of the mask: the one that its rows have in the whole tensor.
        c.line(f"const rows_t rows = {{{rows}, {length}, 1}};")
        product = source(self.graph, self.layer)
        assert product is not None
        n, p, q = (stride // length for stride in product.output.strides[1:4])
        row = f"({bare(add(mul(image, n), mul('p', p), mul('q', q)))}) % {masks}"
        assert isinstance(self.layer.operator, Softmax)
        single = replace(self.layer, operator=replace(self.layer.operator, mask_rows=1))
        with c.block(f"for (int32_t q = {bare(first)}; q < {bare(end)}; q++)"):
            self._call(single, pixel, "q", "&rows", {self.layer.inputs[-1]: f" + {row} * {length}"})

    def _call(
        self,
        layer: HostLayer,
        pixel: Pixel,
        column: Expr,
        extent: Expr,
        offsets: dict[str, str] | None = None,
    ) -> None:
        """The library call on one run of pixels; `extent` replaces the whole tensor's loops or rows."""
        addresses = {name: pixel(name, column) for name in (layer.inputs[0], layer.outputs[0])}
        for name in layer.inputs[1:]:
            constant = pointer(self.memory.tensors[name], self.graph.tensors[name])
            addresses[name] = constant + (offsets or {}).get(name, "")
        call = host_call(self.graph, layer, addresses, {})
        self.c.call(call.function, extent, *call.arguments[1:])
