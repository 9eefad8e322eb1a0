"""Convolutions with a stride along rows of few channels: neighbouring pixels as the channels of one.

Pixels of a row lie next to each other, so as many as the stride are one pixel of as many times the channels,
where the stride is one: nothing moves.  Weights get zeros where a window begins or ends amid such a pixel.
Where windows do not overlap along the height either (patches), every line of them is an image of its own, so
that no stride is left: the loop unit of convolutions has only one for both axes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fadiff.converter.ir.builder import weight_view
from fadiff.converter.ir.graph import Graph, Layer, Tensor, TensorCoreLayer
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.realise.realised import Realised


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
    if (d.N, layer.stride[0], height) == (1, d.R, d.P * d.R) and not (top or bottom):
        convolution = _line_by_line(convolution)
    return Realised("convolution of merged columns", (layer.name,), (convolution,), (changed,))


def _line_by_line(patches: TensorCoreLayer) -> TensorCoreLayer:
    """The same with every line of windows, which adjoin, as an image."""
    d, (_, _, h, w, c), (_, _, p, q, k) = patches.dims, patches.input.strides, patches.output.strides
    return replace(
        patches,
        dims=replace(d, N=d.P, P=1),
        input=replace(patches.input, strides=(0, d.R * h, h, w, c)),
        output=replace(patches.output, strides=(0, p, p, q, k)),
        input_size=(d.R, patches.input_size[1]),
        stride=(1, 1),
    )
