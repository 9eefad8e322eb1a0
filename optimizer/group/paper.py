"""Groups under the literature's fusion model (Eq. 13-15 with Eq. 24), to compare with published gains.

Members keep their whole-layer nests; a fused tensor's DRAM traffic vanishes however often it would
be refetched, and all members' scratchpad tiles must fit together.  The scratchpad is split between
the members in sixteenths; for each split every member is at its own best.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.costmodel.group.fusion import paper_plan
from fadiff.costmodel.group.placement import placement_of
from fadiff.costmodel.mapping.shape import shape_of, whole
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile
from fadiff.optimizer.group.hull import EMPTY, GroupHull, merge, summed
from fadiff.optimizer.group.tiles import last_output
from fadiff.optimizer.layer.fronts import FrontCache
from fadiff.optimizer.layer.space import LayerSpace, Rules

SHARES = 16
MOST_MEMBERS = 3


def paper_hull(graph: Graph, layers: tuple[str, ...], rules: Rules, cache: FrontCache) -> GroupHull:
    """Hull of one group over all splits of the scratchpad; empty if there is none."""
    members = [layer for name in layers if isinstance(layer := graph.by_name[name], TensorCoreLayer)]
    size = last_output(graph, layers)
    if len(members) != len(layers) or not 2 <= len(layers) <= MOST_MEMBERS or size is None:
        return EMPTY
    group = FusionGroup(layers, GroupTile(*size))
    plan = paper_plan(graph, group)
    hulls = []
    for split in _splits(SHARES, len(layers)):
        fronts = []
        for layer, share in zip(members, split, strict=True):
            placement = placement_of(graph, group, plan, layer, paper=True)
            space = LayerSpace(shape_of(layer), whole(layer.dims), rules, placement)
            limit = space.scratchpad_limit
            room = replace(space, reserved=limit - limit * share // SHARES)
            fronts.append((layer.name, cache.front(room)))
        hulls.append(summed(group, fronts))
    return merge(hulls)


def _splits(shares: int, members: int) -> Iterator[tuple[int, ...]]:
    if members == 1:
        yield (shares,)
        return
    for first in range(1, shares - members + 2):
        for rest in _splits(shares - first, members - 1):
            yield (first, *rest)
