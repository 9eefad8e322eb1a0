"""Places in the tile buffer (profile hw): boxes of fused tensors and whole resident tensors.

Legality and emitter share this plan, so that what one accepts the other can place.  A box is there
while its group runs, a resident tensor from its writer's group to its last reader's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.group.allocation import Allocation, Block, align, allocate
from fadiff.costmodel.group.fusion import Member, ScheduleError
from fadiff.costmodel.group.pipeline import places
from fadiff.costmodel.group.resident_tensors import lifetimes, resident_tensors
from fadiff.costmodel.mapping.decision import FusionGroup
from fadiff.costmodel.mapping.shape import extents
from fadiff.costmodel.target.target import Target

Strides = tuple[int, int, int]
"""Elements from one image, row and column to the next."""
Members = Mapping[str, Member]
"""Of one group by name: what `fadiff.costmodel.group.fusion.plan_group` returns."""


@dataclass(frozen=True)
class Span:
    """Bytes of the tile buffer."""

    offset: int
    nbytes: int


@dataclass(frozen=True)
class TileBuffer:
    """Where everything is, by tensor: what is resident has no box, its group reads it as a whole, too."""

    boxes: Mapping[str, Span]
    """Of fused tensors, as large as one group tile needs; in a pipeline a multiple of it, one place after the
    other."""
    whole: Mapping[str, Span]
    """Of resident tensors."""
    nbytes: int
    """Size of the buffer: at most the target's `tile_buffer_bytes`."""


def plan_tile_buffer(
    graph: Graph, groups: Sequence[FusionGroup], plans: Sequence[Members], target: Target
) -> TileBuffer:
    """Places for all groups; `plans` are their members.

    Places start at multiples of a DMA request; where only that makes them need too much, at any element.

    Raises:
        ScheduleError: they need more than `target.tile_buffer_bytes`, naming the group that needs most.
    """
    blocks: list[Block] = []
    roles = graph.step_roles
    in_place: dict[str, str] = {}
    for at, (group, members) in enumerate(zip(groups, plans, strict=True)):
        for name, member in members.items():
            if member.writes_inside:
                layer = graph.by_name[name]
                if member.in_place:
                    in_place[layer.outputs[0]] = layer.inputs[0]
                else:
                    output, nbytes = layer.outputs[0], box_bytes(graph, member, target)
                    if (count := places(graph, group, members)[name]) > 1:
                        nbytes = count * align(nbytes)
                    role = f"box {roles[output]}" if output in roles else ""
                    blocks.append(Block(f"box {output}", nbytes, at, at, role))
    for tensor, span in lifetimes(graph, groups, resident_tensors(groups)).items():
        blocks.append(Block(f"whole {tensor}", graph.tensors[tensor].nbytes, *span, roles.get(tensor, "")))
    spans: dict[str, Span] = {}
    size = 0
    for together, plan in _plans(blocks, target):
        if plan.nbytes > target.tile_buffer_bytes:
            raise ScheduleError(_overflow(together, groups, plan.nbytes, target))
        spans.update((block.name, Span(plan.offsets[block.name], block.nbytes)) for block in together)
        size = max(size, plan.nbytes)
    boxes = {name.removeprefix("box "): span for name, span in spans.items() if name.startswith("box ")}
    for output, source in in_place.items():
        boxes[output] = boxes[source]
    whole = {name.removeprefix("whole "): span for name, span in spans.items() if name.startswith("whole ")}
    return TileBuffer(boxes, whole, size)


def box_channels(graph: Graph, member: Member) -> int:
    """Channels of a pixel in the box of a member's output: those that one group tile has."""
    groups, channels, *pixels = member.size
    stored = graph.tensors[graph.by_name[member.name].outputs[0]].size // math.prod(pixels)
    return stored * max(extents(member.computed.G)) * max(extents(member.computed.K)) // (groups * channels)


def box_strides(graph: Graph, member: Member) -> Strides:
    """Of the box of a member's output, as large as one group tile needs."""
    channels = box_channels(graph, member)
    *_, p, q = (max(extents(axis)) for axis in member.computed)
    return p * q * channels, q * channels, channels


def box_bytes(graph: Graph, member: Member, target: Target) -> int:
    """Space for the largest region of a fused tensor that one group tile needs."""
    pixels = math.prod([max(extents(axis)) for axis in member.computed[2:]])
    return pixels * box_channels(graph, member) * target.element_bytes


def _plans(blocks: Sequence[Block], target: Target) -> Iterator[tuple[Sequence[Block], Allocation]]:
    """Places of blocks that may be alive together; those of equal steps are the same if there is room."""
    if any(block.role for block in blocks):
        plan = allocate(blocks)
        if plan.nbytes <= target.tile_buffer_bytes:
            yield blocks, plan
            return
    for together in _apart_in_time([replace(block, role="") for block in blocks]):
        plan = allocate(together)
        if plan.nbytes > target.tile_buffer_bytes:
            plan = allocate(together, target.element_bytes)
        yield together, plan


def _apart_in_time(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Blocks in classes between which no lifetimes overlap: each has the whole buffer to itself."""
    together: list[Block] = []
    end = -1
    for block in sorted(blocks, key=lambda b: (b.first, b.name)):
        if block.first > end and together:
            yield together
            together = []
        together.append(block)
        end = max(end, block.last)
    if together:
        yield together


def _overflow(blocks: Sequence[Block], groups: Sequence[FusionGroup], nbytes: int, target: Target) -> str:
    """Says which group needs most, and for what."""

    def alive(at: int) -> list[Block]:
        return [block for block in blocks if block.first <= at <= block.last]

    at = max((b.first for b in blocks), key=lambda first: (sum(b.nbytes for b in alive(first)), -first))
    names = [b.name.removeprefix("whole ") for b in alive(at) if b.name.startswith("whole ")]
    what = "intermediates of its fusion group"
    if names:
        what += f" and tensors that stay on chip meanwhile ({', '.join(sorted(names))})"
    return f"{groups[at].layers[0]}: {what} need {nbytes} of {target.tile_buffer_bytes} tile-buffer bytes"
