"""Max pools whose input no convolution hands over: an identity on the array does, and its stores pool.

After a concatenation, behind a convolution with other readers, or of a network's input.  Gemmini's padding is
zero: where windows reach into it and values may be negative, the core first stores the image amid the lowest
integer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fadiff.converter.ir.builder import dense_strides, image_view, weight_view
from fadiff.converter.ir.graph import Graph, HostLayer, Layer, Tensor, TensorCoreLayer
from fadiff.converter.ir.host import Add, Binary, Copy, Fill, Lookup, MaxPool
from fadiff.converter.ir.loops import Access, Dims, Loops
from fadiff.costmodel.group.pooling import obstacle_to_pooling, pool_of
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.realise.realised import Realised, with_realised

_LOWEST = -128


def realised_max_pool(graph: Graph, layer: Layer, target: Target) -> Realised | None:
    """An identity before the pool, perhaps behind a border.

    None: the store path cannot pool the window, or a convolution's stores can do it as it is.
    """
    if not isinstance(layer, HostLayer):
        return None
    pool, x = pool_of(graph, layer), graph.tensors[layer.inputs[0]]
    if pool is None or not target.has_max_pool or x.dtype != target.element_type:
        return None
    if not obstacle_to_pooling(graph, layer):
        return None
    image, layers, tensors = x, list[Layer](), list[Tensor]()
    if pool.reaches_padding and not _is_positive(graph, x.name):
        if target.element_type != "int8":
            return None
        image, layers = _bordered(graph, layer, x)
        tensors.append(image)
    data = np.ones((image.shape[3], 1, 1, 1, 1), x.dtype)
    ones = Tensor(f"{layer.name}.ones", data.shape, x.dtype, 1.0, data)
    handed = replace(image, name=f"{layer.name}.input", onnx_name=None, onnx_axes=None)
    tensors += [ones, handed]
    layers.append(
        _identity(
            f"{layer.name}.identity", image, ones, handed, rectified=pool.reaches_padding and image is x
        )
    )
    operator = layer.operator
    assert isinstance(operator, MaxPool)
    if image is not x:
        operator = MaxPool(replace(operator.window, pads=(0, 0, 0, 0)))
    pooled = replace(layer, operator=operator, inputs=(handed.name,))
    found = Realised("pooled stores of an identity", (layer.name,), (*layers, pooled), tuple(tensors))
    return None if obstacle_to_pooling(with_realised(graph, found), pooled) else found


def _identity(name: str, image: Tensor, ones: Tensor, handed: Tensor, *, rectified: bool) -> TensorCoreLayer:
    n, height, width, channels = image.shape
    dims = Dims(G=channels, N=n, P=height, Q=width)
    view = image_view(image.name, (n, height, width, channels), channels)
    return TensorCoreLayer(
        name,
        "depthwise",
        dims,
        view,
        weight_view(ones.name, dims),
        replace(view, tensor=handed.name),
        (height, width),
        activation="relu" if rectified else "none",
    )


def _bordered(graph: Graph, layer: HostLayer, x: Tensor) -> tuple[Tensor, list[Layer]]:
    """The image amid as many of the lowest integers as windows reach, and the layers that store it so."""
    operator, out = layer.operator, graph.tensors[layer.outputs[0]].shape
    assert isinstance(operator, MaxPool)
    n, height, width, channels = x.shape
    kernel, stride, (top, left) = operator.window.kernel, operator.window.stride, operator.window.pads[:2]
    h, w = (
        max((outputs - 1) * s + k, size + pad)
        for outputs, s, k, size, pad in zip(
            out[1:3], stride, kernel, (height, width), (top, left), strict=True
        )
    )
    image = replace(
        x, name=f"{layer.name}.bordered", shape=(n, h, w, channels), onnx_name=None, onnx_axes=None
    )
    inner, outer = dense_strides((n, height, width * channels)), dense_strides((n, h, w * channels))
    first = (top * w + left) * channels
    loops = Loops((n, height, width * channels), (Access(0, inner),), Access(first, outer))
    border = HostLayer(f"{image.name}.fill", Fill(_LOWEST), (), (image.name,))
    return image, [border, HostLayer(image.name, Copy(loops), (x.name,), (image.name,))]


def _is_positive(graph: Graph, tensor: str) -> bool:
    """Whether a tensor is known to have no negative value: what ReLUs, and tables without one, leave."""
    writers = graph.producers(tensor)
    return bool(writers) and all(_writes_positive(graph, writer) for writer in writers)


def _writes_positive(graph: Graph, layer: Layer) -> bool:
    if isinstance(layer, TensorCoreLayer):
        return layer.activation == "relu"
    match layer.operator:
        case Add(activation="relu") | Binary(activation="relu"):
            return True
        case Lookup():
            table = graph.tensors[layer.inputs[1]].data
            return table is not None and bool((np.asarray(table) >= 0).all())
        case Copy() | MaxPool():
            return _is_positive(graph, layer.inputs[0])
    return False
