"""Sums and means of whole images, or of rows, as products with ones: the store multiplies by the scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fadiff.converter.ir.graph import Graph, HostLayer, Layer, Tensor, TensorCoreLayer, View
from fadiff.converter.ir.host import GlobalAveragePool, Reduce
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.realise.realised import Realised


@dataclass(frozen=True)
class _Sum:
    """out[outer, inner] = scale * sum over length of x[outer, length, inner], both dense."""

    outer: int
    length: int
    inner: int
    scale: float


def realised_sum(graph: Graph, layer: Layer, target: Target) -> Realised | None:
    """One product, or None: no sum of int8 (those of floats depend on their order)."""
    if not isinstance(layer, HostLayer):
        return None
    x, out = graph.tensors[layer.inputs[0]], graph.tensors[layer.outputs[0]]
    total = _sum(layer, x)
    if total is None or {x.dtype, out.dtype, target.element_type} != {"int8"}:
        return None
    data = np.ones((1, 1, 1, total.length, 1), np.int8)
    ones = Tensor(f"{layer.name}.ones", data.shape, "int8", 1.0, data)
    if total.inner == 1:  # rows times a column of ones
        product = TensorCoreLayer(
            layer.name,
            "gemm",
            Dims(C=total.length, P=total.outer),
            View(x.name, 0, (0, 0, total.length, 0, 1)),
            View(ones.name, 0, (0, 0, 0, 1, total.length)),
            View(out.name, 0, (0, 0, 1, 0, 1)),
            (total.outer, 1),
            scale=total.scale,
            onnx_nodes=layer.onnx_nodes,
        )
    else:  # a row of ones times each image
        image = total.length * total.inner
        product = TensorCoreLayer(
            layer.name,
            "bmm",
            Dims(G=total.outer, K=total.inner, C=total.length),
            View(ones.name, 0, (0, 0, 0, 0, 1)),
            View(x.name, 0, (image, 0, 0, total.inner, 1)),
            View(out.name, 0, (total.inner, 0, 0, 0, 1)),
            (1, 1),
            scale=total.scale,
            onnx_nodes=layer.onnx_nodes,
        )
    return Realised("product with ones", (layer.name,), (product,), (ones,))


def _sum(layer: HostLayer, x: Tensor) -> _Sum | None:
    match layer.operator:
        case GlobalAveragePool(scale=scale):
            images, channels = x.shape[0], x.shape[-1]
            return _Sum(images, x.size // (images * channels), channels, scale)
        case Reduce(function="sum", rows=rows, scale=scale):
            return _Sum(rows.outer, rows.length, rows.inner, scale)
    return None
