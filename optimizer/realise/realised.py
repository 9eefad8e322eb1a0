"""Layers that do the work of others, and a graph with them in their place."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fadiff.converter.ir.graph import Graph, Layer, Tensor


@dataclass(frozen=True)
class Realised:
    """What takes the place of some layers."""

    form: str
    """In words, for people: "product with ones"."""
    replaced: tuple[str, ...]
    """Names of layers, in graph order."""
    layers: tuple[Layer, ...]
    """In order of execution: where the last of those stood."""
    tensors: tuple[Tensor, ...]
    """That they bring along."""
    exact: bool = True
    """The same bits; else as near to the float function, with other roundings."""


def with_realised(graph: Graph, realised: Realised) -> Graph:
    """The graph with them; tensors that no layer touches any more are left out."""
    layers: list[Layer] = []
    for layer in graph.layers:
        if layer.name not in realised.replaced:
            layers.append(layer)
        elif layer.name == realised.replaced[-1]:
            layers.extend(realised.layers)
    used = {*graph.inputs, *graph.outputs}
    for layer in layers:
        used.update((*layer.inputs, *layer.outputs))
    tensors = {**graph.tensors, **{tensor.name: tensor for tensor in realised.tensors}}
    kept = {name: tensor for name, tensor in tensors.items() if name in used}
    return replace(graph, layers=tuple(layers), tensors=kept)
