"""Declares a layer's operands as the C primitives expect them: image, weights, bias, output, psum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fadiff.converter.ir.graph import Tensor, TensorCoreLayer, View
from fadiff.costmodel.group.tile_buffer import Strides
from fadiff.emitters.gemmini.constants import C_TYPES, stored_through
from fadiff.emitters.gemmini.form import Form
from fadiff.emitters.gemmini.formula import float_literal
from fadiff.emitters.gemmini.memory import Memory, Place
from fadiff.emitters.gemmini.outputs import Destinations, pooled_strides, psum_of
from fadiff.emitters.gemmini.plan import LayerPlan
from fadiff.emitters.gemmini.printer import CPrinter


def pointer(place: Place, tensor: Tensor) -> str:
    """C expression of the first element at `place`, typed as the tensor's elements."""
    if place.symbol in ("input", "output"):
        return f"{place.symbol}{place.index}"
    macro = {"arena": "ARENA", "weights": "WEIGHTS", "tile_buffer": "TILE_BUFFER", "state": "STATE"}[
        place.symbol
    ]
    return f"{macro}({C_TYPES[tensor.dtype]}, {place.offset})"


@dataclass(frozen=True)
class OperandPrinter:
    """Prints the declarations of one layer.

    `input_box` and the destinations' box are set for operands in the tile buffer; `result` then is the box,
    and `whole` the tensor in memory, when that is written too.
    """

    c: CPrinter
    memory: Memory
    plan: LayerPlan
    element_bytes: int
    input_box: Strides | None
    destinations: Destinations
    stores_sums: bool

    def print(self) -> None:
        """All declarations."""
        self._image()
        self._weights()
        layer = self.plan.form.layer
        if layer.bias is not None:
            place = self.memory.tensors[layer.bias]
            self.c.line(f"const acc_t *const bias = WEIGHTS(acc_t, {place.offset});")
        pool = self.destinations.pool
        _, *strides = self.plan.form.output_strides
        if pool is not None:
            strides = list(pooled_strides(pool, strides[2]))
            self.c.line(
                f"const pool_t pool = {{{pool.kernel}, {pool.stride}, {pool.pads[0]}, {pool.pads[1]}}};"
            )
        if (box := self.destinations.box) is None:
            self._output("output", f"result{_plus(layer.output.offset)}", strides)
            if layer.row_scale is not None:
                self._scales(layer.row_scale)
        else:
            n, p, q = box
            first = f"region->out_n * {n} + region->out_p * {p} + region->out_q * {q}"
            self._output("output", "result", [n, p, q], first)
        if self.destinations.whole:
            self._output("whole_output", f"whole{_plus(layer.output.offset)}", strides)
        self._psum()

    def _image(self) -> None:
        form = self.plan.form
        data, first, (_, n, h, w) = f"input{_plus(form.input_offset)}", "", form.input_strides
        if self.input_box is not None:
            n, h, w = self.input_box
            y, x = (f"(region->in_{d}{_minus(at)})" for d, at in zip("yx", form.first, strict=True))
            data = "input"
            first = f" .first = region->in_n * {n} + {y} * {h} + {x} * {w},"
            h, w = h * form.skip[0], w * form.skip[1]
        with self.c.initialiser("const image_t image"):
            self.c.line(f".data = {data},{first}")
            self.c.line(f".stride_n = {n}, .stride_y = {h}, .stride_x = {w},")
            self.c.line(f".height = {form.y.size}, .width = {form.x.size},")
            self.c.line(f".block = {form.depth}, .repeats = {form.repeats},")

    def _weights(self) -> None:
        with self.c.initialiser("const weights_t weights"):
            print_weights(self.c, self.plan.form, self.memory, self.element_bytes)

    def _output(self, name: str, data: str, strides: Sequence[int], first: str = "") -> None:
        form = self.plan.form
        n, p, q = strides
        with self.c.initialiser(f"const output_t {name}"):
            self.c.line(f".data = (uintptr_t)({data}),{f' .first = {first},' if first else ''}")
            size = "acc_t" if self.stores_sums else "elem_t"
            self.c.line(f".stride_n = {n}, .stride_p = {p}, .stride_q = {q}, .size = sizeof({size}),")
            activation, scale = stored_through(form.layer), float_literal(form.layer.scale)
            self.c.line(f".block = {form.columns}, .activation = {activation}, .scale = {scale},")

    def _scales(self, view: View) -> None:
        _, n, p, q, _ = view.strides
        with self.c.initialiser("const row_scales_t scales"):
            self.c.line(f".data = row_scales{_plus(view.offset)},")
            self.c.line(f".stride_n = {n}, .stride_p = {p}, .stride_q = {q},")

    def _psum(self) -> None:
        c, form = self.c, self.plan.form
        psum = psum_of(form, self.plan.nest)
        if psum is None:
            return
        n, p, q = psum.strides
        place = self.memory.psums[form.layer.name]
        with c.initialiser("const output_t psum"):
            c.line(f".data = (uintptr_t)ARENA(acc_t, {place.offset}),")
            c.line(f".stride_n = {n}, .stride_p = {p}, .stride_q = {q}, .size = sizeof(acc_t),")
            c.line(f".block = {form.columns}, .activation = NO_ACTIVATION, .scale = ACC_SCALE_IDENTITY,")


def print_weights(c: CPrinter, form: Form, memory: Memory, element_bytes: int) -> None:
    """Initialisers of a weights_t."""
    layer = form.layer
    r, s, ci = form.weight_strides[1:]
    block = form.depth if form.transposed else form.columns
    if form.depthwise:
        r, s, ci = form.dims.S * block, block, form.dims.R * form.dims.S * block
    c.line(f".data = {weight_source(layer, memory, element_bytes)},")
    c.line(f".stride_r = {r}, .stride_s = {s}, .stride_c = {ci}, .block = {block},")


def weight_source(layer: TensorCoreLayer, memory: Memory, element_bytes: int) -> str:
    """C expression of the first weight: in the blob, or of the tensor that the layer's function is given."""
    place = memory.weight_place(layer)
    if place.symbol == "weights":
        return f"WEIGHTS(elem_t, {place.offset + layer.weight.offset * element_bytes})"
    return f"stationary{_plus(layer.weight.offset)}"


def _plus(offset: int) -> str:
    return f" + {offset}" if offset else ""


def _minus(offset: int) -> str:
    return f" - {offset}" if offset else ""
