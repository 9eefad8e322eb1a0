"""Groups under the literature's fusion model (Eq. 13-15 with Eq. 24), to compare with published gains.

Members keep their whole-layer nests; a fused tensor's DRAM traffic vanishes however often it would
be refetched, and all members' scratchpad tiles must fit together.  The scratchpad is split between
the members in sixteenths; for each split every member is at its own best.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from converter.ir.graph import Graph, TensorCoreLayer
from costmodel.count.traffic import Placement
from costmodel.group.fusion import paper_plan
from costmodel.mapping.shape import shape_of, whole
from costmodel.schedule.schedule import FusionGroup, GroupTile
from optimizer.group.hull import EMPTY, GroupHull, Way, merge
from optimizer.group.tiles import last_output
from optimizer.layer.fronts import FrontCache, minkowski
from optimizer.layer.space import LayerSpace, Rules

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
            member = plan[layer.name]
            space = LayerSpace(
                shape_of(layer),
                whole(layer.dims),
                rules,
                Placement(
                    layer.input.tensor in member.fused_inputs,
                    member.writes_inside,
                    member.writes_outside,
                    is_paper=True,
                ),
            )
            limit = space.scratchpad_limit
            fronts.append(cache.front(_with_room(space, limit * share // SHARES)))
        if all(len(front) for front in fronts):
            energy, latency, vertices = minkowski([(f.energy, f.latency) for f in fronts])
            named = tuple(zip(layers, fronts, strict=True))
            ways = tuple(Way(group, named, tuple(int(v) for v in row)) for row in vertices)
            hulls.append(GroupHull(np.asarray(energy), np.asarray(latency), ways))
    return merge(hulls)


def _with_room(space: LayerSpace, room: int) -> LayerSpace:
    return LayerSpace(
        space.shape, space.region, space.rules, space.placement, reserved=space.scratchpad_limit - room
    )


def _splits(shares: int, members: int) -> Iterator[tuple[int, ...]]:
    if members == 1:
        yield (shares,)
        return
    for first in range(1, shares - members + 2):
        for rest in _splits(shares - first, members - 1):
            yield (first, *rest)
