"""Which sets of layers can run as one fusion group: connected, convex, one sink."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from fadiff.converter.ir.graph import Graph, Layer, TensorCoreLayer
from fadiff.costmodel.group.fusion import obstacle_to_plain_stores
from fadiff.costmodel.group.pooling import convolution_of, pool_of
from fadiff.costmodel.group.row_operators import obstacle_to_rows
from fadiff.costmodel.mapping.shape import shape_of


def fusable_producers(graph: Graph, layer: Layer, adds: bool = True) -> tuple[str, ...]:
    """Layers whose output `layer` could read inside a group: streamed operands of convolutions,
    matrix products and (with `adds`) residual adds, host operators on rows and max pools that the
    convolution's stores can do; a stationary operand or a concatenation cannot be fused."""
    if isinstance(layer, TensorCoreLayer):
        tensors: tuple[str, ...] = (layer.input.tensor,)
        if layer.weight.tensor == layer.input.tensor:
            return ()
    elif layer.op == "add" and adds:
        tensors = layer.inputs
    elif adds and (convolution_of(graph, layer) or not obstacle_to_rows(graph, layer)):
        tensors = layer.inputs[:1]
    else:
        return ()
    names = []
    for tensor in tensors:
        producers = graph.producers(tensor)
        if len(producers) == 1 and _can_feed(graph, producers[0], adds):
            names.append(producers[0].name)
    return tuple(dict.fromkeys(names))


def _can_feed(graph: Graph, producer: Layer, adds: bool) -> bool:
    if isinstance(producer, TensorCoreLayer):
        return True
    if not adds:
        return False
    return (
        producer.op == "add" or bool(convolution_of(graph, producer)) or not obstacle_to_rows(graph, producer)
    )


def candidate_groups(
    graph: Graph, most: int, adds: bool = True, pools: bool = True
) -> Iterator[tuple[str, ...]]:
    """Sets of two to `most` layers (host operators on rows and max pools not counted) that a group tile
    could run through, in graph order.

    Grown backwards from each sink along fusable edges, so every member feeds the sink; kept when no
    path leaves the set and comes back.  `adds` lets residual adds be members: leave it off in
    profile dosa, where adds are free and a fused one would hide the write of its operand.  `pools` lets max
    pools be members, always with the convolution whose stores do them.
    """
    producers = {layer.name: fusable_producers(graph, layer, adds) for layer in graph.layers}
    partner = {
        layer.name: convolution.name
        for layer in graph.layers
        if (convolution := convolution_of(graph, layer))
    }
    counts = {
        layer.name: int(isinstance(layer, TensorCoreLayer) or layer.op == "add") for layer in graph.layers
    }
    for sink in graph.layers:
        seen: set[tuple[str, ...]] = set()
        frontier: list[tuple[str, ...]] = [(sink.name,)]
        while frontier:
            grown: list[tuple[str, ...]] = []
            for members in frontier:
                for name in members:
                    for producer in producers[name]:
                        if producer in members or sum(counts[m] for m in members) + counts[producer] > most:
                            continue
                        bigger = tuple(sorted((*members, producer), key=graph.index.__getitem__))
                        if bigger not in seen:
                            seen.add(bigger)
                            grown.append(bigger)
            for members in grown:
                pooling = [name for name in members if name in partner]
                if pooling and not (pools and all(partner[name] in members for name in pooling)):
                    continue
                if _is_convex(graph, members):
                    yield members
            frontier = grown


def _is_convex(graph: Graph, members: tuple[str, ...]) -> bool:
    """Whether no member reads what a layer outside makes of members' results."""
    behind = 0
    for name in members:
        behind |= graph.dependents[graph.index[name]]
    read = {producer for name in members for producer in graph.dag.predecessors(name)}
    return not any(behind >> graph.index[name] & 1 for name in read.difference(members))


def operands(layer: Layer) -> tuple[str, ...]:
    """Tensors that a layer reads, bias left out."""
    return (layer.input.tensor, layer.weight.tensor) if isinstance(layer, TensorCoreLayer) else layer.inputs


def signature(graph: Graph, layers: tuple[str, ...]) -> Hashable:
    """Equal for groups whose plans and costs are equal, whatever the layers are called."""
    index = {name: i for i, name in enumerate(layers)}
    place: dict[str, int] = {}
    parts: list[Hashable] = []
    for name in layers:
        layer = graph.by_name[name]
        sources = tuple(
            (
                place.setdefault(tensor, len(place)),
                next((index[p.name] for p in graph.producers(tensor) if p.name in index), -1),
            )
            for tensor in operands(layer)
        )
        tensor = layer.outputs[0]
        outside = tensor in graph.outputs or any(c.name not in index for c in graph.consumers(tensor))
        kind: Hashable = (
            (
                shape_of(layer),
                layer.input.strides,
                layer.output.strides,
                graph.tensors[layer.weight.tensor].data is None,
                obstacle_to_plain_stores(graph, layer),
            )
            if isinstance(layer, TensorCoreLayer)
            else (layer.op, graph.tensors[tensor].shape, pool_of(graph, layer))
        )
        parts.append((kind, sources, outside))
    return tuple(parts)
