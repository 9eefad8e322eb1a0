"""Prints the loop nest of one tensor-core layer: fetches where the contract puts them, products inside."""

from __future__ import annotations

from fadiff.converter.ir.loops import DIMS, Dim
from fadiff.emitters.gemmini.expression import Expr, add, bare, div, mul
from fadiff.emitters.gemmini.form import PIXELS
from fadiff.emitters.gemmini.input_loads import InputPrinter
from fadiff.emitters.gemmini.nest import Loop, absolute
from fadiff.emitters.gemmini.outputs import Destinations, OutputPrinter, not_first
from fadiff.emitters.gemmini.plan import LayerPlan
from fadiff.emitters.gemmini.positions import Positions, Region
from fadiff.emitters.gemmini.printer import CPrinter
from fadiff.emitters.gemmini.weight_loads import WeightPrinter, rows_per_group


class LayerPrinter:
    """Prints one nest.

    The surrounding function must declare `weights` and `image`, `output` (and `bias`, `psum`,
    `whole_output`, `pool`) where used as the primitives expect them, and have configured the
    array.
    """

    def __init__(
        self,
        c: CPrinter,
        plan: LayerPlan,
        region: Region,
        *,
        boxed_input: bool,
        destinations: Destinations,
    ) -> None:
        """`boxed_input`: it is in the tile buffer, with the channels of all groups of a pixel together."""
        self.c, self.form, self.nest, self.local = c, plan.form, plan.nest, plan.local
        self.resident = plan.resident
        """The group's first tile loads all weights (of some channels: the first of these)."""
        self.at = Positions(plan.form, plan.nest, region)
        self.inputs = InputPrinter(c, self.at, plan.local.input, boxed=boxed_input)
        self.weights = WeightPrinter(c, self.at, plan)
        self.outputs = OutputPrinter(c, self.at, plan.local, destinations)

    def print(self) -> None:
        """The whole nest."""
        for name, places in (
            ("input", self.local.input),
            ("weight", self.local.weight),
            ("output", self.local.output),
        ):
            if len(places) > 1:
                self.c.line(f"int32_t {name}_row = {places[1]};")
            elif places:
                self.c.constant(f"{name}_row", places[0])
        if self.resident:
            self.weights.load_all()
        self.inputs.declare()
        self.weights.declare()
        self.outputs.declare()
        self._inside(0)
        self.outputs.rest()

    def _inside(self, depth: int) -> None:
        """Everything in the body of the first `depth` outer loops."""
        revisits = self.nest.revisits()
        if self.outputs.psum is not None and depth == self.nest.outer.index(revisits[-1]) + 1:
            # The sums stored on the previous visit are loaded again below: DRAM order is not tracked.
            with self.c.block(f"if ({not_first(revisits)})"):
                self.c.call("wait_for_gemmini")
        output_here = depth == self.nest.fetch_position("O", "L1")
        if output_here:  # first, because loads are served in order and products wait for it
            self._flip("output", self.local.output)
            self.outputs.begin()
        if depth == self.nest.fetch_position("I", "L2"):
            self._flip("input", self.local.input)
            self.inputs.load_tile()
        if depth == self.nest.fetch_position("W", "L2") and not self.resident:
            self._flip("weight", self.local.weight)
            self.weights.load_tile()
        if depth == len(self.nest.outer):
            self._compute()
        else:
            loop = self.nest.outer[depth]
            with self.c.loop(loop.variable, loop.bound, loop.step):
                self._name_extent(loop)
                self.weights.start_next_slice(loop)
                self._inside(depth + 1)
        if output_here:
            self.outputs.end()

    def _name_extent(self, loop: Loop) -> None:
        if loop.extent_name is not None:
            self.c.constant(loop.extent_name, loop.extent)

    def _flip(self, name: str, places: tuple[int, ...]) -> None:
        if len(places) > 1:
            self.c.line(f"{name}_row = {sum(places)} - {name}_row;")

    # Products

    def _compute(self) -> None:
        p1, q1 = self.at.extent("L1", "P"), self.at.extent("L1", "Q")
        h, w = self.at.box()
        rows = (mul(h, w), mul(w, self.form.y.stride), self.form.x.stride, mul(p1, q1), q1)
        self.c.line(f"const stream_t stream = {{{', '.join(bare(e) for e in rows)}}};")
        self._blocks(self.nest.inner)

    def _blocks(self, loops: tuple[Loop, ...]) -> None:
        """The loops of L1 and the array block inside them."""
        if not loops:
            self._multiply()
            return
        with self.c.loop(loops[0].variable, loops[0].bound, loops[0].step):
            self._name_extent(loops[0])
            self.weights.start_next_slice(loops[0])
            self._blocks(loops[1:])

    def _multiply(self) -> None:
        form = self.form
        size: dict[Dim, Expr] = {d: self.at.extent("L0", d) for d in DIMS}
        fresh = " && ".join(f"{loop.variable} == 0" for loop in self.nest.same_weights()) or "true"
        accumulate = "true"
        if form.layer.bias is None:
            accumulate = not_first(self.nest.reductions()) or "false"
        if form.depthwise:
            depth: Expr = size["G"]
        else:
            depth = mul(size["C"], size["S"]) if form.repeats > 1 else size["C"]
        self.outputs.store_share()
        self.inputs.load_share()
        self.weights.load_share()
        operands = (self._weight_row(), fresh, self._output_row(), accumulate)
        extents = (size["N"], size["P"], size["Q"], depth, size[form.output_channel])
        self.c.call("multiply", "&stream", self._input_row(), *operands, *extents)

    def _input_row(self) -> Expr:
        """First row of the array block in the input tile."""
        form, at = self.form, self.at.within_l2
        h, w = self.at.box()
        y = add(mul(at("P"), form.y.stride), mul(at("R"), form.y.dilation))
        x = add(mul(at("Q"), form.x.stride), mul(at("S"), form.x.dilation))
        return add(
            "input_row",
            mul(div(at(form.input_channel), form.depth), self.at.extent("L2", "N"), h, w),
            mul(add(mul(at("N"), h), y), w),
            x,
        )

    def _weight_row(self) -> Expr:
        """First row of the array block in the weight tile, or in all weights where they are resident."""
        form, extent = self.form, self.at.extent
        at: dict[Dim, Expr] = {d: self.at.within_l2(d) for d in DIMS}
        r2, s2, c2, k2 = (extent("L2", d) for d in ("R", "S", "C", "K"))
        if self.resident:
            at = at | {d: absolute(self.nest, "L0", d) for d in ("G", "K", "C", "R", "S")}
            r2, s2, c2, k2 = form.dims.R, form.dims.S, form.dims.C, self.nest.full.K
        if form.depthwise:
            tap = add(mul(at["R"], s2), at["S"])
            return add("weight_row", mul(at["G"], r2, s2), mul(tap, extent("L0", "G")))
        group = mul(at["G"], rows_per_group(form)) if self.resident else 0
        if form.transposed:
            return add("weight_row", group, mul(div(at["C"], form.depth), k2), at["K"])
        return add(
            "weight_row",
            group,
            mul(div(at["K"], form.columns), r2, s2, c2),
            mul(add(mul(at["R"], s2), at["S"]), c2),
            at["C"],
        )

    def _output_row(self) -> Expr:
        """First row of the array block in the accumulator tile."""
        form = self.form
        local: dict[Dim, Expr] = {d: self.nest.tiles["L0"].start[d] for d in DIMS}
        n1, p1, q1 = (self.at.extent("L1", d) for d in PIXELS)
        return add(
            "output_row",
            mul(div(local[form.output_channel], form.columns), n1, p1, q1),
            mul(add(mul(local["N"], p1), local["P"]), q1),
            local["Q"],
        )
