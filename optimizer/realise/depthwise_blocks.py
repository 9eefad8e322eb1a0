"""Depthwise convolutions as grouped ones, a block of channels a group: weights come with their zeros.

A tile of a depthwise layer is one tap of a block either way; where images are small, fetching weights that
are ready takes less than placing each on the diagonal.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fadiff.converter.ir.builder import weight_view
from fadiff.converter.ir.graph import Graph, Layer, Tensor, TensorCoreLayer, View
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.realise.realised import Realised


def with_blocks_of_channels(graph: Graph, layer: Layer, target: Target) -> Realised | None:
    """The convolution; None of floats, a scale per row, weights that are computed, and channels without a
    divisor that fills more than half of the array."""
    if not isinstance(layer, TensorCoreLayer) or layer.op != "depthwise" or layer.row_scale is not None:
        return None
    d, weight = layer.dims, graph.tensors[layer.weight.tensor]
    if weight.data is None or weight.dtype != "int8" or layer.weight != weight_view(weight.name, d):
        return None
    block = max(n for n in range(1, target.side + 1) if d.G % n == 0)
    if 2 * block <= target.side:
        return None
    dims = replace(d, G=d.G // block, K=block, C=block)
    every = np.arange(block)
    data = np.zeros((dims.G, d.R, d.S, block, block), np.int8)
    data[..., every, every] = weight.data.reshape(dims.G, block, d.R, d.S).transpose(0, 2, 3, 1)
    blocks = Tensor(f"{weight.name}.blocks", data.shape, "int8", weight.scale, data)

    def view(of: View, last: int) -> View:
        channel, *others = of.strides
        others[last - 1] = channel
        n, h, w, c = others
        return replace(of, strides=(block * channel, n, h, w, c))

    convolution = replace(
        layer,
        op="conv",
        dims=dims,
        input=view(layer.input, 4),
        weight=weight_view(blocks.name, dims),
        output=view(layer.output, 4),
    )
    return Realised("convolution of blocks of channels", (layer.name,), (convolution,), (blocks,))
