"""write-in-place: a layer writes where a copy would have moved its output.

Legal when the copy takes the whole tensor, nothing else reads that tensor, only tensor-core layers
write it, the scales agree, and every stride of their output views stays a single stride in the
destination.  Concatenations then cost nothing: each branch writes its slice.
"""

from __future__ import annotations

import math
from dataclasses import replace

from converter.graph import Graph, HostLayer, Layer, TensorCoreLayer, View


def write_in_place(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """Remove copies whose source can be written at its destination."""
    layers: list[Layer] = list(graph.layers)
    notes = []
    for copy in graph.layers:
        if not isinstance(copy, HostLayer) or copy.op != "copy":
            continue
        source, target = copy.inputs[0], copy.outputs[0]
        if not _is_movable(graph, copy, source, target):
            continue
        moved = [_moved(layer, copy, source) for layer in layers if source in layer.outputs]
        if not moved or any(layer is None for layer in moved):
            continue
        by_name = {layer.name: layer for layer in moved if layer is not None}
        layers = [by_name.get(layer.name, layer) for layer in layers if layer.name != copy.name]
        notes.append(f"{', '.join(by_name)} write into {target}, copy {copy.name} removed")
    if not notes:
        return graph, ()
    used = {name for layer in layers for name in (*layer.inputs, *layer.outputs)} | {
        *graph.inputs,
        *graph.outputs,
    }
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name in used}
    return replace(graph, layers=tuple(layers), tensors=tensors), tuple(notes)


def _is_movable(graph: Graph, copy: HostLayer, source: str, target: str) -> bool:
    """Whether the copy takes a whole tensor that nothing else needs, without rescaling."""
    tensor = graph.tensors[source]
    if source in (*graph.inputs, *graph.outputs) or tensor.data is not None:
        return False
    if len(graph.consumers(source)) != 1 or tensor.scale != graph.tensors[target].scale:
        return False
    shape: tuple[int, ...] = copy.attributes["shape"]  # type: ignore[assignment]
    strides: tuple[int, ...] = copy.attributes["strides"]  # type: ignore[assignment]
    reach = 1
    for size, stride in sorted(zip(shape, strides, strict=True), key=lambda loop: loop[1]):
        if size > 1 and stride != reach:
            return False
        reach *= size
    return copy.attributes["offset"] == 0 and reach == tensor.size == math.prod(shape)


def _moved(layer: Layer, copy: HostLayer, source: str) -> TensorCoreLayer | None:
    """The layer writing at the copy's destination, None when strides cannot say it."""
    if not isinstance(layer, TensorCoreLayer):
        return None
    dims, view = layer.dims, layer.output
    sizes = (dims.G, dims.N, dims.P, dims.Q, dims.K)
    loops = sorted(
        zip(
            copy.attributes["strides"], copy.attributes["shape"], copy.attributes["out_strides"], strict=True
        ),  # type: ignore[call-overload]
        reverse=True,
    )
    address, rest = int(copy.attributes["out_offset"]), view.offset  # type: ignore[call-overload]
    room: list[int] = []
    for stride, extent, out_stride in loops:
        address += rest // stride * out_stride
        room.append(extent - 1 - rest // stride)
        rest %= stride
    strides: list[int] = []
    for size, stride in zip(sizes, view.strides, strict=True):
        if size == 1:
            strides.append(0)
            continue
        index = next((i for i, (s, _, _) in enumerate(loops) if s <= stride), None)
        if index is None or stride % loops[index][0]:
            return None
        steps = stride // loops[index][0]
        room[index] -= (size - 1) * steps
        if room[index] < 0:
            return None
        strides.append(steps * loops[index][2])
    g, n, p, q, k = strides
    if dims.K > 1 and k != 1:
        return None  # rows of the array are stored contiguously
    return replace(layer, output=View(copy.outputs[0], address, (g, n, p, q, k)))
