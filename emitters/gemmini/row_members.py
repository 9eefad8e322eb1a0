"""Prints host operators that are members of a fusion group: line by line of their group tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fadiff.converter.ir.graph import Graph, HostLayer
from fadiff.converter.ir.host import Softmax, StridedOperator
from fadiff.costmodel.group.row_operators import mask_rows, row_length, source
from fadiff.emitters.gemmini.expression import Expr, add, bare, mul, sub
from fadiff.emitters.gemmini.host import host_call
from fadiff.emitters.gemmini.memory import Memory
from fadiff.emitters.gemmini.operands import pointer
from fadiff.emitters.gemmini.printer import CPrinter

_Axis = tuple[Expr, tuple[int, int]]
"""How many steps, and how long they are in the input and in the output."""
Pixel = Callable[[str, Expr, Expr], str]
"""C address of a tensor's pixel in an image, from the tensor's name, a line and a column."""


@dataclass(frozen=True)
class Interval:
    """Lines or columns, and how far apart two are in the input and in the output."""

    start: Expr
    end: Expr
    pitches: tuple[int, int]

    @property
    def count(self) -> Expr:
        """How many."""
        return sub(self.end, self.start)


class RowPrinter:
    """Prints one operator."""

    def __init__(
        self, c: CPrinter, graph: Graph, memory: Memory, layer: HostLayer, channels: int, pixel: Pixel
    ) -> None:
        """`channels`: of a pixel, groups included."""
        self.c, self.graph, self.memory, self.layer = c, graph, memory, layer
        self.channels, self.pixel = channels, pixel

    def print(self, image: Expr, lines: Interval, columns: Interval) -> None:
        """Some columns of some lines of an image.

        In one call where that can be: beginning one takes a Rocket core 200 to 300 cycles (RTL).
        """
        axes = self._axes(lines, columns)
        in_order = isinstance(self.layer.operator, StridedOperator) or (not axes[1:] and self._adjoin(axes))
        if in_order and mask_rows(self.layer) <= 1:
            self._run(axes, (lines.start, columns.start))
            return
        with self.c.block(f"for (int32_t p = {bare(lines.start)}; p < {bare(lines.end)}; p++)"):
            self._line(image, columns)

    @property
    def _length(self) -> int:
        """Elements that the operator needs together."""
        length = row_length(self.layer)
        assert length is not None
        return length

    def _axes(self, *around: Interval) -> list[_Axis]:
        """Of what the operator needs together, outermost first: without those of one step, neighbours that
        adjoin as one."""
        unit = self._length
        inside = (self.channels // unit, (unit, unit))
        found: list[_Axis] = []
        for count, pitches in (inside, *((axis.count, axis.pitches) for axis in reversed(around))):
            inner, steps = found[0] if found else (count, (0, 0))
            if isinstance(inner, int) and pitches == tuple(inner * step for step in steps):
                found[0] = (mul(count, inner), steps)
            elif count != 1:
                found.insert(0, (count, pitches))
        return found or [inside]

    def _adjoin(self, axes: list[_Axis]) -> bool:
        return axes[-1][1] == (self._length, self._length)

    def _run(self, axes: list[_Axis], first: tuple[Expr, Expr]) -> None:
        """The operator along axes; where it needs more than an element, along one."""
        c = self.c
        if not isinstance(self.layer.operator, StridedOperator):
            [(count, _)] = axes
            c.line(f"const rows_t rows = {{{bare(count)}, {self._length}, 1}};")
            self._call(self.layer, first, "&rows")
            return
        if len(axes) == 1 and self._adjoin(axes):
            c.constant("count", axes[0][0])
            c.constant("step", 1)
            loops = ".rank = 1, .operands = 2, .shape = &count, .strides = {&step, &step},"
        else:  # channels of a group tile, or columns, beside others
            c.line(f"const int32_t shape[] = {{{', '.join(bare(count) for count, _ in axes)}}};")
            for at, name in enumerate(("read", "written")):
                steps = ", ".join(str(pitches[at]) for _, pitches in axes)
                c.line(f"const int32_t {name}[] = {{{steps}}};")
            loops = f".rank = {len(axes)}, .operands = 2, .shape = shape, .strides = {{read, written}},"
        with c.initialiser("const loops_t loops"):
            c.line(loops)
        self._call(self.layer, first, "&loops")

    def _line(self, image: Expr, columns: Interval) -> None:
        """Columns of line `p`."""
        length, masks = self._length, mask_rows(self.layer)
        if masks <= 1:
            self._run(self._axes(columns), ("p", columns.start))
            return
        # Every pixel has a row of the mask: the one that its rows have in the whole tensor.
        self.c.line(f"const rows_t rows = {{{self.channels // length}, {length}, 1}};")
        product = source(self.graph, self.layer)
        assert product is not None
        n, p, q = (stride // length for stride in product.output.strides[1:4])
        row = f"({bare(add(mul(image, n), mul('p', p), mul('q', q)))}) % {masks}"
        assert isinstance(self.layer.operator, Softmax)
        single = replace(self.layer, operator=replace(self.layer.operator, mask_rows=1))
        with self.c.block(f"for (int32_t q = {bare(columns.start)}; q < {bare(columns.end)}; q++)"):
            self._call(single, ("p", "q"), "&rows", {self.layer.inputs[-1]: f" + {row} * {length}"})

    def _call(
        self,
        layer: HostLayer,
        first: tuple[Expr, Expr],
        extent: Expr,
        offsets: dict[str, str] | None = None,
    ) -> None:
        """The library call from a line and column on; `extent` replaces the whole tensor's loops or rows."""
        addresses = {name: self.pixel(name, *first) for name in (layer.inputs[0], layer.outputs[0])}
        for name in layer.inputs[1:]:
            constant = pointer(self.memory.tensors[name], self.graph.tensors[name])
            addresses[name] = constant + (offsets or {}).get(name, "")
        call = host_call(self.graph, layer, addresses, {})
        self.c.call(call.function, extent, *call.arguments[1:])
