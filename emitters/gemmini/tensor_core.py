"""Prints the loop nest of one tensor-core layer: fetches where the contract puts them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from converter.dims import DIMS, Dim
from costmodel.mapping import Level
from emitters.gemmini.expression import Expr, add, bare, box_extent, div, minimum, mul, sub
from emitters.gemmini.form import PIXELS, Form
from emitters.gemmini.local_memory import LocalMemory
from emitters.gemmini.nest import Loop, Nest, absolute
from emitters.gemmini.printer import CPrinter

OUTPUT_DIMS: tuple[Dim, ...] = ("N", "P", "Q", "G", "K")
TAPS: tuple[Dim, ...] = ("R", "S")


@dataclass(frozen=True)
class Region:
    """What one run of the nest computes: first output index and extent of N, P and Q."""

    start: dict[Dim, Expr]
    extent: dict[Dim, Expr]


@dataclass(frozen=True)
class Psum:
    """Scratch memory for unfinished sums: a dense N P Q K box of acc_t per visit of the loops outside."""

    extents: dict[Dim, int]
    """Of N, P, Q, then groups and output channels per group (depthwise: groups only)."""
    skip: int
    """Outer loops that enclose all revisits: the scratch is used anew inside them."""

    @property
    def strides(self) -> tuple[int, int, int]:
        """In sums, of N, P and Q."""
        channels = self.extents["G"] * self.extents["K"]
        return self.extents["P"] * self.extents["Q"] * channels, self.extents["Q"] * channels, channels

    @property
    def nbytes(self) -> int:
        """Size with 4-byte sums."""
        return 4 * math.prod(self.extents.values())


def psum_of(form: Form, nest: Nest) -> Psum | None:
    """The scratch a layer needs, None when no output tile leaves the accumulator unfinished."""
    revisits = nest.revisits()
    if not revisits:
        return None
    skip = nest.outer.index(revisits[0])
    extents: dict[Dim, int] = {}
    for d in OUTPUT_DIMS:
        steps = [loop.step for loop in nest.outer[:skip] if loop.dim == d]
        bound = nest.full[d]
        extents[d] = steps[-1] if steps else bound
    return Psum(extents, skip)


class LayerPrinter:
    """Prints one nest.

    The surrounding function must declare `image`, `weights`, `output` (and `bias`, `psum` where
    used) as the primitives expect them, and have configured the array.
    """

    def __init__(self, c: CPrinter, form: Form, nest: Nest, local: LocalMemory, region: Region) -> None:
        self.c, self.form, self.nest, self.local, self.region = c, form, nest, local, region
        self.psum = psum_of(form, nest)
        self.resident = False

    def print(self, *, load_weights: bool = True) -> None:
        """The whole nest; `load_weights` is False when they are resident already."""
        self.resident = not load_weights
        for name, places in (
            ("input", self.local.input),
            ("weight", self.local.weight),
            ("output", self.local.output),
        ):
            if len(places) > 1:
                self.c.line(f"int32_t {name}_row = {places[1]};")
            else:
                self.c.constant(f"{name}_row", places[0])
        self._inside(0)

    def _inside(self, depth: int) -> None:
        """Everything in the body of the first `depth` outer loops."""
        if self.psum is not None and depth == self.nest.outer.index(self.nest.revisits()[-1]) + 1:
            # The sums stored on the previous visit are loaded again below: DRAM order is not tracked.
            with self.c.block(f"if ({self._not_first(self.nest.revisits())})"):
                self.c.call("wait_for_gemmini")
        if depth == self.nest.fetch_position("I", "L2"):
            self._load_input()
        if depth == self.nest.fetch_position("W", "L2") and not self.resident:
            self._load_weights()
        output_here = depth == self.nest.fetch_position("O", "L1")
        if output_here:
            self._begin_output()
        if depth == len(self.nest.outer):
            self._compute()
        else:
            loop = self.nest.outer[depth]
            with self.c.loop(loop.variable, loop.bound, loop.step):
                self._name_extent(loop)
                self._inside(depth + 1)
        if output_here:
            self._end_output()

    def _name_extent(self, loop: Loop) -> None:
        if loop.extent_name is not None:
            self.c.constant(loop.extent_name, loop.extent)

    # Positions and extents

    def _start(self, level: Level, d: Dim) -> Expr:
        """First index of the tile of `level` in the whole layer."""
        return add(self.region.start.get(d, 0), absolute(self.nest, level, d))

    def _extent(self, level: Level, d: Dim) -> Expr:
        return self.nest.tiles[level].extent[d]

    def _within_l2(self, d: Dim) -> Expr:
        """Start of the array block inside the scratchpad tile."""
        return add(self.nest.tiles["L1"].start[d], self.nest.tiles["L0"].start[d])

    def _box(self) -> tuple[Expr, Expr]:
        """Height and width of the input box of the scratchpad tile."""
        form = self.form
        h = box_extent(self._extent("L2", "P"), form.y.stride, self._extent("L2", "R"), form.y.dilation)
        w = box_extent(self._extent("L2", "Q"), form.x.stride, self._extent("L2", "S"), form.x.dilation)
        return h, w

    def _not_first(self, loops: tuple[Loop, ...]) -> str:
        return " || ".join(f"{loop.variable} != 0" for loop in loops)

    def _flip(self, name: str, places: tuple[int, ...]) -> None:
        if len(places) > 1:
            self.c.line(f"{name}_row = {sum(places)} - {name}_row;")

    # Fetches

    def _load_input(self) -> None:
        form = self.form
        h, w = self._box()
        y = add(
            mul(self._start("L2", "P"), form.y.stride), mul(self._start("L2", "R"), form.y.dilation), -form.y.pad
        )
        x = add(
            mul(self._start("L2", "Q"), form.x.stride), mul(self._start("L2", "S"), form.x.dilation), -form.x.pad
        )
        channel = self._start("L2", form.input_channel)
        if not form.depthwise:
            channel = add(channel, mul(self._start("L2", "G"), form.input_strides[0]))
        self._flip("input", self.local.input)
        self.c.call(
            "load_image", "&image", "input_row", self._start("L2", "N"), self._extent("L2", "N"), y, h, x, w,
            channel, self._extent("L2", form.input_channel),
        )  # fmt: skip

    def _load_weights(self) -> None:
        form = self.form
        self._flip("weight", self.local.weight)
        taps = [e for d in TAPS for e in (self._start("L2", d), self._extent("L2", d))]
        if not form.depthwise:
            column = add(self._start("L2", "K"), mul(self._start("L2", "G"), form.weight_strides[0]))
            self.c.call(
                "load_weights", "&weights", "weight_row", *taps, self._start("L2", "C"), self._extent("L2", "C"),
                column, self._extent("L2", "K"),
            )  # fmt: skip
            return
        # One block-diagonal tile per `columns` channels; row (channel, r, s) of the blob has `columns` weights.
        groups, block = self._extent("L2", "G"), form.columns
        pitch = form.dims.R * form.dims.S * block
        rows_per_channel = mul(taps[1], taps[3])
        if isinstance(groups, int) and groups <= block:
            self.c.call(
                "load_weights", "&weights", "weight_row", *taps, 0, groups, mul(self._start("L2", "G"), pitch), groups
            )
            return
        with self.c.loop("g", groups, block):
            self.c.constant("g_count", minimum(block, sub(groups, "g")))
            self.c.call(
                "load_weights", "&weights", add("weight_row", mul("g", rows_per_channel)), *taps, 0, "g_count",
                mul(add(self._start("L2", "G"), "g"), pitch), "g_count",
            )  # fmt: skip

    # Outputs

    def _output_box(self) -> list[Expr]:
        """Start and extent of the accumulator tile along N, P, Q and the output channels."""
        form, box = self.form, list[Expr]()
        for d in PIXELS:
            box += [self._start("L1", d), self._extent("L1", d)]
        return [*box, self._output_channel(form.output_strides[0]), self._extent("L1", form.output_channel)]

    def _output_channel(self, group_stride: int) -> Expr:
        channel = self._start("L1", self.form.output_channel)
        return channel if self.form.depthwise else add(channel, mul(self._start("L1", "G"), group_stride))

    def _psum_box(self) -> list[Expr]:
        assert self.psum is not None
        inside = self.nest.outer[self.psum.skip :]
        box: list[Expr] = []
        start: dict[Dim, Expr] = {
            d: add(*(loop.variable for loop in inside if loop.dim == d)) for d in OUTPUT_DIMS
        }
        for d in PIXELS:
            box += [start[d], self._extent("L1", d)]
        channel = add(mul(start["G"], self.psum.extents["K"]), start["K"])
        return [*box, channel, self._extent("L1", self.form.output_channel)]

    def _begin_output(self) -> None:
        self._flip("output", self.local.output)
        fill: tuple[Expr, ...] = ()
        if self.form.layer.bias is not None:
            rows = mul(*(self._extent("L1", d) for d in PIXELS))
            fill = (
                add("bias", self._output_channel(self.form.dims.K)), "output_row", rows,
                self._extent("L1", self.form.output_channel), self.form.columns,
            )  # fmt: skip
        revisits = self.nest.revisits()
        if self.psum is None:
            if fill:
                self.c.call("load_bias", *fill)
            return
        with self.c.block(f"if ({self._not_first(revisits)})"):
            self.c.call("move_outputs", "&psum", "true", "output_row", *self._psum_box())
        if fill:
            with self.c.block("else"):
                self.c.call("load_bias", *fill)

    def _end_output(self) -> None:
        store = ("&output", "false", "output_row", *self._output_box())
        revisits = self.nest.revisits()
        if self.psum is None:
            self.c.call("move_outputs", *store)
            return
        last = " && ".join(f"{r.variable} + {r.step} >= {bare(r.bound)}" for r in revisits)
        with self.c.block(f"if ({last})"):
            self.c.call("move_outputs", *store)
        with self.c.block("else"):
            self.c.call("move_outputs", "&psum", "false", "output_row", *self._psum_box())

    # Compute

    def _compute(self) -> None:
        form = self.form
        h, w = self._box()
        line = mul(w, form.y.stride)
        p1, q1 = self._extent("L1", "P"), self._extent("L1", "Q")
        members = ", ".join(bare(e) for e in (mul(h, w), line, form.x.stride, mul(p1, q1), q1))
        self.c.line(f"const stream_t stream = {{{members}}};")
        self._blocks(self.nest.inner)

    def _blocks(self, loops: tuple[Loop, ...]) -> None:
        """The loops of L1 and the array block inside them."""
        if not loops:
            self._multiply()
            return
        with self.c.loop(loops[0].variable, loops[0].bound, loops[0].step):
            self._name_extent(loops[0])
            self._blocks(loops[1:])

    def _multiply(self) -> None:
        form = self.form
        h, w = self._box()
        size: dict[Dim, Expr] = {d: self._extent("L0", d) for d in DIMS}
        at: dict[Dim, Expr] = {d: self._within_l2(d) for d in DIMS}
        local: dict[Dim, Expr] = {d: self.nest.tiles["L0"].start[d] for d in DIMS}
        y = add(mul(at["P"], form.y.stride), mul(at["R"], form.y.dilation))
        x = add(mul(at["Q"], form.x.stride), mul(at["S"], form.x.dilation))
        n2, r2, s2 = self._extent("L2", "N"), self._extent("L2", "R"), self._extent("L2", "S")
        a = add(
            "input_row",
            mul(div(at[form.input_channel], form.depth), n2, h, w),
            mul(add(mul(at["N"], h), y), w),
            x,
        )
        if form.depthwise:
            depth: Expr = size["G"]
            b = add("weight_row", mul(at["G"], r2, s2), mul(add(mul(at["R"], s2), at["S"]), depth))
        else:
            depth = mul(size["C"], size["S"]) if form.repeats > 1 else size["C"]
            if self.resident:
                at = {d: self._start("L0", d) for d in DIMS}
                c2: Expr = form.dims.C
                r2, s2 = form.dims.R, form.dims.S
            else:
                c2 = self._extent("L2", "C")
            b = add(
                "weight_row",
                mul(div(at["K"], form.columns), r2, s2, c2),
                mul(add(mul(at["R"], s2), at["S"]), c2),
                at["C"],
            )
        n1, p1, q1 = (self._extent("L1", d) for d in PIXELS)
        out = add(
            "output_row",
            mul(div(local[form.output_channel], form.columns), n1, p1, q1),
            mul(add(mul(local["N"], p1), local["P"]), q1),
            local["Q"],
        )
        fresh = " && ".join(f"{loop.variable} == 0" for loop in self.nest.same_weights()) or "true"
        accumulate = "true"
        if form.layer.bias is None:
            accumulate = self._not_first(self.nest.reductions()) or "false"
        self.c.call(
            "multiply", "&stream", a, b, fresh, out, accumulate, size["N"], size["P"], size["Q"], depth,
            size[form.output_channel],
        )  # fmt: skip
