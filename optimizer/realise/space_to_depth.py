"""First convolutions with a stride and large windows (ResNets' 7 x 7): squares of pixels as channels of one.

An image is stored once more, amid zeros: squares of as many pixels as the stride lie together, those of a row
side by side.  All squares that a window has in a row are so the channels of one pixel, from square to square
with most of them in common: what loads them may overlap.  A window of one column is left, with a stride of 1,
whose channels fill the array better, and no pixel is packed into rows of the array over and over.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from fadiff.converter.ir.builder import weight_view
from fadiff.converter.ir.graph import Graph, HostLayer, Layer, Tensor, TensorCoreLayer, View
from fadiff.converter.ir.host import Copy
from fadiff.converter.ir.loops import Access, Loops
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.realise.realised import Realised


def in_space_to_depth(graph: Graph, layer: Layer, target: Target) -> Realised | None:
    """The image's copies and the convolution; None of floats, windows that overlap little, squares that the
    array has no room for, and images that are no whole number of them."""
    if not isinstance(layer, TensorCoreLayer) or layer.op != "conv" or layer.dims.G > 1:
        return None
    d, step, (height, width) = layer.dims, layer.stride[0], layer.input_size
    x, weight = graph.tensors[layer.input.tensor], graph.tensors[layer.weight.tensor]
    dense = (
        layer.input.strides[2:] == (width * d.C, d.C, 1)
        and d.N == 1
        and layer.weight == weight_view(weight.name, d)
    )
    square = step * step * d.C
    few = min(d.R, d.S) > 2 * step > 2 and square <= target.side and layer.dilation == (1, 1)
    whole = layer.stride == (step, step) and not height % step and not width % step
    if not (dense and few and whole) or weight.data is None or {weight.dtype, x.dtype} != {"int8"}:
        return None
    (top, left, *_), of_step = layer.pads, (-layer.pads[0] % step, -layer.pads[1] % step)
    taps, beside = -(-(of_step[0] + d.R) // step), -(-(of_step[1] + d.S) // step)
    lines, squares = (
        max(n + k - 1, (size + pad + of) // step)
        for n, k, size, pad, of in (
            (d.P, taps, height, top, of_step[0]),
            (d.Q, beside, width, left, of_step[1]),
        )
    )
    pixels = Tensor(f"{layer.name}.squares", (1, lines, squares, square), "int8", x.scale)
    line = squares * square
    inside, beside_it = width // step * square, line - width // step * square
    start, end = (top + of_step[0]) // step * line + (left + of_step[1]) // step * square, lines * line
    runs = (  # of zeros: before the image, between its lines, behind it
        Loops((start,), (Access(0, (1,)),), Access(0, (1,))),
        Loops(
            (height // step - 1, beside_it),
            (Access(0, (beside_it, 1)),),
            Access(start + inside, (line, 1)),
        ),
        Loops(
            (end - start - (height // step - 1) * line - inside,),
            (Access(0, (1,)),),
            Access(start + (height // step - 1) * line + inside, (1,)),
        ),
    )
    longest = max(math.prod(loops.shape) for loops in runs)
    zeros = Tensor(f"{layer.name}.zeros", (longest,), "int8", x.scale, np.zeros(longest, np.int8))
    layers: list[Layer] = [
        HostLayer(f"{zeros.name}.{i}", Copy(loops), (zeros.name,), (pixels.name,))
        for i, loops in enumerate(runs)
        if math.prod(loops.shape)
    ]
    for row in range(step):  # of every square; the image begins with a whole one
        read = Access(layer.input.offset + row * width * d.C, (step * width * d.C, step * d.C, 1))
        loops = Loops(
            (height // step, width // step, step * d.C),
            (read,),
            Access(start + row * step * d.C, (line, square, 1)),
        )
        layers.append(HostLayer(f"{pixels.name}.{row}", Copy(loops), (x.name,), (pixels.name,)))
    # Channels that no window reaches, at both ends of one.
    unused, last = of_step[1] * d.C, (beside * step - of_step[1] - d.S) * d.C
    dims = replace(d, R=taps, S=1, C=beside * square - unused - last)
    full = np.zeros((taps * step, beside * step, d.C, d.K), np.int8)
    full[of_step[0] : of_step[0] + d.R, of_step[1] : of_step[1] + d.S] = weight.data.reshape(
        d.R, d.S, d.C, d.K
    )
    ordered = full.reshape(taps, step, beside, step, d.C, d.K).transpose(0, 2, 1, 3, 4, 5)
    used = ordered.reshape(1, taps, 1, beside * square, d.K)[..., unused : unused + dims.C, :]
    changed = Tensor(
        f"{weight.name}.squares",
        (1, taps, 1, dims.C, d.K),
        "int8",
        weight.scale,
        np.ascontiguousarray(used),
    )
    convolution = replace(
        layer,
        dims=dims,
        input=View(pixels.name, unused, (0, lines * line, line, square, 1)),
        weight=weight_view(changed.name, dims),
        input_size=(lines, d.Q),
        stride=(1, 1),
        pads=(0, 0, 0, 0),
    )
    return Realised("convolution of squares", (layer.name,), (*layers, convolution), (pixels, zeros, changed))
