"""Prints the loop nest of one tensor-core layer: fetches where the contract puts them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from converter.dims import DIMS, RELEVANT, Dim
from costmodel.mapping import Level
from emitters.gemmini.expression import Expr, add, bare, box_extent, div, minimum, mul, sub
from emitters.gemmini.form import PIXELS, Form
from emitters.gemmini.local_memory import LocalMemory, weight_rows
from emitters.gemmini.nest import Loop, Nest, absolute
from emitters.gemmini.printer import CPrinter

SLICE = 64
"""Output channels worth a slice: what one instruction moves of a row (MAX_BYTES)."""
OUTPUT_DIMS: tuple[Dim, ...] = ("N", "P", "Q", "G", "K")
TAPS: tuple[Dim, ...] = ("R", "S")


@dataclass(frozen=True)
class Region:
    """What one run of the nest computes: first output index and extent of N, P and Q."""

    start: dict[Dim, Expr]
    extent: dict[Dim, Expr]
    first: str = ""
    """C condition: this is the first run, which loads resident weights.  Empty when there is only one."""


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


@dataclass(frozen=True)
class Slices:
    """A weight tile that is loaded slice by slice, one ahead of its use, so that loads and products overlap.

    Same bytes, same places: only the time of the loads differs.
    """

    loop: Loop
    """Walks the output channels of the tile; every slice is used up before the next begins."""
    size: int
    """Output channels of a slice: a multiple of the loop's step, at least a whole row segment."""
    reuse: tuple[Loop, ...]
    """Loops around it that use the whole tile again: slices are loaded in their first iteration."""


def slices_of(form: Form, nest: Nest) -> Slices | None:
    """How to slice the weight tile, None when it is used in another order or is one slice anyway."""
    if form.depthwise or form.transposed:
        return None
    reuse: list[Loop] = []
    for loop in (nest.outer + nest.inner)[nest.fetch_position("W", "L2") :]:
        if loop.dim == "K":
            size = loop.step * max(1, SLICE // loop.step)
            tile = form.mapping.tile_l2.K
            return Slices(loop, size, tuple(reuse)) if size < tile else None
        if loop.dim in RELEVANT["W"]:
            return None
        reuse.append(loop)
    return None


class LayerPrinter:
    """Prints one nest.

    The surrounding function must declare `image`, `weights`, `output` (and `bias`, `psum` where
    used) as the primitives expect them, and have configured the array.
    """

    def __init__(
        self,
        c: CPrinter,
        form: Form,
        nest: Nest,
        local: LocalMemory,
        region: Region,
        *,
        resident: bool = False,
        also_whole: bool = False,
    ) -> None:
        """`resident`: the group's first tile loads all weights; `also_whole`: store to memory, too."""
        self.c, self.form, self.nest, self.local, self.region = c, form, nest, local, region
        self.resident, self.also_whole = resident, also_whole
        self.psum = psum_of(form, nest)
        self.slices = None if resident else slices_of(form, nest)

    def print(self) -> None:
        """The whole nest."""
        for name, places in (
            ("input", self.local.input),
            ("weight", self.local.weight),
            ("output", self.local.output),
        ):
            if len(places) > 1:
                self.c.line(f"int32_t {name}_row = {places[1]};")
            else:
                self.c.constant(f"{name}_row", places[0])
        if self.resident and self.region.first:
            with self.c.block(f"if ({self.region.first})"):
                self._load_all_weights()
        elif self.resident:
            self._load_all_weights()
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
            self._flip("weight", self.local.weight)
            self._load_slice(0)
        output_here = depth == self.nest.fetch_position("O", "L1")
        if output_here:
            self._begin_output()
        if depth == len(self.nest.outer):
            self._compute()
        else:
            loop = self.nest.outer[depth]
            with self.c.loop(loop.variable, loop.bound, loop.step):
                self._name_extent(loop)
                self._prefetch(loop)
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

    def _may_have_gaps(self) -> bool:
        tile, bounds = self.form.mapping.tile_l2, self.nest.full

        def sizes(d: Dim) -> set[int]:
            if d in self.region.start:
                return set(range(1, tile[d] + 1))
            return {tile[d], bounds[d] % tile[d] or tile[d]}

        return any(
            axis.has_gaps(outputs, taps)
            for axis, p, r in zip((self.form.y, self.form.x), PIXELS[1:], TAPS, strict=True)
            for outputs in sizes(p)
            for taps in sizes(r)
        )

    # Fetches

    def _load_input(self) -> None:
        form = self.form
        h, w = self._box()
        y = add(
            mul(self._start("L2", "P"), form.y.stride),
            mul(self._start("L2", "R"), form.y.dilation),
            -form.y.pad,
        )
        x = add(
            mul(self._start("L2", "Q"), form.x.stride),
            mul(self._start("L2", "S"), form.x.dilation),
            -form.x.pad,
        )
        channel = self._start("L2", form.input_channel)
        if not form.depthwise:
            channel = add(channel, mul(self._start("L2", "G"), form.input_strides[0]))
        self._flip("input", self.local.input)
        if (len(self.local.input) > 1 or self.region.start) and self._may_have_gaps():
            # Pixels that no tap reads: nothing orders the next load of their rows after this one.
            self.c.call("wait_for_gemmini")
        self.c.call(
            "load_image",
            "&image",
            "input_row",
            self._start("L2", "N"),
            self._extent("L2", "N"),
            y,
            h,
            x,
            w,
            channel,
            self._extent("L2", form.input_channel),
        )

    def _load_slice(self, at: Expr) -> None:
        """The weight tile; when it is sliced, only the slice from output channel `at` of the tile on."""
        start: dict[Dim, Expr] = {d: self._start("L2", d) for d in DIMS}
        extent: dict[Dim, Expr] = {d: self._extent("L2", d) for d in DIMS}
        row: Expr = "weight_row"
        if self.slices is not None:
            rows_per_block = mul(extent["R"], extent["S"], extent["C"])
            row = add(row, mul(div(at, self.form.columns), rows_per_block))
            start["K"] = add(start["K"], at)
            extent["K"] = minimum(self.slices.size, sub(extent["K"], at))
        self._load_weights(row, start, extent)

    def _prefetch(self, loop: Loop) -> None:
        """Inside the slices' loop: load the next slice before this one is used."""
        slices = self.slices
        if slices is None or loop is not slices.loop:
            return
        after = add(loop.variable, slices.size)
        conditions = [f"{bare(after)} < {bare(loop.bound)}", *(f"{o.variable} == 0" for o in slices.reuse)]
        if slices.size > loop.step:
            conditions.insert(0, f"{loop.variable} % {slices.size} == 0")
        with self.c.block(f"if ({' && '.join(conditions)})"):
            self._load_slice(after)

    def _load_all_weights(self) -> None:
        """Resident weights, group after group."""
        start: dict[Dim, Expr] = dict.fromkeys(DIMS, 0)
        extent: dict[Dim, Expr] = dict(self.form.dims.as_dict())
        if self.form.depthwise or self.form.dims.G == 1:
            self._load_weights("weight_row", start, extent)
            return
        with self.c.loop("g", self.form.dims.G):
            row = add("weight_row", mul("g", self._rows_per_group()))
            self._load_weights(row, start | {"G": "g"}, extent | {"G": 1})

    def _rows_per_group(self) -> int:
        return weight_rows(self.form, self.form.dims.replace({"G": 1}))

    def _load_weights(self, first_row: Expr, start: dict[Dim, Expr], extent: dict[Dim, Expr]) -> None:
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
            self.c.call(
                "load_weights", "&weights", first_row, *taps, start["C"], extent["C"], column, extent["K"]
            )
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
                add("bias", self._output_channel(self.form.dims.K)),
                "output_row",
                rows,
                self._extent("L1", self.form.output_channel),
                self.form.columns,
            )
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
        revisits = self.nest.revisits()
        if self.psum is None:
            self._store()
            return
        last = " && ".join(f"{r.variable} + {r.step} >= {bare(r.bound)}" for r in revisits)
        with self.c.block(f"if ({last})"):
            self._store()
        with self.c.block("else"):
            self.c.call("move_outputs", "&psum", "false", "output_row", *self._psum_box())

    def _store(self) -> None:
        box = self._output_box()
        self.c.call("move_outputs", "&output", "false", "output_row", *box)
        if self.also_whole:
            self.c.call(
                "store_fresh", "&whole_output", "region->fresh_p", "region->fresh_q", "output_row", *box
            )

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
            self._prefetch(loops[0])
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
        if self.resident:
            at = at | {d: self._start("L0", d) for d in ("G", "K", "C", "R", "S")}
            r2, s2 = form.dims.R, form.dims.S
        if form.depthwise:
            depth: Expr = size["G"]
            b = add("weight_row", mul(at["G"], r2, s2), mul(add(mul(at["R"], s2), at["S"]), depth))
        else:
            depth = mul(size["C"], size["S"]) if form.repeats > 1 else size["C"]
            c2: Expr = form.dims.C if self.resident else self._extent("L2", "C")
            k2: Expr = form.dims.K if self.resident else self._extent("L2", "K")
            b = add(
                "weight_row",
                mul(at["G"], self._rows_per_group()) if self.resident else 0,
                *(
                    (mul(div(at["C"], form.depth), k2), at["K"])
                    if form.transposed
                    else (
                        mul(div(at["K"], form.columns), r2, s2, c2),
                        mul(add(mul(at["R"], s2), at["S"]), c2),
                        at["C"],
                    )
                ),
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
            "multiply",
            "&stream",
            a,
            b,
            fresh,
            out,
            accumulate,
            size["N"],
            size["P"],
            size["Q"],
            depth,
            size[form.output_channel],
        )
