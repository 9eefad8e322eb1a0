"""Whole tensors that stay on chip across group boundaries: which may, and while which groups they do.

Profile hw keeps them in the tile buffer (`costmodel.group.tile_buffer` has the places), profile dosa in the
scratchpad.  `FusionGroup.resident_tensors` names them for every group from the one that computes them to
the last that reads them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from fadiff.converter.ir.graph import Graph, HostLayer, Layer, TensorCoreLayer
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.mapping.counting import COUNTING, Profile
from fadiff.costmodel.mapping.decision import FusionGroup


def obstacle_to_staying(graph: Graph, tensor: str, profile: Profile = "hw") -> str:
    """Why no schedule can keep the whole `tensor` on chip until its last reader; empty if one can.

    One layer computes all of it.  In profile dosa that is a convolution, product or add, and array layers
    stream it or adds read it: nothing else reaches the scratchpad.
    """
    if tensor in graph.inputs or tensor in graph.outputs:
        return "it is an input or output of the graph"
    producers, readers = graph.producers(tensor), graph.consumers(tensor)
    if len(producers) != 1:
        return f"{len(producers)} layers write it"
    if not readers:
        return "no layer reads it"
    if graph.tensors[tensor].dtype != graph.element_type:
        return f"it is {graph.tensors[tensor].dtype}"
    producer = producers[0]
    if isinstance(producer, TensorCoreLayer):
        d = producer.dims
        if graph.tensors[tensor].size != d.G * d.N * d.K * d.P * d.Q:
            return f"{producer.name} writes a part of it"
    for layer in () if COUNTING[profile].has_tile_buffer else (producer, *readers):
        if not isinstance(layer, TensorCoreLayer) and layer.op != "add":
            return f"{layer.name} runs on the core"
        if isinstance(layer, TensorCoreLayer) and layer.weight.tensor == tensor:
            return f"it is the stationary operand of {layer.name}"
    return ""


def lifetimes(
    graph: Graph, groups: Sequence[FusionGroup], tensors: Iterable[str]
) -> dict[str, tuple[int, int]]:
    """First and last group, by index, that each tensor is on chip for: writer's and last reader's."""
    index = {name: i for i, group in enumerate(groups) for name in group.layers}

    def at(layers: Sequence[Layer]) -> list[int]:
        return [index[layer.name] for layer in layers]

    return {t: (min(at(graph.producers(t))), max(at(graph.consumers(t)))) for t in sorted(tensors)}


def with_resident_tensors(
    graph: Graph, groups: Sequence[FusionGroup], tensors: Collection[str]
) -> tuple[FusionGroup, ...]:
    """The groups with exactly `tensors` on chip between them, which then take no other path inside a group.

    A tensor is left out that no other group reads than the one that computes it, or that a host operator
    reads there.
    """
    spans = lifetimes(graph, groups, tensors)
    staying = {
        tensor
        for tensor, (first, last) in spans.items()
        if first < last and not row_readers(graph, groups[first], tensor)
    }
    held: list[set[str]] = [set() for _ in groups]
    for tensor in staying:
        first, last = spans[tensor]
        for there in held[first : last + 1]:
            there.add(tensor)
    return tuple(
        replace(group, resident_tensors=frozenset(there)) for group, there in zip(groups, held, strict=True)
    )


def row_readers(graph: Graph, group: FusionGroup, tensor: str) -> list[str]:
    """Host operators of a group that read tiles of `tensor`, which a member writes."""
    readers = [layer for layer in graph.consumers(tensor) if layer.name in group.layers]
    return [layer.name for layer in readers if isinstance(layer, HostLayer) and layer.op != "add"]


def resident_tensors(groups: Sequence[FusionGroup]) -> frozenset[str]:
    """All tensors that stay on chip across some boundary of the groups."""
    return frozenset[str]().union(*(group.resident_tensors for group in groups))


def check_resident_tensors(graph: Graph, groups: Sequence[FusionGroup], profile: Profile) -> None:
    """Check that every resident tensor can be one, and is there from its writer to its last reader.

    Raises:
        ScheduleError: the first that breaks a rule, naming tensor and layer.
    """
    held: dict[str, set[int]] = {}
    for i, group in enumerate(groups):
        for tensor in group.resident_tensors:
            held.setdefault(tensor, set()).add(i)
    resident = sorted(held)
    for tensor in resident:
        if tensor not in graph.tensors:
            raise ScheduleError(f"tensor {tensor}: is resident but not in the graph")
        reason = obstacle_to_staying(graph, tensor, profile)
        if reason:
            raise ScheduleError(f"tensor {tensor}: cannot stay on chip: {reason}")
    for tensor, (first, last) in lifetimes(graph, groups, resident).items():
        writer = graph.producers(tensor)[0].name
        if first == last:
            raise ScheduleError(f"tensor {tensor}: is resident, but only the group of {writer} uses it")
        for name in row_readers(graph, groups[first], tensor):
            raise ScheduleError(
                f"tensor {tensor}: is resident, but {name} reads tiles of it, fused with {writer}"
            )
        there = set(range(first, last + 1))
        for i in sorted(there ^ held[tensor]):
            raise ScheduleError(
                f"tensor {tensor}: is {'not ' if i in there else ''}resident while "
                f"the group of {groups[i].layers[0]} runs (group {i}), but must be for groups {first} to "
                f"{last}, from its writer {writer} to its last reader"
            )
