"""merge-duplicates: two layers that compute the same from the same become one."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from converter.ir.graph import Graph, HostLayer, Layer, Tensor, TensorCoreLayer, View

_LARGE = 2**22


def merge_duplicates(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """Common sub-expressions: same operation, attributes and inputs; output alone and of equal scale.

    Legal for layers that write the whole of a tensor nobody else writes; graph outputs stay.
    """
    seen: dict[object, Layer] = {}
    renamed: dict[str, str] = {}
    layers: list[Layer] = []
    notes = []
    for original in graph.layers:
        layer = _reading(original, renamed)
        (output, *more) = layer.outputs
        key = _key(graph, layer)
        twin = seen.get(key)
        private = not more and len(graph.producers(output)) == 1 and output not in graph.outputs
        if twin is not None and private:
            renamed[output] = twin.outputs[0]
            notes.append(f"{layer.name} computes the same as {twin.name}")
            continue
        if not more and len(graph.producers(output)) == 1:
            seen.setdefault(key, layer)
        layers.append(layer)
    if not notes:
        return graph, ()
    used = {name for layer in layers for name in (*layer.inputs, *layer.outputs)} | {
        *graph.inputs,
        *graph.outputs,
    }
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name in used}
    return replace(graph, layers=tuple(layers), tensors=tensors), tuple(notes)


def _reading(layer: Layer, renamed: dict[str, str]) -> Layer:
    """The layer with its inputs replaced by their twins."""
    if isinstance(layer, HostLayer):
        return replace(layer, inputs=tuple(renamed.get(name, name) for name in layer.inputs))

    def view(v: View) -> View:
        return replace(v, tensor=renamed.get(v.tensor, v.tensor))

    return replace(layer, input=view(layer.input), weight=view(layer.weight))


def _key(graph: Graph, layer: Layer) -> object:
    """Equal for layers that compute the same numbers in the same storage."""
    out = graph.tensors[layer.outputs[0]]
    stored = (out.shape, out.dtype, out.scale)
    inputs = tuple(_content(graph.tensors[name]) for name in layer.inputs)
    if isinstance(layer, TensorCoreLayer):
        plain = replace(
            layer,
            name="",
            onnx_nodes=(),
            bias=None,
            input=replace(layer.input, tensor=""),
            weight=replace(layer.weight, tensor=""),
            output=replace(layer.output, tensor=""),
        )
        return plain, inputs, stored
    return layer.op, tuple(sorted((k, repr(v)) for k, v in layer.attributes.items())), inputs, stored


def _content(tensor: Tensor) -> object:
    """A constant by its bytes (a large one by its name: it has no copy), an activation by its name."""
    if tensor.data is None or tensor.nbytes > _LARGE:
        return tensor.name
    digest = hashlib.sha256(np.ascontiguousarray(tensor.data).reshape(-1).view(np.uint8).data).digest()
    return tensor.shape, tensor.dtype, tensor.scale, digest
