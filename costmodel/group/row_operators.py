"""Host operators inside fusion groups: those that treat every pixel's channels, or rows of them, alone.

The core runs such an operator on the tile buffer between two members that run on the array: softmax
between the two products of attention, GELU between those of a feed-forward network.  Its input and
output are stored alike, so that a group tile of one is a group tile of the other.
"""

from __future__ import annotations

import math
from collections.abc import Set

from fadiff.converter.ir.graph import Graph, HostLayer, Layer, TensorCoreLayer, View
from fadiff.converter.ir.host import Formula, LayerNorm, Lookup, Softmax


def runs_on_core(layer: Layer) -> bool:
    """Whether the core stores the output: Gemmini may load it after a fence."""
    return isinstance(layer, HostLayer) and layer.op != "add"


def row_length(layer: HostLayer) -> int | None:
    """Stored elements that the operator needs together; None if it cannot run on parts of its input.

    Input and output have one shape, are dense and in the same order.
    """
    match layer.operator:
        case Lookup(loops=loops) | Formula(loops=loops):
            in_order = loops.inputs[0] == loops.output and not loops.output.offset
            return 1 if in_order and _is_dense(loops.shape, loops.output.strides) else None
        case Softmax(rows=rows) | LayerNorm(rows=rows):
            return rows.length if rows.inner == 1 else None
    return None


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the strides walk a tensor of this shape element after element."""
    step = 1
    for extent, stride in sorted(zip(shape, strides, strict=True), key=lambda pair: pair[1]):
        if extent > 1:
            if stride != step:
                return False
            step *= extent
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
    if isinstance(layer.operator, Lookup | Formula):
        sizes.add(math.prod(layer.operator.loops.shape))
    return len(sizes) == 1


def stores_channels_together(layer: TensorCoreLayer, view: View, channels: int) -> bool:
    """Whether the channels of all groups of a pixel are one run of `channels` per group in `view`."""
    return layer.dims.G == 1 or layer.op == "depthwise" or view.strides[0] == channels


def obstacle_to_rows(graph: Graph, layer: HostLayer, inside: Set[str] = frozenset()) -> str:
    """Why a host operator cannot be a member of a fusion group; empty if it can."""
    length = row_length(layer)
    if length is None or graph.is_kept_float(layer):
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
    return layer.operator.mask_rows if isinstance(layer.operator, Softmax) else 0


def obstacle_to_storing_rows(graph: Graph, layer: Layer, inside: Set[str], *, is_last: bool) -> str:
    """Why a function of rows in a fusion group cannot write to memory, whole lines of its tensor; empty if it
    can."""
    first = source(graph, layer, inside)
    if not is_last:
        return "a host operator amid a fusion group is read inside it only"
    if first is None or not stores_channels_together(first, first.output, first.dims.K):
        return "its output is stored group by group and cannot end a fusion group"
    return ""
