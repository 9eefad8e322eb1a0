"""What surrounds a layer that a loop unit of Gemmini's could run: its group, its space, its neighbours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from converter.ir.graph import Graph, TensorCoreLayer
from costmodel.group.fusion import Member, stored_as
from costmodel.group.local_tensors import input_path
from costmodel.group.scratchpad import MemberSpace
from costmodel.mapping.decision import FusionGroup
from costmodel.mapping.mapping import Mapping as LayerMapping
from costmodel.mapping.shape import Region, extents
from costmodel.target.target import Target

Strides = tuple[int, int, int]
"""Elements from one image, row and column to the next."""


@dataclass(frozen=True)
class LoopSetting:
    """One tensor-core member of a group (a layer alone is a group of one) and its mapping."""

    graph: Graph
    group: FusionGroup
    members: Mapping[str, Member]
    space: MemberSpace
    mapping: LayerMapping
    target: Target
    prefetches: bool = False
    """Its first weights are loaded early, or others' are while it runs."""

    @property
    def layer(self) -> TensorCoreLayer:
        """The layer."""
        return self.space.layer

    @property
    def member(self) -> Member:
        """Its part in the group."""
        return self.members[self.layer.name]

    @property
    def region(self) -> Region:
        """What its nest computes."""
        return self.member.computed

    @property
    def obstacle(self) -> str:
        """What no loop unit can do, whatever the layer; empty if nothing.

        The units place tiles in halves of both memories, where nothing else may be, and take operands in
        memory or in the tile buffer.
        """
        if self.prefetches:
            return "weights are prefetched before or while it runs, between its products"
        if self.space.is_resident or self.space.reserved:
            return "weights or tensors that stay take part of the scratchpad"
        if self.space.reserved_accumulator or self.space.output_path == "acc":
            return "tensors that stay take part of the accumulator"
        if self.space.input_on_chip or self.space.output_path == "spad":
            return "its input or output stays in the scratchpad"
        if self.stored.writes_inside and self.stored.writes_outside:
            return "its output goes to the tile buffer and to memory"
        if self.group.halo == "retain" and len(self.group.layers) > 1:
            return "rows of the group's tile buffer wrap around"
        return ""

    @property
    def stored(self) -> Member:
        """The member as which its output leaves the accumulator: itself, or the max pool its stores do."""
        return stored_as(dict(self.members), self.layer.name)

    @property
    def input_strides(self) -> Strides:
        """Of the image it reads: the tensor, or a box of the tile buffer."""
        layer = self.layer
        if layer.input.tensor in self.member.fused_inputs:
            return self._box_strides(self.graph.producers(layer.input.tensor)[0].name)
        _, n, h, w, _ = layer.input.strides
        return n, h, w

    @property
    def output_strides(self) -> Strides:
        """Of the image it writes: the tensor, or a box of the tile buffer."""
        if self.stored.writes_inside:
            return self._box_strides(self.stored.name)
        _, n, p, q, _ = self.layer.output.strides
        return n, p, q

    @property
    def from_tile_buffer(self) -> bool:
        """Whether its input is a box of the tile buffer."""
        return (
            self.layer.input.tensor in self.member.fused_inputs
            and input_path(self.graph, self.group, self.layer) == "tile-buffer"
        )

    def _box_strides(self, producer: str) -> Strides:
        member = self.members[producer]
        channels = self.graph.tensors[self.graph.by_name[producer].outputs[0]].size // math.prod(member.size)
        _, p, q = (max(extents(axis)) for axis in member.needed)
        return p * q * channels, q * channels, channels
