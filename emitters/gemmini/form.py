"""A tensor-core layer and its mapping in the one form that the loop nest printer understands.

Depthwise layers become channel blocks with a block-diagonal weight tile; strides of axes whose
kernel is 1 move into the tensor strides (only the touched pixels are loaded); pixel loops that sit
innermost at L1 join the stream, which fills whole instructions and leaves order and traffic alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.converter.ir.loops import Dim, Dims
from fadiff.costmodel.mapping.mapping import Mapping, ceil_div
from fadiff.emitters.gemmini.errors import EmitError

PIXELS: tuple[Dim, ...] = ("N", "P", "Q")
TILED: tuple[Dim, ...] = ("G", "K", *PIXELS)
"""Axes of group tiles, outermost first."""


@dataclass(frozen=True)
class Axis:
    """One image axis: output index p and kernel tap r read input pixel p*stride + r*dilation - pad."""

    stride: int
    dilation: int
    pad: int
    size: int
    """Pixels of the input image."""

    def has_gaps(self, outputs: int, taps: int) -> bool:
        """Whether some pixel of the box of a tile is read by no tap."""
        touched = {p * self.stride + r * self.dilation for p in range(outputs) for r in range(taps)}
        return len(touched) < max(touched) + 1


@dataclass(frozen=True)
class Form:
    """What the printer needs of a layer.  Strides and offsets are in elements.

    `depth` is the channels that one scratchpad row of the input holds per pixel, `columns` the
    output channels per accumulator row, `repeats` the pixels packed into one scratchpad row.
    """

    layer: TensorCoreLayer
    mapping: Mapping
    dims: Dims
    depthwise: bool
    transposed: bool
    """The stationary operand is contiguous along its input channels: the array transposes it."""
    y: Axis
    x: Axis
    skip: tuple[int, int]
    """Image rows and columns from one touched pixel to the next (1 unless the kernel is 1)."""
    first: tuple[int, int]
    """The image row and column that index 0 of `y` and `x` stands for."""
    input_offset: int
    input_strides: tuple[int, int, int, int]
    """Of G, N, y, x; channels are contiguous."""
    weight_strides: tuple[int, int, int, int]
    """Of G, R, S and C (transposed: K); along the other channels it is contiguous."""
    output_strides: tuple[int, int, int, int]
    """Of G, N, P, Q; channels are contiguous."""
    depth: int
    columns: int
    repeats: int

    @property
    def input_channel(self) -> Dim:
        """The dimension along the channels of the input."""
        return "G" if self.depthwise else "C"

    @property
    def output_channel(self) -> Dim:
        """The dimension along the channels of the output."""
        return "G" if self.depthwise else "K"


def form_of(layer: TensorCoreLayer, mapping: Mapping) -> Form:
    """Put a layer into printable form.

    Raises:
        EmitError: an operand that is not contiguous along its channels.
    """
    dims, depthwise = layer.dims, layer.op == "depthwise"
    _check_views(layer)
    y, skip_y, start_y = _axis(layer, 0)
    x, skip_x, start_x = _axis(layer, 1)
    g, n, h, w, _ = layer.input.strides
    weight = layer.weight.strides
    transposed = layer.has_transposed_weights
    return Form(
        layer=layer,
        mapping=_widen_stream(mapping),
        dims=dims,
        depthwise=depthwise,
        transposed=transposed,
        y=y,
        x=x,
        skip=(skip_y, skip_x),
        first=(start_y, start_x),
        input_offset=layer.input.offset + start_y * h + start_x * w,
        input_strides=(g, n, h * skip_y, w * skip_x),
        weight_strides=(*weight[:3], weight[4 if transposed else 3]),
        output_strides=layer.output.strides[:4],
        depth=mapping.cols.G if depthwise else mapping.rows.C,
        columns=mapping.cols.G if depthwise else mapping.cols.K,
        repeats=mapping.rows.S,
    )


def _axis(layer: TensorCoreLayer, axis: int) -> tuple[Axis, int, int]:
    """The axis, the factor on its tensor stride, and the first image pixel it touches.

    Pixels that a kernel of 1 does not touch are left in memory.
    """
    outputs, kernel = (layer.dims.P, layer.dims.R) if axis == 0 else (layer.dims.Q, layer.dims.S)
    stride, dilation, pad = layer.stride[axis], layer.dilation[axis], layer.pads[axis]
    size = layer.input_size[axis]
    if kernel > 1 or stride == 1:
        return Axis(stride, dilation, pad, size), 1, 0
    lead = ceil_div(pad, stride)
    touched = len(range(lead * stride - pad, min(size, outputs * stride - pad), stride))
    return Axis(1, 1, lead, touched), stride, lead * stride - pad


def _widen_stream(mapping: Mapping) -> Mapping:
    """Let the stream cover the pixel loops of L1 when no loop that changes weights is inside them."""
    if not mapping.streams_pixels:
        return mapping
    tile = mapping.tile_l0.replace({d: mapping.tile_l1[d] for d in PIXELS})
    return replace(mapping, tile_l0=tile)


def _check_views(layer: TensorCoreLayer) -> None:
    def fail(message: str) -> None:
        raise EmitError(f"layer {layer.name}: {message}")

    depthwise = layer.op == "depthwise"
    for role, view, extent in (
        ("input", layer.input, layer.dims.C),
        ("output", layer.output, layer.dims.K),
    ):
        if not depthwise and extent > 1 and view.strides[4] != 1:
            fail(f"the {role} is not contiguous along its channels")
    weight, dims = layer.weight.strides, layer.dims
    if layer.has_transposed_weights and ((dims.C > 1 and weight[3] != 1) or dims.R * dims.S > 1):
        fail("the weight is contiguous along neither of its channels")
    if depthwise and (layer.input.strides[0] != 1 or layer.output.strides[0] != 1):
        fail("a depthwise operand is not contiguous along its channels")
