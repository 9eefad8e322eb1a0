"""Group tiles in a pipeline: while the core computes a host operator of one, Gemmini runs products of others.

The members of a group are *stages* in turn on Gemmini and on the core.  In one step of the pipeline stage s
works on the group tile s before the newest, so that no two stages wait for each other: what Gemmini is to do
is issued, with parts of what the core does between its tiles; then the core does the rest, and waits.  A box
of the tile buffer has as many places as group tiles are between the stage that writes it and the last that
reads it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from fadiff.converter.ir.graph import Graph, Layer, TensorCoreLayer
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.group.fusion import Member, ScheduleError
from fadiff.costmodel.group.row_operators import runs_on_core
from fadiff.costmodel.mapping.decision import Decision, FusionGroup
from fadiff.costmodel.mapping.mapping import LOOPS
from fadiff.costmodel.mapping.mapping import Mapping as LayerMapping
from fadiff.costmodel.mapping.shape import Region, bounds_of, extents, shape_of

QUEUED_LOOPS = 2
"""Tiles on a hardware loop that are under way at a time."""
LEAST_ELEMENTS = 128
"""Of a part between them: fewer take no longer than beginning one does."""


def _in_group(layer: Layer) -> bool:
    """The same of a member of a group, where the stores of the convolution before do max pools."""
    return runs_on_core(layer) and layer.op != "max_pool"


def stages(graph: Graph, group: FusionGroup) -> dict[str, int]:
    """The stage of every member: runs of members on Gemmini and on the core, in their order."""
    found: dict[str, int] = {}
    stage, on_core = 0, _in_group(graph.by_name[group.layers[0]])
    for name in group.layers:
        if _in_group(graph.by_name[name]) != on_core:
            stage, on_core = stage + 1, not on_core
        found[name] = stage
    return found


class Turn(NamedTuple):
    """A member that Gemmini is given, and those that the core computes before it issues anything else."""

    issued: str
    computed: tuple[str, ...]


def rounds(graph: Graph, group: FusionGroup) -> tuple[tuple[Turn, ...], ...]:
    """What one step of the pipeline does, with a fence before every round.

    Members of one stage that Gemmini runs need each other's results, so each is in a round of its own; the
    last round has the last of every stage, and all that the core computes.  Gemmini takes commands of the
    next layer when it has sent all those of the one before: so the core computes in between.
    """
    by_stage: dict[int, list[str]] = {}
    for name, stage in stages(graph, group).items():
        if graph.by_name[name].op != "max_pool":  # the stores of its convolution do it
            by_stage.setdefault(stage, []).append(name)
    latest_first = [by_stage[stage] for stage in sorted(by_stage, reverse=True)]
    issued = [names for names in latest_first if not _in_group(graph.by_name[names[0]])]
    computed = [tuple(names) for names in latest_first if _in_group(graph.by_name[names[0]])]
    length = max(map(len, issued))
    found = [
        [Turn(names[at - length], ()) for names in issued if len(names) + at >= length]
        for at in range(length)
    ]
    last = found[-1]
    for back, names in enumerate(reversed(computed)):
        at = max(len(last) - 1 - back, 0)
        last[at] = Turn(last[at].issued, names + last[at].computed)
    return tuple(map(tuple, found))


def loop_tiles(
    graph: Graph, plan: Mapping[str, Member], mappings: Mapping[str, LayerMapping], name: str
) -> int:
    """How many calls of a loop unit run a member in a group tile, at most; 1 where none does."""
    mapping = mappings.get(name)
    if mapping is None or mapping.issue not in LOOPS:
        return 1
    layer = graph.by_name[name]
    assert isinstance(layer, TensorCoreLayer)
    bounds = Dims(*bounds_of(shape_of(layer), plan[name].computed))
    return math.prod(mapping.trips("L3", bounds))


def parts(
    graph: Graph, plan: Mapping[str, Member], mappings: Mapping[str, LayerMapping], turn: Turn
) -> dict[str, int]:
    """In how many parts the core computes each member of a turn, between tiles of what Gemmini is given: of
    whole lines and `LEAST_ELEMENTS`.  One: when Gemmini has been given all."""
    tiles, found = loop_tiles(graph, plan, mappings, turn.issued), {}
    for name in turn.computed:
        of_axes, size = [max(extents(axis)) for axis in plan[name].computed], math.prod(plan[name].size)
        elements = math.prod(of_axes) * (graph.tensors[graph.by_name[name].outputs[0]].size // size)
        most = min(tiles, of_axes[3], elements // LEAST_ELEMENTS)
        found[name] = max(most, 1) if tiles > QUEUED_LOOPS else 1
    return found


def places(graph: Graph, group: FusionGroup, plan: Mapping[str, Member]) -> dict[str, int]:
    """Places that the box of each fused tensor has, by the member that writes it."""
    if not group.pipelined:
        return {name: 1 for name, member in plan.items() if member.writes_inside}
    stage = stages(graph, group)
    last = dict(stage)
    found: dict[str, int] = {}
    for name in reversed(group.layers):
        layer, member = graph.by_name[name], plan[name]
        for reader in graph.consumers(layer.outputs[0]):
            if reader.name in plan:
                read = last if plan[reader.name].in_place else stage  # what is in its place is read later
                last[name] = max(last[name], read[reader.name])
        if member.writes_inside:
            found[name] = last[name] - stage[name] + 1
    for name in group.layers:
        if plan[name].in_place:
            found[name] = found[graph.producers(graph.by_name[name].inputs[0])[0].name]
    return found


def pipeline_axis(plan: Mapping[str, Member]) -> int:
    """The axis (of G, K, N, P, Q) along which a pipelined group has several tiles."""
    return next(axis for axis, tiles in enumerate(_tiles(plan)) if len(tiles) > 1)


def pipeline_tiles(plan: Mapping[str, Member]) -> int:
    """Group tiles of a pipelined group."""
    return max(map(len, _tiles(plan)))


def _tiles(plan: Mapping[str, Member]) -> Region:
    *_, last = plan.values()
    return last.grid


def obstacle_to_pipeline(graph: Graph, group: FusionGroup, plan: Mapping[str, Member]) -> str:
    """Why the group tiles of a group cannot go through a pipeline; empty if they can."""
    if group.tile is None or max(stages(graph, group).values()) == 0:
        return "its members do not run on the core and on Gemmini in turn"
    if sum(len(tiles) > 1 for tiles in _tiles(plan)) != 1:
        return "its group tiles do not follow one another along one axis"
    for name in group.layers:
        for tensor in graph.by_name[name].inputs:
            if tensor in group.resident_tensors and any(p.name in plan for p in graph.producers(tensor)):
                return f"{name} reads {tensor}, which a member writes, as a whole"
    return ""


def check_pipelines(schedule: Decision, plans: list[dict[str, Member]]) -> None:
    """Check that the groups that are to be pipelined can be.

    Raises:
        ScheduleError: one that cannot, naming its first layer.
    """
    for group, plan in zip(schedule.groups, plans, strict=True):
        if not group.pipelined:
            continue
        reason = "only schedules that are executed are pipelined" if not schedule.is_executable else ""
        reason = reason or obstacle_to_pipeline(schedule.graph, group, plan)
        if reason:
            raise ScheduleError(f"{group.layers[0]}: its group cannot be pipelined: {reason}")
