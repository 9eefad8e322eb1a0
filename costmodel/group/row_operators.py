"""Host operators inside fusion groups: those that treat every pixel's channels, or rows of them, alone.

The core runs such an operator on the tile buffer between two members that run on the array: softmax
between the two products of attention, GELU between those of a feed-forward network.  Its input and
output are stored alike, so that a group tile of one is a group tile of the other.
"""

from __future__ import annotations

import math
from collections.abc import Set

from converter.ir.graph import Graph, HostLayer, Layer, TensorCoreLayer, View

ELEMENTWISE = ("lookup", "formula")
ALONG_ROWS = ("softmax", "layer_norm")


def row_length(layer: HostLayer) -> int | None:
    """Stored elements that the operator needs together; None if it cannot run on parts of its input.

    Input and output have one shape, are dense and in the same order.
    """
    a = layer.attributes
    if layer.op in ELEMENTWISE:
        shape, strides = a.get("shape"), a.get("strides")
        if not isinstance(shape, tuple | list) or not isinstance(strides, tuple | list):
            return None  # a graph of shapes only says nothing about storage
        dense = strides == a.get("out_strides") and _is_dense(tuple(shape), tuple(strides))
        return 1 if dense and not a.get("offset", 0) and not a.get("out_offset", 0) else None
    if layer.op in ALONG_ROWS and a.get("inner") == 1:
        return int(str(a["length"]))
    return None


def _is_dense(shape: tuple[object, ...], strides: tuple[object, ...]) -> bool:
    """Whether the strides walk a tensor of this shape element after element."""
    step = 1
    for extent, stride in sorted(zip(shape, strides, strict=True), key=lambda pair: int(str(pair[1]))):
        if int(str(extent)) > 1:
            if int(str(stride)) != step:
                return False
            step *= int(str(extent))
    return True


def source(graph: Graph, layer: Layer, inside: Set[str] = frozenset()) -> TensorCoreLayer | None:
    """The array layer whose output a layer's output is stored like: itself, or up through adds (whose
    operands and output are stored alike) and row operators.

    Layers `inside` come first: an add takes the (N, P, Q) of the operand that is fused.
    """
    while not isinstance(layer, TensorCoreLayer):
        tensors = layer.inputs if layer.op == "add" else layer.inputs[:1]
        single = [found[0] for tensor in tensors if len(found := graph.producers(tensor)) == 1]
        if not single or (layer.op != "add" and (row_length(layer) is None or not _is_whole(graph, layer))):
            return None
        layer = min(single, key=lambda producer: (producer.name not in inside, producer.op == "max_pool"))
    return layer


def _is_whole(graph: Graph, layer: HostLayer) -> bool:
    """Whether the operator reads all of its input and writes all of its output."""
    sizes = {graph.tensors[name].size for name in (layer.inputs[0], layer.outputs[0])}
    shape = layer.attributes.get("shape")
    if layer.op in ELEMENTWISE and isinstance(shape, tuple | list):
        sizes.add(math.prod(int(str(extent)) for extent in shape))
    return len(sizes) == 1


def stores_channels_together(layer: TensorCoreLayer, view: View, channels: int) -> bool:
    """Whether the channels of all groups of a pixel are one run of `channels` per group in `view`."""
    return layer.dims.G == 1 or layer.op == "depthwise" or view.strides[0] == channels


def obstacle_to_rows(graph: Graph, layer: HostLayer, inside: Set[str] = frozenset()) -> str:
    """Why a host operator cannot be a member of a fusion group; empty if it can."""
    length = row_length(layer)
    if length is None:
        return f"host operator {layer.op} cannot be a member of a fusion group"
    if not _is_whole(graph, layer):
        return f"host operator {layer.op} reads or writes a part of a tensor"
    producers = graph.producers(layer.inputs[0])
    first = source(graph, producers[0], inside) if len(producers) == 1 else None
    if first is None:
        return f"host operator {layer.op} follows no convolution or matrix product"
    d, view = first.dims, first.output
    together = stores_channels_together(first, view, d.K)
    if graph.tensors[view.tensor].size != d.G * d.N * d.K * d.P * d.Q or view.offset:
        return f"{view.tensor} is part of a larger tensor"
    if length not in (1, d.K) and not (together and length == d.G * d.K):
        return f"its rows of {length} elements are not the channels of a pixel"
    if length > 1 and d.K > 1 and view.strides[4] != 1:
        return "its rows are not contiguous"
    if any(graph.tensors[name].data is None for name in layer.inputs[1:]):
        return "its mask is computed"
    rows = mask_rows(layer)
    if rows > 1 and d.G > 1 and (length != d.K or view.strides[0] // length % rows):
        return "its mask differs between groups"
    return ""


def mask_rows(layer: HostLayer) -> int:
    """Rows of a softmax's mask, used in turn; 0 without a mask."""
    return int(str(layer.attributes.get("mask_rows", 0)))
