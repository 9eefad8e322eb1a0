"""Products of 16-bit activations on an int8 array: two planes of the input, sums joined in float32.

x = 128 high + low, both int8, in steps of the largest magnitude / 16256 that the core finds when the layer
runs.  The array multiplies both planes, one after the other as two images, by the same int8 weights; the core
adds 128 times the first sums to the second.  As it multiplies every channel by a number anyway, weights have
a scale for each output channel.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fadiff.converter.ir import host as ops
from fadiff.converter.ir.builder import GraphBuilder, dense_strides, weight_view
from fadiff.converter.ir.graph import HostLayer, Layer, TensorCoreLayer, View
from fadiff.converter.quantise.wide import rounded_by_channel


def wide_product(graph: GraphBuilder, layer: TensorCoreLayer, ceiling: float | None) -> list[Layer] | None:
    """The layers that take the place of a float32 product; None where operands are no whole tensors, weights
    are computed, or there are groups."""
    d, weight = layer.dims, graph.tensors[layer.weight.tensor]
    x, out = graph.tensors[layer.input.tensor], graph.tensors[layer.output.tensor]
    if d.G > 1 or weight.data is None or layer.weight != weight_view(weight.name, d):
        return None
    rows = layer.op == "gemm"
    count, axis = (d.P, 2) if rows else (d.N, 1)
    alone = d.N == 1 or not rows
    read = list(layer.input.strides)
    if count == 1:
        read[axis] = x.size
    if not alone or layer.input.offset or read[axis] * count != x.size:
        return None
    sizes = (d.N, d.P, d.Q, d.K)
    written = zip(sizes, layer.output.strides[1:], dense_strides(sizes), strict=True)
    if layer.output.offset or out.size != np.prod(sizes) or any(n > 1 and a != b for n, a, b in written):
        return None
    name, inputs = layer.name, (layer.bias,) if layer.bias is not None else ()
    integers, scales = rounded_by_channel(weight.data.reshape(-1, d.K), 1)
    content = integers.reshape(weight.shape)
    planes = graph.tensor(f"{x.name}.planes", (2, *x.shape), "int8", 1.0)
    step = graph.tensor(f"{x.name}.step", (1,), "float32")
    eight = graph.tensor(f"{weight.name}.int8", weight.shape, "int8", 1.0, content)
    channels = graph.tensor(f"{weight.name}.scales", (d.K,), "float32", None, scales)
    sums = graph.tensor(f"{out.name}.sums", (2, *out.shape), "int32")
    store = list(dense_strides((d.N, d.P, d.Q, d.K)))
    store[axis - 1] = out.size // count
    dims = replace(d, P=2 * d.P) if rows else replace(d, N=2 * d.N)
    product = replace(
        layer,
        name=graph.unique(f"{name}.product"),
        dims=dims,
        input=View(planes, 0, (read[0], read[1], read[2], read[3], read[4])),
        weight=weight_view(eight, d),
        output=View(sums, 0, (0, store[0], store[1], store[2], store[3])),
        input_size=(dims.P, 1) if rows else layer.input_size,
        bias=None,
        activation="none",
        scale=1.0,
    )
    joined = ops.FloatSums(layer.activation, ceiling)
    return [
        HostLayer(graph.unique(f"{name}.split"), ops.Planes(), (x.name,), (planes, step)),
        product,
        HostLayer(name, joined, (sums, step, channels, *inputs), layer.outputs, layer.onnx_nodes),
    ]
