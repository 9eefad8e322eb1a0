"""Tensors that stay on chip across group boundaries, as the search sees them.

What a group costs depends on its surroundings only through its `Surroundings`: which of its inputs are on
chip, which of its outputs stay, and the bytes that all tensors on chip take from it.  Groups that are
identical, in surroundings that are, have one hull of ways: a `PlacedGroup` is solved once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.group.fusion import Member, ScheduleError, plan_group
from fadiff.costmodel.group.resident_tensors import (
    obstacle_to_staying,
    resident_tensors,
    with_resident_tensors,
)
from fadiff.costmodel.group.tile_buffer import plan_tile_buffer
from fadiff.costmodel.schedule.schedule import FusionGroup
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.group.candidates import operands
from fadiff.optimizer.layer.space import Rules

Layers = tuple[str, ...]


class Surroundings(NamedTuple):
    """Tensors on chip while a group runs."""

    read: frozenset[str] = frozenset()
    """That another group wrote and this one reads."""
    written: frozenset[str] = frozenset()
    """That this group writes and that stay."""
    reserved: int = 0
    """Bytes of all of them, those included that merely wait."""

    @property
    def tensors(self) -> frozenset[str]:
        """Those that the group touches."""
        return self.read | self.written


OFF_CHIP = Surroundings()
"""Nothing stays from group to group."""


class PlacedGroup(NamedTuple):
    """A group in its surroundings, by the names of the first identical group."""

    layers: Layers
    surroundings: Surroundings = OFF_CHIP


def residents(graph: Graph, rules: Rules) -> dict[str, int]:
    """Tensors that may stay on chip: {name: bytes}, in graph order."""
    limit = capacity(rules)
    found = {}
    for layer in graph.layers:
        for name in layer.outputs:
            nbytes = graph.tensors[name].size * rules.target.element_bytes
            if nbytes <= limit and not obstacle_to_staying(graph, name, rules.profile):
                found[name] = nbytes
    return found


def capacity(rules: Rules) -> int:
    """Bytes of the memory that holds them: the tile buffer, or the scratchpad in profile dosa."""
    target = rules.target
    return target.tile_buffer_bytes if rules.counting.has_tile_buffer else target.scratchpad_bytes


def with_places(graph: Graph, groups: tuple[FusionGroup, ...], target: Target) -> tuple[FusionGroup, ...]:
    """The groups, with fewer tensors on chip where the tile buffer has no place for all.

    Places are not moved while a tensor is there, so that less can fit than there are bytes.  The smallest
    tensor without which the others fit goes, else the largest.
    """

    plans = dict[FusionGroup, dict[str, Member]]()

    def plan(group: FusionGroup) -> dict[str, Member]:
        if group not in plans:
            plans[group] = plan_group(graph, group)
        return plans[group]

    def fits(candidate: tuple[FusionGroup, ...]) -> bool:
        try:
            plan_tile_buffer(graph, candidate, list(map(plan, candidate)), target)
        except ScheduleError:
            return False
        return True

    while not fits(groups) and (staying := resident_tensors(groups)):
        smaller = sorted(staying, key=lambda name: (graph.tensors[name].nbytes, name))
        without = [with_resident_tensors(graph, groups, staying - {name}) for name in smaller]
        groups = next(filter(fits, without), without[-1])
    return groups


def streamed(graph: Graph, layers: Sequence[str]) -> tuple[str, ...]:
    """Tensors that flow through a group, in the same places for identical groups (`groups.signature`)."""
    tensors: list[str] = []
    for name in layers:
        layer = graph.by_name[name]
        tensors += (*operands(layer), *layer.outputs)
    return tuple(tensors)


def surroundings_of(graph: Graph, group: FusionGroup, rules: Rules) -> Surroundings:
    """The surroundings of a scheduled group."""
    tensors = group.resident_tensors
    written = {tensor for name in group.layers for tensor in graph.by_name[name].outputs}
    read = frozenset(streamed(graph, group.layers)) - written
    reserved = sum(graph.tensors[name].size for name in tensors) * rules.target.element_bytes
    return Surroundings(tensors & read, tensors & written, reserved)


def at_member(graph: Graph, name: str, surroundings: Surroundings) -> Surroundings:
    """What `surroundings` of a group means for a member that runs on its own."""
    layer = graph.by_name[name]
    read = surroundings.tensors.intersection(operands(layer))
    return Surroundings(read, surroundings.written.intersection(layer.outputs), surroundings.reserved)
