"""Prints the loads of a later layer's first weights that go on while a layer runs.

They are spread over the products of that layer, a few before each: loads queue in order, so all of them
at once would hold up the layer's own, and the reservation station stops the core once its load entries
are full, products behind them included.  The rows they go to are nobody else's while the group runs, so
nothing waits for them but the fence at the end of the layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from converter.dims import Dims
from emitters.gemmini.form import Form
from emitters.gemmini.local_memory import weight_rows
from emitters.gemmini.memory import Memory
from emitters.gemmini.operands import print_weights
from emitters.gemmini.plan import EarlyLoads
from emitters.gemmini.printer import CPrinter


@dataclass(frozen=True)
class EarlyPrinter:
    """Prints declarations and calls of `load_early`; `first` holds in the first of several runs."""

    c: CPrinter
    loads: EarlyLoads
    memory: Memory
    element_bytes: int
    first: str = ""

    def declare(self) -> None:
        """What is loaded, and how much of it at a time."""
        c, loads = self.c, self.loads
        boxes, stride, rows, r, s, lines, columns = _boxes(loads.form, loads.tile)
        with c.initialiser("const early_t early"):
            with c.braces(".weights = {", "},"):
                print_weights(c, loads.form, self.memory, self.element_bytes)
            c.line(f".row = {loads.row}, .boxes = {boxes}, .box_stride = {stride}, .box_rows = {rows},")
            c.line(f".r = {r}, .s = {s}, .c = {lines}, .k = {columns},")
        if self.first:
            c.line("static int32_t early_next;")
            with c.block(f"if ({self.first})"):
                c.line("early_next = 0;")
        else:
            c.line("int32_t early_next = 0;")
        c.constant("early_share", _share("early_count(&early)", loads.runs))
        c.constant("early_step", _share("early_share", loads.products))
        c.constant("early_end", "early_next + early_share")

    def some(self) -> None:
        """Before a product."""
        end = "MIN(early_next + early_step, early_end)"
        self.c.line(f"early_next = load_early(&early, early_next, {end});")

    def rest(self) -> None:
        """At the end of a run."""
        self.c.line(f"{'early_next = ' if self.first else ''}load_early(&early, early_next, early_end);")


def _share(count: str, parts: int) -> str:
    """C expression of one of `parts` equal parts, rounded up."""
    return count if parts == 1 else f"({count} + {parts - 1}) / {parts}"


def _boxes(form: Form, tile: Dims) -> tuple[int, int, int, int, int, int, int]:
    """How many boxes, elements and rows from one to the next; R, S, rows and columns of a box."""
    if form.depthwise:
        block = min(form.columns, tile.G)
        pitch = form.dims.R * form.dims.S * form.columns
        return -(-tile.G // block), block * pitch, block * tile.R * tile.S, tile.R, tile.S, block, block
    rows = weight_rows(form, tile.replace({"G": 1}))
    lines, columns = (tile.K, tile.C) if form.transposed else (tile.C, tile.K)
    return tile.G, form.weight_strides[0], rows, tile.R, tile.S, lines, columns
