"""Fused tensors that stay in local memory (profile hw): which may, and the rows they take.

A held tensor is a box of pixel rows, `side` channels each, as the array reads an input tile: pixel
(n, y, x) of channel block b is row ((b N + n) H + y) W + x.  In the scratchpad the box includes the
zero padding that its readers see, and with halo `retain` row y is at y mod H.  Held tensors lie at
the top of their memory, below resident weights; tensors that are not alive together share rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fadiff.converter.ir.graph import Graph, Layer, TensorCoreLayer
from fadiff.costmodel.group.fusion import Member
from fadiff.costmodel.mapping.decision import FusionGroup
from fadiff.costmodel.mapping.mapping import ceil_div
from fadiff.costmodel.mapping.shape import extents
from fadiff.costmodel.target.target import FusionPath, Target


@dataclass(frozen=True)
class Held:
    """The box of a fused tensor in scratchpad (`spad`) or accumulator (`acc`)."""

    path: FusionPath
    box: tuple[int, int, int]
    """N, H, W: the largest that one group tile needs."""
    blocks: int
    """Of `side` channels each."""
    below: int
    """Rows between the end of the box and the end of the memory (in the scratchpad: resident weights)."""
    row: int
    """First row of the box."""
    ring: bool
    """Image row y is at y modulo H; else rows count from the box's first."""
    lifetime: tuple[int, int]
    """First and last member, by place in the group, that needs it; all, where rows are retained."""

    @property
    def block_rows(self) -> int:
        """Rows of one channel block."""
        n, h, w = self.box
        return n * h * w

    @property
    def rows(self) -> int:
        """Rows of the whole box."""
        return self.blocks * self.block_rows


def channels_out(layer: TensorCoreLayer) -> int:
    """Output channels that share a row: groups of a depthwise layer, output channels of others."""
    return layer.dims.G if layer.op == "depthwise" else layer.dims.K


def channels_in(layer: TensorCoreLayer) -> int:
    """Input channels that share a row."""
    return layer.dims.G if layer.op == "depthwise" else layer.dims.C


def obstacle(
    graph: Graph, group: FusionGroup, plan: Mapping[str, Member], name: str, path: FusionPath
) -> str:
    """Why the output of member `name` cannot take `path` (`spad` or `acc`); empty if it can.

    The array must find the producer's rows where it would find an input tile: one pixel a row, all
    channels in blocks of `side`.  Adds stream whole lines and read the tile buffer.  In the
    accumulator the rows are those of the producer's own tile, so that there is no room for padding.
    """
    producer, member = graph.by_name[name], plan[name]
    if not member.writes_inside:
        return "no later member reads it"
    if group.tile is not None and group.tile.K is not None:
        return "its channels are handed on tile by tile"
    readers = [r for r in graph.consumers(producer.outputs[0]) if r.name in plan]
    for layer in (producer, *readers):
        if not isinstance(layer, TensorCoreLayer):
            return f"{layer.name} is no convolution or matrix product"
        if layer.op != "depthwise" and layer.dims.G > 1:
            return f"{layer.name} has groups"
    assert isinstance(producer, TensorCoreLayer)
    for reader in readers:
        if isinstance(reader, TensorCoreLayer) and channels_in(reader) != channels_out(producer):
            return f"{reader.name} reads some of its channels"
    if path == "acc":
        if member.writes_outside:
            return "it is also read outside the group"
        if group.halo == "retain":
            return "rows are retained"
        if member.held_grid != member.needed_grid:
            return "its readers see padding"
        if any(len(set(extents(axis))) > 1 for axis in member.held_grid):
            return "group tiles are ragged"
        if any(other.pooled_by for other in plan.values()):
            return "a max pool of the group needs the whole accumulator"
    return ""


def held_tensors(
    graph: Graph, group: FusionGroup, plan: Mapping[str, Member], target: Target, resident_rows: int
) -> dict[str, Held]:
    """Where every tensor is that stays in local memory, by producer: first fit in graph order.

    `resident_rows` are the scratchpad rows of weights that stay for the whole group.
    """
    names = list(plan)
    held: dict[str, Held] = {}
    for first, name in enumerate(names):
        path = group.path(name)
        if path == "tile-buffer":
            continue
        producer = graph.by_name[name]
        assert isinstance(producer, TensorCoreLayer)
        last = max(names.index(r.name) for r in graph.consumers(producer.outputs[0]) if r.name in plan)
        *_, n, h, w = (max(extents(axis)) for axis in plan[name].held_grid)
        blocks = ceil_div(channels_out(producer), target.side)
        start, end = (
            (resident_rows, target.scratchpad_rows) if path == "spad" else (0, target.accumulator_rows)
        )
        ring, rows = group.halo == "retain", blocks * n * h * w
        lifetime = (0, len(names) - 1) if ring else (first, last)
        taken = sorted(
            (other.below, other.below + other.rows)
            for other in held.values()
            if other.path == path and other.lifetime[1] >= lifetime[0]
        )
        for low, high in taken:
            if start + rows <= low:
                break
            start = max(start, high)
        held[name] = Held(path, (n, h, w), blocks, start, end - start - rows, ring, lifetime)
    return held


def reserved_rows(held: Mapping[str, Held], at: int, path: FusionPath) -> int:
    """Rows at the end of the memory of `path` that the tiles of member `at` cannot have.

    Held tensors that are alive then, with what lies below them; 0 if there are none.
    """
    return max(
        (h.below + h.rows for h in held.values() if h.path == path and h.lifetime[0] <= at <= h.lifetime[1]),
        default=0,
    )


def input_path(graph: Graph, group: FusionGroup, layer: Layer) -> FusionPath:
    """How the streamed operand of a member arrives, if a member produces it."""
    if not isinstance(layer, TensorCoreLayer):
        return "tile-buffer"
    producers = graph.producers(layer.input.tensor)
    return group.path(producers[0].name) if len(producers) == 1 else "tile-buffer"
