"""A sum of two 1 x 1 convolutions (a residual block and its shortcut) as one of the channels of both inputs.

The array adds up what two stores and an addition did, and rounds once instead of three times.  Both products
need one step, so the weights of the finer one are rounded to the coarser's, and its input is stored coarser
where a layer of the array writes it for nobody else.  Such a layer writes beside the other input; else the
input is copied there, pixels that a stride leaves out not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fadiff.converter.ir.builder import image_view, weight_view
from fadiff.converter.ir.graph import Graph, HostLayer, Layer, Tensor, TensorCoreLayer, View
from fadiff.converter.ir.host import Add, Copy
from fadiff.converter.ir.loops import Access, Loops
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.realise.realised import Realised


class _Part(NamedTuple):
    """A convolution that is added."""

    layer: TensorCoreLayer
    weights: np.ndarray
    """int8 [C, K]."""
    bias: np.ndarray
    """int32 [K]."""
    step: float
    """Of a sum, in those of the addition's output."""


def joined_convolutions(graph: Graph, layer: Layer, target: Target) -> Realised | None:
    """One convolution; None unless both are 1 x 1, constant, without ReLU, and read by the addition alone."""
    if not isinstance(layer, HostLayer) or not isinstance(layer.operator, Add):
        return None
    add, out = layer.operator, graph.tensors[layer.outputs[0]]
    found = [
        _part(graph, name, factor * add.scale)
        for name, factor in zip(layer.inputs, (add.a_scale, add.b_scale), strict=True)
    ]
    first, second = found
    if first is None or second is None or first.layer is second.layer or target.element_type != "int8":
        return None
    if first.layer.output.strides != second.layer.output.strides:
        return None
    d, step = first.layer.dims, max(first.step, second.step)
    channels = d.C + second.layer.dims.C
    beside = Tensor(
        f"{layer.name}.beside", (1, d.P, d.Q, channels), "int8", graph.tensors[first.layer.input.tensor].scale
    )
    writers, values = list[Layer](), list[np.ndarray]()
    for one, before in ((first, 0), (second, d.C)):
        writer, finer = _written_beside(graph, one.layer, beside, before), one.step / step
        if isinstance(writer, TensorCoreLayer):  # what is lost is shared by inputs and weights
            coarser = float(np.float32(finer**0.5))
            writer, finer = replace(writer, scale=float(np.float32(writer.scale * coarser))), finer / coarser
        writers.append(writer)
        values.append(np.rint(one.weights * finer))
    dims = replace(d, C=channels)
    total = np.rint(sum(one.bias * (one.step / step) for one in (first, second)))
    weight = Tensor(
        f"{layer.name}.weight",
        (1, 1, 1, channels, d.K),
        "int8",
        1.0,
        np.concatenate(values).astype(np.int8).reshape(1, 1, 1, channels, d.K),
    )
    bias = Tensor(f"{layer.name}.bias", (1, d.K), "int32", 1.0, total.astype(np.int32).reshape(1, d.K))
    joined = replace(
        first.layer,
        name=layer.name,
        dims=dims,
        input=image_view(beside.name, (1, d.P, d.Q, channels)),
        weight=weight_view(weight.name, dims),
        output=replace(first.layer.output, tensor=out.name),
        input_size=(d.P, d.Q),
        bias=bias.name,
        stride=(1, 1),
        activation=add.activation,
        scale=float(np.float32(step)),
        onnx_nodes=(*first.layer.onnx_nodes, *second.layer.onnx_nodes, *layer.onnx_nodes),
    )
    layers = (*writers, joined)
    names = {first.layer.name, second.layer.name, *(one.name for one in layers)}
    replaced = tuple(one.name for one in graph.layers if one.name in names)
    return Realised("one convolution of two", replaced, layers, (beside, weight, bias), exact=False)


def _part(graph: Graph, name: str, factor: float) -> _Part | None:
    """What makes an operand of the addition."""
    producers = graph.producers(name)
    layer = producers[0] if len(producers) == 1 else None
    if not isinstance(layer, TensorCoreLayer) or layer.op != "conv" or name in graph.outputs:
        return None
    d, weight = layer.dims, graph.tensors[layer.weight.tensor]
    is_plain = d.G * d.N * d.R * d.S == 1 and layer.pads == (0, 0, 0, 0) and layer.activation == "none"
    by_tensor = layer.row_scale is None and layer.channel_scale is None and layer.polynomial is None
    if not (is_plain and by_tensor) or weight.data is None or len(graph.consumers(name)) != 1:
        return None
    if layer.output.strides[2:] != (d.Q * d.K, d.K, 1) or layer.output.offset:
        return None
    if layer.weight != weight_view(weight.name, d) or graph.tensors[name].dtype != "int8":
        return None
    bias = np.zeros(d.K) if layer.bias is None else np.asarray(graph.tensors[layer.bias].data)
    weights = np.asarray(weight.data).reshape(d.C, d.K)
    return _Part(layer, weights, bias.reshape(d.K), layer.scale * factor)


def _written_beside(graph: Graph, reader: TensorCoreLayer, beside: Tensor, before: int) -> Layer:
    """What writes the pixels that a convolution reads behind `before` channels of others."""
    x, d, channels = reader.input, reader.dims, beside.shape[-1]
    _, _, h, w, c = x.strides
    producers = graph.producers(x.tensor)
    alone = len(producers) == 1 and graph.consumers(x.tensor) == (reader,) and x.tensor not in graph.outputs
    writer = producers[0] if alone else None
    if isinstance(writer, TensorCoreLayer) and writer.dims.G == 1 and reader.stride == (1, 1):
        row = (d.Q * d.C, d.C, 1)
        if writer.output.strides[2:] == row == (h, w, c) and not writer.output.offset and not x.offset:
            strides = (0, 0, d.Q * channels, channels, 1)
            return replace(writer, output=View(beside.name, before, strides))
    read = Access(x.offset, (reader.stride[0] * h, reader.stride[1] * w, c))
    loops = Loops((d.P, d.Q, d.C), (read,), Access(before, (d.Q * channels, channels, 1)))
    return HostLayer(f"{beside.name}.{before}", Copy(loops), (x.tensor,), (beside.name,))
