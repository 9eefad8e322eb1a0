"""Whether the two ends of a fused edge agree on how their tensor lies in memory."""

from __future__ import annotations

import math
from collections.abc import Set

from fadiff.converter.ir.graph import Graph, HostLayer, Layer, TensorCoreLayer
from fadiff.costmodel.group.row_operators import source, stores_channels_together


def obstacle_to_shared_layout(
    graph: Graph,
    producer: Layer,
    consumer: Layer,
    tensor: str,
    size: tuple[int, int, int],
    inside: Set[str],
) -> str:
    """Why `tensor` cannot be fused between two layers of a group, empty if it can: a fused tensor has one
    producer, and both ends address it as the same (N, H, W, C) image.

    `size`: N, P, Q of the producer.
    """
    if len(graph.producers(tensor)) > 1:
        return f"{tensor} is a concatenation and cannot be fused"
    first = source(graph, producer, inside)
    if first is None:  # a max pool, or an add of what no array layer computes: a dense image
        if isinstance(consumer, TensorCoreLayer) and not _reads_image(graph, consumer, size):
            return f"the two layers address {tensor} differently and cannot be fused"
        return ""
    d, written = first.dims, first.output
    together = stores_channels_together(first, written, d.K)
    if isinstance(consumer, HostLayer):
        if consumer.op == "add" and not together:
            return f"{tensor} is stored group by group and cannot be fused with an add"
        return ""
    if consumer.weight.tensor == tensor:
        return f"{tensor} is the stationary operand and cannot be fused"
    c, read = consumer.dims, consumer.input
    same = written.offset == read.offset and (c.N, *consumer.input_size) == (d.N, d.P, d.Q)
    for extent, a, b in zip((d.N, d.P, d.Q), written.strides[1:4], read.strides[1:4], strict=True):
        same = same and (extent == 1 or a == b)
    if not (together and stores_channels_together(consumer, read, c.C)):
        same = same and d.G == c.G and d.K == c.C and written.strides[0] == read.strides[0]
    return "" if same else f"the two layers address {tensor} differently and cannot be fused"


def _reads_image(graph: Graph, layer: TensorCoreLayer, size: tuple[int, int, int]) -> bool:
    """Whether a layer streams all of a dense tensor of N, H, W pixels and their channels as an image."""
    c, view = layer.dims, layer.input
    _, h, w = size
    channels = graph.tensors[view.tensor].size // math.prod(size)
    strides = zip(size, view.strides[1:4], (h * w * channels, w * channels, channels), strict=True)
    return (
        layer.weight.tensor != view.tensor
        and not view.offset
        and (c.N, *layer.input_size) == size
        and channels == c.G * c.C
        and stores_channels_together(layer, view, c.C)
        and all(extent == 1 or stride == wanted for extent, stride, wanted in strides)
    )
