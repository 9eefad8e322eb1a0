"""Small graphs for cost-model tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fadiff.converter.ir.graph import Graph, HostLayer, Tensor, TensorCoreLayer, View
from fadiff.converter.ir.host import Add, MaxPool, PoolWindow
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.target.target import Target

SIDE_4 = Target(name="side4", side=4, scratchpad_bytes=1 << 16, accumulator_bytes=1 << 13)
"""512 accumulator rows."""


def conv(name, source, out, K, C, P, Q, R=1, stride=1, pad=0, bias=None, N=1):
    """A convolution with a square kernel, NHWC in and out."""
    height, width = (P - 1) * stride + R - 2 * pad, (Q - 1) * stride + R - 2 * pad
    return TensorCoreLayer(
        name,
        "conv",
        Dims(N=N, K=K, C=C, P=P, Q=Q, R=R, S=R),
        View(source, 0, (0, height * width * C, width * C, C, 1)),
        View(f"{name}.w", 0, (0, R * C * K, C * K, K, 1)),
        View(out, 0, (0, P * Q * K, Q * K, K, 1)),
        (height, width),
        bias=bias,
        stride=(stride, stride),
        pads=(pad,) * 4,
    )


def depthwise(name, source, out, G, P, Q, R=3, pad=1, bias=None, N=1):
    """A depthwise convolution with a square kernel, NHWC in and out."""
    height, width = P - 1 + R - 2 * pad, Q - 1 + R - 2 * pad
    return TensorCoreLayer(
        name,
        "depthwise",
        Dims(G=G, N=N, P=P, Q=Q, R=R, S=R),
        View(source, 0, (1, height * width * G, width * G, G, 1)),
        View(f"{name}.w", 0, (1, R * G, G, 1, 1)),
        View(out, 0, (1, P * Q * G, Q * G, G, 1)),
        (height, width),
        bias=bias,
        pads=(pad,) * 4,
    )


def add(name, a, b, out):
    return HostLayer(name, Add(), (a, b), (out,))


def graph(layers, inputs, outputs):
    """Tensors are made up from the layers; weights hold one element."""
    tensors = {}
    for layer in layers:
        if isinstance(layer, TensorCoreLayer):
            d = layer.dims
            tensors.setdefault(
                layer.input.tensor, Tensor(layer.input.tensor, (d.N, *layer.input_size, d.G * d.C), "int8")
            )
            tensors[layer.output.tensor] = Tensor(layer.output.tensor, (d.N, d.P, d.Q, d.G * d.K), "int8")
            tensors[layer.weight.tensor] = Tensor(
                layer.weight.tensor, (1, d.R, d.S, d.C, d.K), "int8", data=np.zeros(1, np.int8)
            )
            if layer.bias:
                tensors[layer.bias] = Tensor(layer.bias, (1, d.K), "int32", data=np.zeros(1, np.int32))
        else:
            tensors[layer.outputs[0]] = Tensor(layer.outputs[0], tensors[layer.inputs[0]].shape, "int8")
    return Graph("test", tensors, tuple(layers), inputs, outputs)


def pair(P=8, C=4, K=4, R=3, stride=1):
    """x -> a -> y -> b -> z: two convolutions, same padding."""
    a = conv("a", "x", "y", K, C, P * stride, P * stride, R, 1, R // 2)
    b = conv("b", "y", "z", K, K, P, P, R, stride, R // 2) if stride == 1 else conv("b", "y", "z", K, K, P, P)
    return graph([a, b], ("x",), ("z",))


def whole_tile(dims, side=16, **changes):
    """One tile for the whole layer, channels spread over the array."""
    rows, cols = min(dims.C, side), min(dims.K, side)
    tile = dims.replace(changes)
    block = Dims(K=min(cols, tile.K), C=min(rows, tile.C), P=tile.P, Q=tile.Q)
    return Mapping(tile, tile, block, Dims(C=block.C), Dims(K=block.K))


def layer_of(shape):
    """A layer of this shape; its operands have no particular place."""
    view = View("t", 0, (0, 0, 0, 0, 0))
    weight = View("w", 0, (0, 0, 0, 1, 9) if shape.has_transposed_weights else (0, 0, 0, 9, 1))
    return TensorCoreLayer(
        "layer",
        "depthwise" if shape.is_depthwise else "conv",
        shape.dims,
        view,
        weight,
        view,
        (shape.height.size, shape.width.size),
        bias="b" if shape.has_bias else None,
        stride=(shape.height.stride, shape.width.stride),
        dilation=(shape.height.dilation, shape.width.dilation),
        pads=(shape.height.pad, shape.width.pad, 0, 0),
    )


def stem(
    P: int = 8,
    Q: int = 8,
    kernel: int = 3,
    stride: int = 2,
    pads: tuple[int, int, int, int] = (1, 1, 1, 1),
    K: int = 8,
    after: bool = False,
    **changes: object,
) -> Graph:
    """conv 1x1 with ReLU (K of 4 channels, P x Q), max pool, and a 3x3 convolution `after` it."""
    first = replace(conv("conv", "x", "y", K=K, C=4, P=P, Q=Q), activation="relu")
    p = (P + pads[0] + pads[2] - kernel) // stride + 1
    q = (Q + pads[1] + pads[3] - kernel) // stride + 1
    window = PoolWindow((kernel, kernel), (stride, stride), (1, 1), pads)
    pool = HostLayer("pool", MaxPool(replace(window, **changes)), ("y",), ("z",))
    rest = (conv("last", "z", "out", K=4, C=K, P=p, Q=q, R=3, pad=1),) if after else ()
    tensors = {"z": Tensor("z", (1, p, q, K), "int8")}
    for layer in (first, *rest):
        tensors |= graph((layer,), (layer.input.tensor,), (layer.output.tensor,)).tensors
    return Graph("stem", tensors, (first, pool, *rest), ("x",), ("out",) if after else ("z",))
