"""What the cost model needs to know of a layer: nothing that differs between identical layers."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.mapping.tiling import Interval, Window


class LayerShape(NamedTuple):
    """Loop bounds, the two image axes and whether a bias is loaded.  Equal for identical layers."""

    dims: Dims
    height: Window
    width: Window
    is_depthwise: bool
    has_bias: bool
    has_transposed_weights: bool = False
    """Stationary operand stored contiguous along C (a product with K^T): its rows hold C, not K."""
    channel_block: int = 0
    """Output channels, from a multiple of this on, that have a scale of their own; 0: all have one."""


class Region(NamedTuple):
    """Output indices that a layer computes: one interval per run of its loop nest along each axis.

    A layer alone has one interval per axis, the whole; a member of a fusion group one per group
    tile (overlapping where halo is computed again).  Runs walk the axes in this order, outermost first.
    """

    G: tuple[Interval, ...]
    K: tuple[Interval, ...]
    N: tuple[Interval, ...]
    P: tuple[Interval, ...]
    Q: tuple[Interval, ...]


def extents(intervals: tuple[Interval, ...]) -> tuple[int, ...]:
    """Length of every interval."""
    return tuple(stop - start for start, stop in intervals)


def whole(dims: Dims) -> Region:
    """The region of a layer that runs alone."""
    return Region(((0, dims.G),), ((0, dims.K),), ((0, dims.N),), ((0, dims.P),), ((0, dims.Q),))


@lru_cache(maxsize=1 << 14)
def bounds_of(shape: LayerShape, region: Region) -> tuple[int, ...]:
    """Largest extent of every dimension that one run of the nest sees, in the order of DIMS."""
    g, k, n, p, q = (max(extents(axis)) for axis in region)
    d = shape.dims
    return g, n, k, d.C, p, q, d.R, d.S


@lru_cache(maxsize=1 << 14)
def _shape(
    dims: Dims,
    op: str,
    stride: tuple[int, int],
    dilation: tuple[int, int],
    pads: tuple[int, int, int, int],
    input_size: tuple[int, int],
    has_bias: bool,
    has_transposed_weights: bool,
    channel_block: int,
) -> LayerShape:
    return LayerShape(
        dims,
        Window(dims.R, stride[0], dilation[0], pads[0], input_size[0]),
        Window(dims.S, stride[1], dilation[1], pads[1], input_size[1]),
        op == "depthwise",
        has_bias,
        has_transposed_weights,
        channel_block,
    )


def shape_of(layer: TensorCoreLayer) -> LayerShape:
    """The cost-relevant part of a layer."""
    return _shape(
        layer.dims,
        layer.op,
        layer.stride,
        layer.dilation,
        layer.pads,
        layer.input_size,
        layer.bias is not None,
        layer.has_transposed_weights,
        0 if layer.channel_scale is None else layer.channel_block,
    )
