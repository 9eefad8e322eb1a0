"""What tiles of a fusion group divide: pixels, and groups or channels that all members hand on one by one."""

from __future__ import annotations

from collections.abc import Sequence

from fadiff.converter.ir.graph import Graph, HostLayer, TensorCoreLayer
from fadiff.costmodel.group.row_operators import row_length, source
from fadiff.costmodel.mapping.decision import GroupTile

Size = tuple[int, int, int, int, int]
"""G, K, N, P, Q."""


def shared_groups(graph: Graph, names: Sequence[str]) -> int:
    """Groups (attention: heads) that all members have alike and hand on one by one, so that a group tile may
    have some of them; 1: there are none."""
    layers = [graph.by_name[name] for name in names]
    if not isinstance(layers[-1], TensorCoreLayer):  # whole pixels go to memory
        return 1
    counts = set()
    for layer in layers:
        first = source(graph, layer, set(names))
        if first is None or first.op == "depthwise":
            return 1
        counts.add(first.dims.G)
        if isinstance(layer, HostLayer):
            if layer.op == "add" or row_length(layer) not in (1, first.dims.K):
                return 1
            continue
        for producer in graph.producers(layer.input.tensor):
            before = source(graph, producer, set(names)) if producer.name in names else None
            if before and (before.dims.K, before.output.strides[0]) != (layer.dims.C, layer.input.strides[0]):
                return 1
    return counts.pop() if len(counts) == 1 else 1


def shared_channels(graph: Graph, names: Sequence[str]) -> int:
    """Output channels that all members have and hand on one by one (none but depthwise layers read another
    through the array), so that a group tile may have some of them; 1: there are none."""
    inside, counts = set(names), set()
    for name in names:
        layer = graph.by_name[name]
        first = source(graph, layer, inside)
        if first is None:
            return 1
        d = first.dims
        channels = d.G if first.op == "depthwise" else d.K
        counts.add(channels)
        if isinstance(layer, TensorCoreLayer):
            reads = {producer.name for producer in graph.producers(layer.input.tensor)}
            if layer.op != "depthwise" and (d.G > 1 or reads & inside):
                return 1
        elif (layer.op != "add" and row_length(layer) != 1) or (
            graph.tensors[layer.outputs[0]].size != d.N * d.P * d.Q * channels
        ):
            return 1
    return counts.pop() if len(counts) == 1 else 1


def obstacle_to_tile(tile: GroupTile, size: Size) -> str:
    """Why a tile does not suit a group whose last member's output, with what all members hand on one by one,
    has this size; empty if it does."""
    for axis, what, extent, most in zip("GK", ("groups", "channels"), (tile.G, tile.K), size, strict=False):
        if extent is None:
            continue
        if most == 1:
            return f"group tile {axis}={extent}, but its fusion group hands on no {what} one by one"
        if not 1 <= extent <= most:
            return f"group tile {axis}={extent} is outside 1..{most}"
        if most % extent:
            return f"group tile {axis}={extent} does not divide {most} {what}"
    for axis, extent, bound in zip("NPQ", (tile.N, tile.P, tile.Q), size[2:], strict=True):
        if not 1 <= extent <= bound:
            return f"group tile {axis}={extent} is outside 1..{bound}"
    return ""
