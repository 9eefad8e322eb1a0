"""Average pools as depthwise convolutions with ones, where all windows hold as many taps."""

from __future__ import annotations

import numpy as np

from fadiff.converter.ir.builder import image_view, weight_view
from fadiff.converter.ir.graph import Graph, HostLayer, Layer, Tensor, TensorCoreLayer
from fadiff.converter.ir.host import AveragePool
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.realise.realised import Realised


def realised_average_pool(graph: Graph, layer: Layer, target: Target) -> Realised | None:
    """The convolution, or None: windows at the border that count fewer taps, other than an image of int8."""
    if not isinstance(layer, HostLayer):
        return None
    operator, (x, out) = layer.operator, (graph.tensors[n] for n in (layer.inputs[0], layer.outputs[0]))
    if not isinstance(operator, AveragePool) or {x.dtype, out.dtype, target.element_type} != {"int8"}:
        return None
    if len(x.shape) != 4 or len(out.shape) != 4:
        return None
    (n, height, width, channels), (_, p, q, _) = x.shape, out.shape
    window, (top, left, bottom, right) = operator.window, operator.window.pads
    if any(window.pads) and not operator.count_include_pad:
        return None
    axes = zip((p, q), window.stride, window.kernel, window.dilation, strict=True)
    reach = [(outputs - 1) * stride + (taps - 1) * step + 1 for outputs, stride, taps, step in axes]
    if reach[0] > top + height + bottom or reach[1] > left + width + right:
        return None  # past the padding, where nothing counts
    dims = Dims(G=channels, N=n, P=p, Q=q, R=window.kernel[0], S=window.kernel[1])
    data = np.ones((channels, dims.R, dims.S, 1, 1), np.int8)
    ones = Tensor(f"{layer.name}.ones", data.shape, "int8", 1.0, data)
    convolution = TensorCoreLayer(
        layer.name,
        "depthwise",
        dims,
        image_view(x.name, (n, height, width, channels), channels),
        weight_view(ones.name, dims),
        image_view(out.name, (n, p, q, channels), channels),
        (height, width),
        stride=window.stride,
        dilation=window.dilation,
        pads=window.pads,
        scale=float(np.float32(operator.ratio) / np.float32(dims.R * dims.S)),
        onnx_nodes=layer.onnx_nodes,
    )
    return Realised("depthwise convolution with ones", (layer.name,), (convolution,), (ones,))
