"""What each member of a fusion group computes in a group tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fadiff.converter.ir.graph import Graph, HostLayer
from fadiff.emitters.gemmini.form import TILED
from fadiff.emitters.gemmini.pipeline import COUNTERS
from fadiff.emitters.gemmini.plan import GroupPlan
from fadiff.emitters.gemmini.tile_intervals import TileIntervals

_G, _K, _N = range(3)
"""Places in TILED."""


@dataclass(frozen=True)
class MemberIntervals:
    """Intervals of the members of a group, along every axis of group tiles."""

    graph: Graph
    group: GroupPlan

    def declared(self) -> Iterator[TileIntervals]:
        """All that the members use, in their order."""
        for i, name in enumerate(self.group.group.layers):
            member = self.group.members[name]
            for axis in range(len(TILED)):
                if axis == _N and self.graph.by_name[name].op == "max_pool" and not member.writes_inside:
                    continue  # its convolution has the same images
                if axis in (_G, _K) and self._works_on_boxes(name):
                    continue
                yield self.of(i, axis)

    def _works_on_boxes(self, name: str) -> bool:
        """Whether a host operator finds all that it reads and writes in the tile buffer."""
        layer, member = self.graph.by_name[name], self.group.members[name]
        read = layer.inputs if layer.op == "add" else layer.inputs[:1]
        inside = not member.writes_outside and member.fused_inputs.issuperset(read)
        return isinstance(layer, HostLayer) and (inside or layer.op == "max_pool")

    def of(self, member: int, axis: int) -> TileIntervals:
        """What a member computes in this tile, and its readers find."""
        grid = self.group.members[self.group.group.layers[member]].grid
        return TileIntervals(f"m{member}_{TILED[axis].lower()}", COUNTERS[axis], grid[axis])
