"""Timeloop's access counts for any loop nest of perfect factors on the Gemmini hierarchy.

Profile `dosa` restricts nests to what Gemmini can run; this is the general rule, spatial loops over
any dimension included, for scoring mappings that come from elsewhere and for checking the profile.
Levels: L0 holds W, L1 holds O, L2 holds W and I, L3 holds everything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fadiff.costmodel.count.timeloop_counts import Count, Loop, words_entering

Extents = Mapping[str, int]


class Workload(NamedTuple):
    """Loop bounds, and how each tensor is indexed: per axis the (dimension, coefficient) it adds up."""

    bounds: Extents
    axes: Mapping[str, tuple[tuple[tuple[str, int], ...], ...]]
    """For W, I and O."""

    def is_relevant(self, tensor: str, dim: str) -> bool:
        """Whether `dim` indexes `tensor`."""
        return any(dim == d for axis in self.axes[tensor] for d, _ in axis)

    def tile(self, tensor: str, sizes: Extents) -> tuple[int, ...]:
        """Extents of the tensor's tile along its axes: bounding box of a sliding window."""
        return tuple(1 + sum(c * (sizes[d] - 1) for d, c in axis) for axis in self.axes[tensor])


class LevelLoops(NamedTuple):
    """Loops of one level: spatial factors just below it, temporal factors, their order (inner first)."""

    spatial: Extents
    temporal: Extents
    inner_to_outer: str


@dataclass(frozen=True)
class Counts:
    """All counts of a nest.  `by_level[level][tensor]`; `compute_cycles` is the temporal iteration count."""

    by_level: Mapping[str, Mapping[str, Count]]
    compute_cycles: int
    macs: int


_CHILD = {("W", 2): 0, ("W", 3): 2, ("I", 3): 2, ("O", 3): 1}
"""Next inner level that keeps a tensor; what is missing is fed by the level itself to the MACs."""
_KEPT = {0: ("W",), 1: ("O",), 2: ("W", "I"), 3: ("W", "I", "O")}


def count(workload: Workload, levels: Sequence[LevelLoops], *, forgets_direction: bool = False) -> Counts:
    """Count accesses of a nest; `levels` are L0 to L3.

    Raises:
        ValueError: factors that do not multiply to a bound.
    """
    nest = _Nest(workload, levels, forgets_direction)
    return Counts(
        {
            f"L{level}": {tensor: nest.at(level, tensor) for tensor in tensors}
            for level, tensors in _KEPT.items()
        },
        nest.compute_cycles,
        math.prod(workload.bounds.values()),
    )


class _Nest:
    def __init__(self, workload: Workload, levels: Sequence[LevelLoops], forgets_direction: bool) -> None:
        self.workload, self.levels, self.forgets = workload, levels, forgets_direction
        sizes = dict.fromkeys(workload.bounds, 1)
        # (level, dim, factor, size of everything inside) of every temporal loop, innermost first.
        self.loops: list[tuple[int, str, int, int]] = []
        # Sizes of the tile that one instance of each level holds.
        self.held: list[dict[str, int]] = []
        spatial_inside = dict.fromkeys(workload.bounds, 1)
        for index, level in enumerate(levels):
            for dim, factor in level.spatial.items():
                spatial_inside[dim] *= factor
                sizes[dim] *= factor
            for dim in level.inner_to_outer:
                factor = level.temporal[dim]
                if factor > 1:
                    self.loops.append((index, dim, factor, sizes[dim]))
                sizes[dim] *= factor
            self.held.append(dict(sizes))
        for dim, bound in workload.bounds.items():
            if sizes[dim] != bound:
                raise ValueError(f"factors of {dim} multiply to {sizes[dim]}, not {bound}")
        self.compute_cycles = math.prod(factor for _, _, factor, _ in self.loops)

    def instances(self, level: int) -> int:
        """Instances of a level in use; level -1 is the MACs."""
        return math.prod(factor for above in self.levels[level + 1 :] for factor in above.spatial.values())

    def _entering(self, tensor: str, child: int) -> int:
        """Words entering one tile at `child` (-1: operands of one MAC) over the whole nest."""
        if child < 0:
            return self.compute_cycles
        workload = self.workload
        axes = workload.axes[tensor]
        loops = (
            Loop(factor, tuple(sum(c for d, c in axis if d == dim) * inside for axis in axes))
            for level, dim, factor, inside in self.loops
            if level > child
        )
        tile = workload.tile(tensor, self.held[child])
        return words_entering(tile, loops, forgets_direction=self.forgets)

    def _content(self, tensor: str, level: int) -> int:
        """Words between a level and the next inner one, per instance; identical tiles are merged."""
        child = _CHILD.get((tensor, level), -1)
        merged = math.prod(
            factor
            for between in self.levels[child + 1 : level + 1]
            for dim, factor in between.spatial.items()
            if not self.workload.is_relevant(tensor, dim)
        )
        words = self._entering(tensor, child) * self.instances(child)
        return words // merged // self.instances(level)

    def at(self, level: int, tensor: str) -> Count:
        """Accesses of `tensor` at `level`, per instance."""
        instances = self.instances(level)
        content = self._content(tensor, level)
        outermost = level == len(self.levels) - 1
        fills = 0 if outermost else self._entering(tensor, level)
        if tensor != "O":
            return Count(instances, content, fills, 0)
        # The first write of an output neither reads nor fills.
        spread = math.prod(
            factor
            for above in self.levels[level + 1 :]
            for dim, factor in above.spatial.items()
            if self.workload.is_relevant("O", dim)
        )
        part = math.prod(self.workload.tile("O", self.workload.bounds)) // spread
        return Count(instances, content - part, 0 if outermost else fills - part, content)
