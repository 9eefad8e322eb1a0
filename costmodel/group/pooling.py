"""Max pooling in Gemmini's store path: what a convolution computes leaves the accumulator pooled.

A max pool joins a fusion group together with the convolution whose output it reads.  Accumulator tiles of
the convolution hold whole windows, final; every mvout takes the largest value of each window, so that only
pooled elements move.  Gemmini counts padding as zero, which is exact where no value is negative.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from fadiff.converter.ir.graph import Graph, HostLayer, Layer, TensorCoreLayer
from fadiff.converter.ir.host import MaxPool
from fadiff.converter.ir.loops import Dim
from fadiff.costmodel.count.nest import LoopNest
from fadiff.costmodel.count.traffic import Pooled
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.shape import LayerShape, Region, extents, shape_of
from fadiff.costmodel.mapping.tiling import Window
from fadiff.costmodel.target.target import Target

MOST_SIDE = 3
"""Largest window side (config_st has two bits for it, for stride and for padding)."""
MOST_PIXELS = 253
"""Largest height and width of an accumulator tile that is pooled.  config_st has eight bits each for pixels
and windows; with padding there may be two windows more than pixels."""


@dataclass(frozen=True)
class Pool:
    """A square window over an image N H W C."""

    kernel: int
    stride: int
    pads: tuple[int, int]
    """Rows above and columns to the left of the image."""
    input_size: tuple[int, int]
    """H, W."""
    output_size: tuple[int, int, int]
    """N, P, Q."""

    @property
    def axes(self) -> tuple[Window, Window]:
        """Height and width."""
        height, width = (
            Window(self.kernel, self.stride, 1, pad, size)
            for pad, size in zip(self.pads, self.input_size, strict=True)
        )
        return height, width

    @property
    def steps(self) -> tuple[int, int]:
        """What tiles of the convolution's output must be multiples of along each axis.

        0: no tile may cut a region there, because windows overlap or the first one reaches into padding.
        """
        height, width = (self.stride if self.kernel == self.stride and not pad else 0 for pad in self.pads)
        return height, width

    @property
    def reaches_padding(self) -> bool:
        """Whether some window holds a pixel outside the image."""
        ends = (
            (outputs - 1) * axis.stride + axis.kernel - axis.pad > axis.size
            for outputs, axis in zip(self.output_size[1:], self.axes, strict=True)
        )
        return any(self.pads) or any(ends)


def pool_of(graph: Graph, layer: Layer) -> Pool | None:
    """The window of a max pool; None if it is not square, dilated, not over one image N H W C, or kept in
    float32, and of other layers."""
    if not isinstance(layer, HostLayer) or not isinstance(layer.operator, MaxPool):
        return None
    if graph.is_kept_float(layer):
        return None
    shape, source = graph.tensors[layer.outputs[0]].shape, graph.tensors[layer.inputs[0]].shape
    if len(shape) != 4 or len(source) != 4:
        return None
    window = layer.operator.window
    if len(set(window.kernel)) != 1 or len(set(window.stride)) != 1 or set(window.dilation) != {1}:
        return None
    return Pool(window.kernel[0], window.stride[0], window.pads[:2], (source[1], source[2]), shape[:3])


def windows(graph: Graph, consumer: Layer) -> tuple[Window, Window] | None:
    """How a convolution or max pool reads its producer's image, height and width; None: pixel by pixel."""
    if isinstance(consumer, TensorCoreLayer):
        shape = shape_of(consumer)
        return shape.height, shape.width
    pool = pool_of(graph, consumer)
    return pool.axes if pool else None


def obstacle_to_pooling(graph: Graph, layer: HostLayer) -> str:
    """Why a max pool must run on the core; empty if the store path can do it, bit for bit."""
    if layer.op != "max_pool":
        return f"host operator {layer.op} is no max pool"
    pool = pool_of(graph, layer)
    if pool is None:
        return "its window is not square over an image, or dilated"
    if pool.kernel > MOST_SIDE:
        return f"its window of {pool.kernel} exceeds {MOST_SIDE}"
    if pool.stride > pool.kernel:  # small group tiles would compute less than the whole, which bounds them
        return "it leaves pixels out"
    for outputs, axis in zip(pool.output_size[1:], pool.axes, strict=True):
        if axis.pad >= axis.kernel or (outputs - 1) * axis.stride - axis.pad >= axis.size:
            return "some window holds nothing but padding"
    tensor = layer.inputs[0]
    producers = graph.producers(tensor)
    if len(producers) != 1 or not isinstance(producers[0], TensorCoreLayer):
        return f"{tensor} is not the output of one convolution"
    if tensor in graph.outputs or len(graph.consumers(tensor)) > 1:
        return f"{tensor} is needed unpooled, too"
    convolution = producers[0]
    if not _is_image(graph, convolution):
        return f"{convolution.name} does not store {tensor} as an image N H W C"
    if len(graph.producers(layer.outputs[0])) != 1:
        return f"{layer.outputs[0]} is a concatenation"
    if pool.reaches_padding and convolution.activation != "relu":
        return "its padding would count as zero and values may be negative"
    return ""


def convolution_of(graph: Graph, layer: Layer) -> TensorCoreLayer | None:
    """The convolution whose stores can do the work of a max pool; None for any other layer."""
    if isinstance(layer, TensorCoreLayer) or obstacle_to_pooling(graph, layer):
        return None
    producer = graph.producers(layer.inputs[0])[0]
    assert isinstance(producer, TensorCoreLayer)
    return producer


def pool_after(graph: Graph, layer: Layer, inside: Container[str]) -> str | None:
    """The max pool among the layers `inside` that the stores of `layer` do; None if there is none."""
    if not isinstance(layer, TensorCoreLayer):
        return None
    readers = graph.consumers(layer.output.tensor)
    if len(readers) == 1 and readers[0].name in inside and convolution_of(graph, readers[0]) is layer:
        return readers[0].name
    return None


def most_columns(target: Target, taps: int) -> int:
    """Widest accumulator tile of which one instruction can pool a row of windows.

    Gemmini counts the taps of one mvout in as many bits as the rows of its larger memory take.
    """
    return min(MOST_PIXELS, max(target.scratchpad_rows, target.accumulator_rows) // taps - 2)


def obstacle_in_tiles(
    shape: LayerShape, mapping: Mapping, region: Region, pooled: Pooled, target: Target
) -> str:
    """Why the stores of a layer cannot pool with this mapping; empty if they can."""
    steps = pooled.steps
    height, width = (max(extents(axis)) for axis in (region.P, region.Q))
    axes: tuple[tuple[Dim, int, int], ...] = (("P", height, steps[0]), ("Q", width, steps[1]))
    for d, bound, step in axes:
        l2, l1 = mapping.tile_l2[d], mapping.tile_l1[d]
        if not step and l1 < bound:
            return f"accumulator tile {d}={l1} of {bound} cuts windows that overlap or reach into padding"
        for tile, whole in ((l2, bound), (l1, l2)):
            if step and tile < whole and tile % step:
                return f"tile {d}={tile} cuts windows, which start every {step}"
        most = MOST_PIXELS if d == "P" else most_columns(target, pooled.taps)
        if l1 > most:
            return f"accumulator tile {d}={l1} exceeds {most}"
    times = LoopNest(shape, mapping, region).fetch("O", 2)[0]
    return f"it leaves the accumulator unfinished ({times} visits)" if times > 1 else ""


def _is_image(graph: Graph, layer: TensorCoreLayer) -> bool:
    """Whether the output is a whole dense tensor N P Q channels."""
    d, view = layer.dims, layer.output
    channels = d.G * d.K
    dense = (d.P * d.Q * channels, d.Q * channels, channels)
    strides = zip((d.G, d.N, d.P, d.Q, d.K), view.strides, (d.K, *dense, 1), strict=True)
    return (
        graph.tensors[view.tensor].shape == (d.N, d.P, d.Q, channels)
        and not view.offset
        and all(extent == 1 or stride == wanted for extent, stride, wanted in strides)
    )
