"""Convolutions with a stride along rows of few channels: neighbouring pixels as the channels of one.

Pixels of a row lie next to each other, so as many as the stride are one pixel of as many times the channels,
where the stride is one: nothing moves.  Weights get zeros where a window begins or ends amid such a pixel.
Where windows overlap little along the height (patches, 3x3 with a stride of 2) and no stores pool, every line
of them is an image of its own, and those that reach into padding are a layer each: no stride is left then,
and the loop unit of convolutions, which has one for both axes, can run them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

import numpy as np

from fadiff.converter.ir.builder import weight_view
from fadiff.converter.ir.graph import Graph, Layer, Tensor, TensorCoreLayer, View
from fadiff.costmodel.group.pooling import convolution_of
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.realise.realised import Realised

_MOST_OVERLAP = 1.5
"""Lines of a window for each one of the stride: they are loaded as often."""


def with_merged_columns(graph: Graph, layer: Layer, target: Target) -> Realised | None:
    """The convolution; None of floats, channels that fill the array, and rows that are no whole number of
    strides."""
    if not isinstance(layer, TensorCoreLayer) or layer.op != "conv" or layer.dims.G > 1:
        return None
    d, (height, width), merged = layer.dims, layer.input_size, layer.stride[1]
    weight = graph.tensors[layer.weight.tensor]
    _, n, h, w, c = layer.input.strides
    dense = (w, c) == (d.C, 1) and layer.weight == weight_view(weight.name, d)
    few = merged > 1 and target.side > d.C and not width % merged and layer.dilation[1] == 1
    if not dense or not few or weight.data is None or weight.dtype != "int8":
        return None
    top, left, bottom, _ = layer.pads
    before = -left % merged  # pixels of the first one that no window has
    taps = -(-(before + d.S) // merged)
    dims = replace(d, S=taps, C=merged * d.C)
    padded = np.zeros((1, d.R, taps * merged, d.C, d.K), np.int8)
    padded[:, :, before : before + d.S] = weight.data.reshape(1, d.R, d.S, d.C, d.K)
    changed = Tensor(
        f"{weight.name}.merged",
        (1, d.R, taps, merged * d.C, d.K),
        "int8",
        weight.scale,
        padded.reshape(1, d.R, taps, merged * d.C, d.K),
    )
    first = (left + before) // merged
    last = max(d.Q - 1 + taps - width // merged - first, 0)
    convolution = replace(
        layer,
        dims=dims,
        input=replace(layer.input, strides=(0, n, h, merged * d.C, 1)),
        weight=weight_view(changed.name, dims),
        input_size=(height, width // merged),
        stride=(layer.stride[0], 1),
        pads=(top, first, bottom, last),
    )
    pools = any(convolution_of(graph, reader) for reader in graph.consumers(layer.output.tensor))
    little = d.N == 1 < d.R <= _MOST_OVERLAP * layer.stride[0] and layer.dilation[0] == 1
    layers = tuple(_lines(convolution)) if little and not pools else (convolution,)
    return Realised("convolution of merged columns", (layer.name,), layers, (changed,))


def _lines(merged: TensorCoreLayer) -> Iterator[TensorCoreLayer]:
    """The same in layers of lines that are padded alike, each line an image."""
    d, stride, (top, left, _, right) = merged.dims, merged.stride[0], merged.pads
    height, width = merged.input_size
    (_, _, h, w, c), (_, _, p, q, k) = merged.input.strides, merged.output.strides

    def padding(line: int) -> tuple[int, int]:
        first = line * stride - top
        return max(-first, 0), max(first + d.R - height, 0)

    for (above, below), run in groupby(range(d.P), padding):
        line, *others = run
        yield replace(
            merged,
            name=f"{merged.name}.{line}" if line else merged.name,
            dims=replace(d, N=1 + len(others), P=1),
            input=View(
                merged.input.tensor,
                merged.input.offset + (line * stride - top + above) * h,
                (0, stride * h, h, w, c),
            ),
            output=View(merged.output.tensor, merged.output.offset + line * p, (0, p, p, q, k)),
            input_size=(d.R - above - below, width),
            stride=(1, 1),
            pads=(above, left, below, right),
        )
