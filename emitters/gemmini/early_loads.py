"""Prints the loads of a later layer's first weights that go on while a layer runs.

They are spread over the products of that layer, a few before each: loads queue in order, so all of them
at once would hold up the layer's own, and the reservation station stops the core once its load entries
are full, products behind them included (`load_early` in runtime/loads.h).  The rows they go to are
nobody else's while the group runs, so nothing waits for them but the fence at the end of the layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from fadiff.converter.ir.dims import Dims
from fadiff.emitters.gemmini.form import Form
from fadiff.emitters.gemmini.local_memory import weight_tile_rows
from fadiff.emitters.gemmini.memory import Memory
from fadiff.emitters.gemmini.operands import print_weights
from fadiff.emitters.gemmini.plan import EarlyLoads
from fadiff.emitters.gemmini.printer import CPrinter


@dataclass(frozen=True)
class EarlyPrinter:
    """Prints what `load_early` loads, and when; `first` holds in the first of several runs."""

    c: CPrinter
    loads: EarlyLoads
    memory: Memory
    element_bytes: int
    first: str = ""

    def declare(self) -> None:
        """What is loaded, and that a run of it starts."""
        c = self.c
        if self.first:
            c.line("static early_t early;")
            with c.block(f"if ({self.first})"), c.braces("early = (early_t){", "};"):
                self._describe()
        else:
            with c.initialiser("early_t early"):
                self._describe()
        c.call("start_early", "&early", self.loads.runs)

    def _describe(self) -> None:
        c, loads = self.c, self.loads
        boxes, stride, rows, r, s, lines, columns = _boxes(loads.form, loads.tile)
        with c.braces(".weights = {", "},"):
            print_weights(c, loads.form, self.memory, self.element_bytes)
        c.line(f".row = {loads.row}, .boxes = {boxes}, .box_stride = {stride}, .box_rows = {rows},")
        c.line(f".r_count = {r}, .s_count = {s}, .c_count = {lines}, .k_count = {columns},")
        c.line(f".products = {loads.products},")

    def some(self) -> None:
        """Before a product."""
        self.c.call("load_share", "&early")

    def rest(self) -> None:
        """At the end of a run."""
        self.c.call("load_early", "&early", "early.end")


def _boxes(form: Form, tile: Dims) -> tuple[int, int, int, int, int, int, int]:
    """How many boxes, elements and rows from one to the next; R, S, rows and columns of a box."""
    if form.depthwise:
        block = min(form.columns, tile.G)
        pitch = form.dims.R * form.dims.S * form.columns
        return -(-tile.G // block), block * pitch, block * tile.R * tile.S, tile.R, tile.S, block, block
    rows = weight_tile_rows(form, tile.replace({"G": 1}))
    lines, columns = (tile.K, tile.C) if form.transposed else (tile.C, tile.K)
    return tile.G, form.weight_strides[0], rows, tile.R, tile.S, lines, columns
