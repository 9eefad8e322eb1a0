"""What surrounds a layer that a loop unit of Gemmini's could run: its group, its space, its neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.group.fusion import Member, obstacle_to_plain_stores, stored_as
from fadiff.costmodel.group.pooling import Pool, pool_of
from fadiff.costmodel.group.scratchpad import MemberSpace
from fadiff.costmodel.group.tile_buffer import Strides, box_strides
from fadiff.costmodel.mapping.decision import FusionGroup
from fadiff.costmodel.mapping.mapping import Mapping as LayerMapping
from fadiff.costmodel.mapping.shape import Region, bounds_of, shape_of
from fadiff.costmodel.target.target import Target

PLACES = 2
"""For weight tiles that stay: the end of each half of the scratchpad."""


@dataclass(frozen=True)
class PinnedWeights:
    """Weights that stay in the scratchpad for a whole group, all of whose members run on loop units.

    A unit looks for a weight tile at the end of one half of the scratchpad or of the other: there is room for
    two tiles, of one member or of two.
    """

    tiles: Mapping[str, int]
    """How many each member keeps, in the order of the group."""
    rows: int
    """Of the largest."""

    def half(self, name: str) -> int | None:
        """In which half (1, 2) a member's weight tile is; None: its two tiles are in both."""
        before = [member for member in self.tiles if self.tiles[member] == 1]
        if name not in self.tiles:
            return 1
        return 2 - before.index(name) if name in before else None


@dataclass(frozen=True)
class LoopSetting:
    """One tensor-core member of a group (a layer alone is a group of one) and its mapping."""

    graph: Graph
    group: FusionGroup
    members: Mapping[str, Member]
    space: MemberSpace
    mapping: LayerMapping
    target: Target
    resident_elsewhere: int = 0
    """Scratchpad rows of other members' weights that stay."""
    pinned: PinnedWeights | None = None
    """What stays of the group's weights where its members run on loop units."""

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
    def bounds(self) -> Dims:
        """Largest extents that one run of its nest sees."""
        return Dims(*bounds_of(shape_of(self.layer), self.region))

    @property
    def obstacle(self) -> str:
        """What no loop unit can do, whatever the layer; empty if nothing.

        The units place tiles in halves of both memories, where nothing else may be, and take operands in
        memory or in the tile buffer.
        """
        if reason := obstacle_to_plain_stores(self.graph, self.layer):
            return reason
        if self.space.room.reserved > self.resident_elsewhere:
            return "tensors that stay take part of the scratchpad"
        if self.group.resident_weights:
            if self.pinned is None:
                return "weights that stay take part of the scratchpad, for members that no loop unit runs"
            tiles = sum(self.pinned.tiles.values())
            if tiles > PLACES:
                return f"weights that stay are {tiles} tiles, and the loop units have places for {PLACES}"
            if tiles == PLACES and not self.space.room.is_resident:
                return "weights that stay take the places of its own in both halves of the scratchpad"
        if self.stored.writes_inside and self.stored.writes_outside:
            return "its output goes to the tile buffer and to memory"
        return ""

    @property
    def pools(self) -> bool:
        """Whether its stores do a max pool."""
        return self.stored is not self.member

    @property
    def pool(self) -> Pool:
        """The max pool that its stores do."""
        pool = pool_of(self.graph, self.graph.by_name[self.stored.name])
        assert pool is not None
        return pool

    @property
    def stored(self) -> Member:
        """The member as which its output leaves the accumulator: itself, or the max pool its stores do."""
        return stored_as(dict(self.members), self.layer.name)

    @property
    def input_strides(self) -> Strides:
        """Of the image it reads: the tensor, or a box of the tile buffer."""
        layer = self.layer
        if layer.input.tensor in self.member.fused_inputs:
            return box_strides(self.graph, self.members[self.graph.producers(layer.input.tensor)[0].name])
        _, n, h, w, _ = layer.input.strides
        return n, h, w

    @property
    def output_strides(self) -> Strides:
        """Of the image it stores, which may be pooled: the tensor, or a box of the tile buffer."""
        if self.stored.writes_inside:
            return box_strides(self.graph, self.stored)
        _, n, p, q, _ = self.layer.output.strides
        if self.pools:
            *_, rows, columns = self.stored.size
            return rows * columns * q, columns * q, q
        return n, p, q

    def obstacle_in_capacity(self, inputs: int, weights: int, outputs: int) -> str:
        """Why operands of so many rows do not fit half of each memory; empty if they do.

        The weights that stay may lie in either half, above the input tile.
        """
        half, accumulator = self.target.scratchpad_rows // 2, self.target.accumulator_rows // 2
        operands = inputs + max(weights, self.pinned.rows if self.pinned else 0)
        if operands > half:
            return f"its operands take {operands} of {half} rows of half the scratchpad"
        if outputs > accumulator:
            return f"its sums take {outputs} of {accumulator} rows of half the accumulator"
        return ""
