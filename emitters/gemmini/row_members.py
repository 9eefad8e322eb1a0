"""Prints host operators that are members of a fusion group: line by line of their box in the tile buffer."""

from __future__ import annotations

from collections.abc import Callable

from converter.graph import Graph, HostLayer
from costmodel.row_operators import mask_rows, row_length, source
from emitters.gemmini.formula import float_literal, formula_name
from emitters.gemmini.memory import Memory
from emitters.gemmini.operands import pointer
from emitters.gemmini.printer import CPrinter


class RowPrinter:
    """Prints one operator; `n` and `p` are the image and row in the surrounding loops."""

    def __init__(self, c: CPrinter, graph: Graph, memory: Memory, layer: HostLayer, channels: int) -> None:
        self.c, self.graph, self.memory, self.layer, self.channels = c, graph, memory, layer, channels
        length = row_length(layer)
        assert length is not None
        self.length = length

    def print(self, line: Callable[[str, str], str]) -> set[str]:
        """One line of the region; `line(tensor, column)` is the address of a pixel of row p.

        Returns the parts of the host library that it uses.
        """
        columns = "region.q.end - region.q.start"
        if self.layer.op == "softmax":
            return self._softmax(line, columns)
        c = self.c
        c.constant("count", f"({columns}) * {self.channels}")
        c.constant("step", 1)
        with c.initialiser("const loops_t loops"):
            c.line(".rank = 1, .operands = 2, .shape = &count, .strides = {&step, &step},")
        x, y = (line(name, "region.q.start") for name in (self.layer.inputs[0], self.layer.outputs[0]))
        if self.layer.op == "lookup":
            c.call("lookup", "&loops", x, self._constant(1), y)
            return {"lookup", "loops"}
        c.call("map_elements", "&loops", x, y, formula_name(self.graph, self.layer))
        return {"formula", "loops"}

    def _softmax(self, line: Callable[[str, str], str], columns: str) -> set[str]:
        """All rows of a line at once, pixel by pixel where they have masks of their own."""
        c, rows = self.c, mask_rows(self.layer)
        parameters = [self._constant(i) for i in range(1, len(self.layer.inputs))]
        if rows == 0:
            parameters.append("NULL")
        scale = float_literal(float(str(self.layer.attributes["scale"])))
        per_pixel = self.channels // self.length
        if rows <= 1:
            c.line(f"const rows_t rows = {{({columns}) * {per_pixel}, {self.length}, 1}};")
            self._call(line, "region.q.start", parameters, scale)
        else:
            c.line(f"const rows_t rows = {{{per_pixel}, {self.length}, 1}};")
            first = source(self.graph, self.layer)
            assert first is not None
            n, p, q = (stride // self.length for stride in first.output.strides[1:4])
            with c.block("for (int32_t q = region.q.start; q < region.q.end; q++)"):
                row = f"(n * {n} + p * {p} + q * {q}) % {rows}"
                parameters[-1] = f"{parameters[-1]} + {row} * {self.length}"
                self._call(line, "q", parameters, scale)
        return {"softmax", "rows", "to_elem"}

    def _call(self, line: Callable[[str, str], str], column: str, parameters: list[str], scale: str) -> None:
        x, y = (line(name, column) for name in (self.layer.inputs[0], self.layer.outputs[0]))
        self.c.call("softmax", "&rows", x, *parameters, 1, y, scale)

    def _constant(self, i: int) -> str:
        name = self.layer.inputs[i]
        return pointer(self.memory.tensors[name], self.graph.tensors[name])
