"""Cycles of a schedule's program by the clock model: counts of every layer, as it is issued."""

from __future__ import annotations

import math
from collections.abc import Mapping as MappingABC
from collections.abc import Set
from typing import NamedTuple

from fadiff.converter.ir.graph import Graph, HostLayer, TensorCoreLayer
from fadiff.costmodel.count.nest import LoopNest
from fadiff.costmodel.group.additions import obstacle_to_resadd, waits
from fadiff.costmodel.group.copies import copy_counts
from fadiff.costmodel.group.fusion import Member, plan_group
from fadiff.costmodel.group.host import host_moves
from fadiff.costmodel.group.host_work import host_work
from fadiff.costmodel.group.pipeline import QUEUED_LOOPS, parts, pipeline_tiles, rounds, stages
from fadiff.costmodel.group.placement import placement_of
from fadiff.costmodel.latency.clock import (
    ClockCoefficients,
    LayerCounts,
    clock_of,
    issue_cycles,
    layer_cycles,
)
from fadiff.costmodel.latency.clock_work import nest_counts, weight_loads
from fadiff.costmodel.mapping.mapping import AdditionIssue, Mapping
from fadiff.costmodel.mapping.shape import shape_of
from fadiff.costmodel.schedule.schedule import FusionGroup, Schedule
from fadiff.costmodel.target.core import Core
from fadiff.costmodel.target.target import Target

QUEUED_COMMANDS = 38
"""Single commands that Gemmini's queues and reservation station hold."""
PART = 240
"""Cycles that one more part of a host operator takes (docs/gemmini-h.md)."""
BESIDE_LOADS = 1 / 3
"""Share of a copy by the core that Gemmini's loads can hide: both wait for memory (docs/gemmini-h.md)."""


class HostCounts(NamedTuple):
    """What a layer that is not on the array makes the core do, and how often it is called."""

    operator: str
    """Of HOST_INSTRUCTIONS; `add` is what Gemmini's DMA moves."""
    elements: float
    """Of an `add`: bytes."""
    visits: int
    hidden: float = 0.0
    """Cycles of it in which Gemmini runs other members of a pipelined group."""

    def cycles(self, c: ClockCoefficients, core: Core) -> float:
        """With what every visit takes, without what is hidden."""
        if self.operator == "add":
            busy = self.elements * c.added_byte
        else:
            busy = core.host_cycles(self.operator, self.elements)
        return busy + self.visits * c.visit - self.hidden


ProgramCounts = dict[str, LayerCounts | HostCounts]
"""By layer, in order of execution."""


def program_counts(schedule: Schedule) -> ProgramCounts:
    """Counts of every layer of a schedule of profile hw."""
    found: ProgramCounts = {}
    for group in schedule.groups:
        found |= group_counts(
            schedule.graph,
            group,
            schedule.mappings,
            schedule.target,
            schedule.additions,
            schedule.copies,
        )
    return found


def group_counts(
    graph: Graph,
    group: FusionGroup,
    mappings: MappingABC[str, Mapping],
    target: Target,
    additions: MappingABC[str, AdditionIssue] | None = None,
    copies: Set[str] = frozenset(),
) -> ProgramCounts:
    """Counts of every layer of a group; additions that nobody has decided on go as is quickest.

    `copies` are those of layers alone that Gemmini makes.
    """
    plan = plan_group(graph, group)
    found: ProgramCounts = {}
    for name in group.layers:
        layer = graph.by_name[name]
        if isinstance(layer, TensorCoreLayer):
            found[name] = layer_counts(graph, group, plan, layer, mappings[name], target)
        elif name in copies and len(group.layers) == 1:
            found[name] = copy_counts(graph, layer, target)
        else:
            issue = None if additions is None else additions.get(name, "instructions")
            found[name] = host_counts(graph, group, plan, layer, target, issue)
    if group.pipelined:
        return _in_pipeline(graph, group, plan, found, mappings, target)
    return _side_by_side(found, target) if group.side_by_side else found


def _in_pipeline(
    graph: Graph,
    group: FusionGroup,
    plan: dict[str, Member],
    counts: ProgramCounts,
    mappings: MappingABC[str, Mapping],
    target: Target,
) -> ProgramCounts:
    """The counts with what of each host operator is hidden: in every step of the pipeline in which both work,
    what Gemmini has been given before each part of it, or all.  Its fences are those of members on the array.
    """
    c, stage, found = clock_of(target), stages(graph, group), dict(counts)
    tiles = pipeline_tiles(plan)
    for turn in rounds(graph, group)[-1]:
        issued = counts[turn.issued]
        if turn.issued in group.resident_weights and isinstance(issued, LayerCounts):
            issued = _without_weights(graph, plan, turn.issued, issued, mappings, target)
        under_way = in_flight(issued, c)
        left = under_way if isinstance(issued, HostCounts) else _without_core(issued, c)
        for name, count in parts(graph, plan, mappings, turn).items():
            work = counts[name]
            assert isinstance(work, HostCounts)
            work, more = work._replace(visits=0), (count - 1) * PART * tiles
            beside = min(left, work.cycles(c, target.core) + more, count * under_way)
            steps = max(tiles - abs(stage[turn.issued] - stage[name]), 0)
            found[name] = work._replace(hidden=(beside - more) * steps / tiles)
            left -= beside
            under_way = min(under_way - (beside if count == 1 else 0), left)
    return found


def _side_by_side(counts: ProgramCounts, target: Target) -> ProgramCounts:
    """The counts with what of each host operator is hidden: of a part no more than Gemmini has been given, of
    all parts no more than the layer takes without the core.  All fences are that layer's.
    """
    c, found = clock_of(target), dict(counts)
    [given] = [work for work in counts.values() if isinstance(work, LayerCounts)]
    left, under_way = _without_core(given, c), in_flight(given, c)
    for name, work in counts.items():
        if isinstance(work, HostCounts):
            parts, alone = work.visits, work._replace(visits=0)
            free = BESIDE_LOADS if work.operator == "copy_runs" else 1.0
            more = parts * PART
            beside = min(left, alone.cycles(c, target.core) + more, parts * under_way)
            found[name] = alone._replace(hidden=free * beside - more)
            left -= beside
    return found


def _without_weights(
    graph: Graph,
    plan: dict[str, Member],
    name: str,
    counts: LayerCounts,
    mappings: MappingABC[str, Mapping],
    target: Target,
) -> LayerCounts:
    """Of a member whose weights stay: the first group tile, which nothing hides, loads them."""
    layer = graph.by_name[name]
    assert isinstance(layer, TensorCoreLayer)
    nest = LoopNest(shape_of(layer), mappings[name], plan[name].computed)
    weights = weight_loads(nest, target, graph.weight_bytes)
    return counts._replace(
        requests=max(counts.requests - weights.requests, 0),
        loaded_bytes=max(counts.loaded_bytes - weights.nbytes, 0),
        missed_lines=max(counts.missed_lines - weights.missed_lines, 0),
    )


def in_flight(counts: LayerCounts | HostCounts, c: ClockCoefficients) -> float:
    """Cycles of a layer for which the core need not wait: of its last commands in every visit.

    An addition waits for itself.
    """
    if isinstance(counts, HostCounts):
        return 0.0
    last = QUEUED_LOOPS / counts.loops if counts.loops else QUEUED_COMMANDS / counts.commands
    return float(_without_core(counts, c) * min(last * counts.visits, 1.0))


def _without_core(counts: LayerCounts, c: ClockCoefficients) -> float:
    """Cycles of a layer but those in which the core issues it."""
    issuing = issue_cycles(counts, c) + counts.commands * c.command + counts.visits * c.visit
    return float(max(layer_cycles(counts, c) - issuing, 0.0))


def network_cycles(counts: ProgramCounts, c: ClockCoefficients, core: Core) -> dict[str, float]:
    """Cycles of every layer."""
    return {
        name: work.cycles(c, core) if isinstance(work, HostCounts) else layer_cycles(work, c)
        for name, work in counts.items()
    }


def program_cycles(schedule: Schedule) -> dict[str, float]:
    """Cycles of every layer by the target's coefficients."""
    target = schedule.target
    return network_cycles(program_counts(schedule), clock_of(target), target.core)


def layer_counts(
    graph: Graph,
    group: FusionGroup,
    plan: dict[str, Member],
    layer: TensorCoreLayer,
    mapping: Mapping,
    target: Target,
) -> LayerCounts:
    """What one layer of a group makes core and Gemmini do, as it is issued."""
    nest = LoopNest(shape_of(layer), mapping, plan[layer.name].computed)
    placement = placement_of(graph, group, plan, layer)
    return nest_counts(nest, target, placement, graph.weight_bytes, mapping.issue)


def host_counts(
    graph: Graph,
    group: FusionGroup,
    plan: dict[str, Member],
    layer: HostLayer,
    target: Target,
    issue: AdditionIssue | None = None,
) -> HostCounts:
    """What a layer that is not on the array takes: the core, or for an addition Gemmini's DMA.

    Nothing where the stores of a convolution do its work.  `issue` is an addition's; None: the quickest.
    """
    member = plan[layer.name]
    if layer.op == "add":
        return _addition_counts(
            graph, group, plan, layer, target, issue or _quickest_addition(graph, group, plan, layer, target)
        )
    work = host_work(graph, layer, member)
    return HostCounts(work.operator, work.elements, work.visits if work.elements else 0)


def _addition_counts(
    graph: Graph,
    group: FusionGroup,
    plan: dict[str, Member],
    layer: HostLayer,
    target: Target,
    issue: AdditionIssue,
) -> HostCounts:
    """Each wait between operands is counted as a visit more."""
    moves = host_moves(graph, layer, plan[layer.name], target, group.resident_tensors)
    nbytes = sum(move.bytes for _, move in moves if move.memory in ("dram", "tile-buffer"))
    visits = math.prod(len(axis) for axis in plan[layer.name].computed)
    if issue == "instructions":
        visits += waits(graph, group, plan, layer, target)
    return HostCounts("add", nbytes, visits)


def quickest_additions(schedule: Schedule) -> dict[str, AdditionIssue]:
    """How every addition of a schedule of profile hw is issued in the fewest cycles."""
    graph, found = schedule.graph, {}
    for group in schedule.groups:
        plan = plan_group(graph, group)
        for name in group.layers:
            layer = graph.by_name[name]
            if isinstance(layer, HostLayer) and layer.op == "add":
                found[name] = _quickest_addition(graph, group, plan, layer, schedule.target)
    return found


def _quickest_addition(
    graph: Graph, group: FusionGroup, plan: dict[str, Member], layer: HostLayer, target: Target
) -> AdditionIssue:
    ways: list[AdditionIssue] = ["instructions"]
    if not obstacle_to_resadd(graph, group, plan, layer, target):
        ways.insert(0, "tiled_resadd")

    def cycles(issue: AdditionIssue) -> float:
        counts = _addition_counts(graph, group, plan, layer, target, issue)
        return counts.cycles(clock_of(target), target.core)

    return min(ways, key=cycles)
