"""Layers as calls of gemmini.h's automatically tiled functions, what a user would write by hand.

They are for comparison only (`--method gemmini-auto`): the library chooses tiles and order, so the schedule's
predictions do not describe these calls.  Layers that the library cannot express stay loop nests.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.converter.ir.host import Add
from fadiff.costmodel.group.additions import resadd_tile
from fadiff.costmodel.target.target import Target
from fadiff.emitters.gemmini.constants import ACTIVATIONS, stored_through
from fadiff.emitters.gemmini.expression import Expr
from fadiff.emitters.gemmini.formula import float_literal
from fadiff.emitters.gemmini.printer import CPrinter


def has_library_call(layer: TensorCoreLayer) -> bool:
    """Whether gemmini.h has a function for the layer."""
    dims, h_stride = layer.dims, layer.input.strides[2]
    if layer.op in ("gemm", "bmm"):
        return dims.N == 1 and dims.Q == 1 and layer.stride == (1, 1) and not any(layer.pads)
    square = len(set(layer.stride)) == len(set(layer.dilation)) == len(set(layer.pads)) == 1
    dense = h_stride == layer.input_size[1] * layer.input.strides[3]
    dense = dense and layer.output.strides[2] == dims.Q * layer.output.strides[3]
    if not square or not dense or dims.R != dims.S or layer.pads[0] >= dims.R:
        return False
    if layer.op == "depthwise":
        whole = dims.P * dims.Q == 1 or layer.output.strides[3] == dims.G
        return whole and layer.dilation == (1, 1) and layer.input.strides[3] == dims.G
    return layer.op == "conv" and dims.G == 1 and layer.weight.strides[4] == 1


def print_library_call(c: CPrinter, layer: TensorCoreLayer, weights: str, bias: str) -> None:
    """The call, its operands being `input`, `weights`, `bias` ("NULL" without one) and `result`."""
    if layer.op in ("gemm", "bmm"):
        _matmul(c, layer, weights, bias)
    elif layer.op == "depthwise":
        _depthwise(c, layer, weights, bias)
    else:
        _conv(c, layer, weights, bias)


def _at(pointer: str, offset: int, group_stride: int, groups: int) -> str:
    text = f"{pointer} + {offset}" if offset else pointer
    return f"{text} + g * {group_stride}" if groups > 1 and group_stride else text


def _matmul(c: CPrinter, layer: TensorCoreLayer, weights: str, bias: str) -> None:
    d, w = layer.dims, layer.weight.strides
    transposed = layer.has_transposed_weights
    bias = bias if bias == "NULL" else _at(bias, 0, d.K, d.G)
    operands = (
        _at("input", layer.input.offset, layer.input.strides[0], d.G),
        _at(weights, layer.weight.offset, w[0], d.G),
        bias,
        _at("result", layer.output.offset, layer.output.strides[0], d.G),
    )
    strides = (layer.input.strides[2], w[4] if transposed else w[3], d.K, layer.output.strides[2])
    scales = ("MVIN_SCALE_IDENTITY", "MVIN_SCALE_IDENTITY", 1)
    result = (stored_through(layer), float_literal(layer.scale), 0, "true")
    modes = ("false", "true" if transposed else "false", "false", "false", 0, "WS")
    with c.loop("g", d.G) if d.G > 1 else nullcontext():
        c.call("tiled_matmul_auto", d.P, d.K, d.C, *operands, *strides, *scales, *result, *modes)


def _conv(c: CPrinter, layer: TensorCoreLayer, weights: str, bias: str) -> None:
    d, (h, w) = layer.dims, layer.input_size
    window = (layer.stride[0], 1, layer.dilation[0], layer.pads[0], d.R)
    strides = (layer.input.strides[3], layer.weight.strides[3], layer.output.strides[3])
    transposed = ("false",) * 5
    operands = (
        _at("input", layer.input.offset, 0, 1),
        _at(weights, layer.weight.offset, 0, 1),
        bias,
        _at("result", layer.output.offset, 0, 1),
    )
    sizes = (d.N, h, w, d.C, d.K, d.P, d.Q)
    c.call("tiled_conv_stride_auto", *sizes, *window, *strides, *transposed, *operands, *_stores(layer))


def _depthwise(c: CPrinter, layer: TensorCoreLayer, weights: str, bias: str) -> None:
    d, (h, w) = layer.dims, layer.input_size
    # The library's parameters are not const; it only reads them.
    operands = (
        f"(elem_t *)(uintptr_t)({_at('input', layer.input.offset, 0, 1)})",
        f"(elem_t *)(uintptr_t){weights}",
        f"(acc_t *)(uintptr_t){bias}",
        _at("result", layer.output.offset, 0, 1),
    )
    window = (layer.stride[0], layer.pads[0], d.R)
    c.call("tiled_conv_dw_auto", d.N, h, w, d.G, d.P, d.Q, *window, *operands, *_stores(layer))


def _stores(layer: TensorCoreLayer) -> tuple[Expr, ...]:
    """How a convolution's results are stored: none of them pooled."""
    return stored_through(layer), float_literal(layer.scale), 0, 0, 0, "WS"


def print_addition(c: CPrinter, add: Add, size: int, target: Target, operands: Sequence[str]) -> None:
    """A call of tiled_resadd for `size` elements that adjoin in operands and sum."""
    tile = resadd_tile(size, target)
    assert tile is not None
    scales = [float_literal(scale) for scale in (add.a_scale, add.b_scale, add.scale)]
    relu = "true" if add.activation == "relu" else "false"
    whole = (size // tile[1], tile[1], tile[1])
    c.call("tiled_resadd", *whole, *tile, *scales, *operands, relu, "WS")


def sum_fields(add: Add) -> list[str]:
    """Initialisers of a sum_t (runtime/sums.h): what an addition does with its operands."""
    return [
        f".a_scale = {float_literal(add.a_scale)}, .b_scale = {float_literal(add.b_scale)}",
        f".c_scale = {float_literal(add.scale)}, .activation = {ACTIVATIONS[add.activation]}",
    ]
