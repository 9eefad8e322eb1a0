"""Layers side by side where the clock finds that this pays, in a finished schedule.

A host operator that runs alone may join a layer on the array that needs nothing of it, nor it of that one,
wherever that runs (`fadiff.costmodel.group.side_by_side`): several may join one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import networkx as nx

from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.group.resident_tensors import resident_tensors, with_resident_tensors
from fadiff.costmodel.group.row_operators import runs_on_core
from fadiff.costmodel.group.side_by_side import obstacle_to_side_by_side
from fadiff.costmodel.latency.clock import clock_of
from fadiff.costmodel.mapping.mapping import LOOPS
from fadiff.costmodel.schedule.clock import group_counts, network_cycles, quickest_additions
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import FusionGroup, Schedule
from fadiff.optimizer.cut.partition import Objective, value
from fadiff.optimizer.finish.pipelines import LEAST_GAIN
from fadiff.optimizer.group.residency import with_places

ROUNDING = 1e-9
"""Of energies that are added up in another order."""


def with_side_by_side(schedule: Schedule, objective: Objective) -> Schedule:
    """`schedule` (profile hw) with host operators beside other layers where that lowers its objective, by
    `LEAST_GAIN` each; no bytes or energy more.

    Args:
        schedule: Whose layers are issued and pipelined as they are to be.
        objective: What counts.
    """
    if objective == "energy":  # hidden cycles are all that it gains
        return schedule
    while (found := _joined(schedule, objective)) is not None:
        schedule = found
    return schedule


def _joined(schedule: Schedule, objective: Objective) -> Schedule | None:
    """The schedule with one more operator beside a layer: where most is gained, then the nearest; None if
    nothing is.
    """
    now = evaluate(schedule)
    least = (1 - LEAST_GAIN) * value(objective, now.energy_pj, now.latency_cycles)
    gains = _gains(schedule, LEAST_GAIN * now.latency_cycles)
    for _, _, given, joining in sorted((-round(gain), abs(a - b), a, b) for gain, a, b in gains):
        try:
            found = _together(schedule, given, joining)
        except ScheduleError:  # no room in memories while both run
            continue
        then = evaluate(found)
        worth = value(objective, then.energy_pj, then.latency_cycles)
        as_before = then.dram_bytes <= now.dram_bytes and then.energy_pj < (1 + ROUNDING) * now.energy_pj
        if worth < least and as_before:
            return found
    return None


def _gains(schedule: Schedule, least: float) -> Iterator[tuple[float, int, int]]:
    """Cycles that the clock hides, more than `least`; the groups of a layer on the array and an operator."""
    graph, groups = schedule.graph, schedule.groups
    order = _order(schedule, groups)
    cycles = [_cycles(schedule, group) for group in groups]
    joining = [
        at
        for at, group in enumerate(groups)
        if len(group.layers) == 1 and runs_on_core(graph.by_name[group.layers[0]]) and cycles[at] > least
    ]
    if not joining:
        return
    given = [at for at, group in enumerate(groups) if _has_tiles(schedule, group)]
    for at in joining:
        dependent = nx.descendants(order, at) | nx.ancestors(order, at)
        for other in given:
            group = _both(schedule, groups[other], groups[at])
            if other not in dependent and not obstacle_to_side_by_side(graph, group.layers):
                gain = cycles[at] + cycles[other] - _cycles(schedule, group)
                if gain > least:
                    yield gain, other, at


def _has_tiles(schedule: Schedule, group: FusionGroup) -> bool:
    """Whether a layer runs on a loop unit, beside nothing but operators."""
    if len(group.layers) > 1 and not group.side_by_side:
        return False
    layers = [schedule.graph.by_name[name] for name in group.layers]
    return any(
        isinstance(layer, TensorCoreLayer) and schedule.mappings[layer.name].issue in LOOPS
        for layer in layers
    )


def _both(schedule: Schedule, given: FusionGroup, joining: FusionGroup) -> FusionGroup:
    names = sorted(given.layers + joining.layers, key=schedule.graph.index.__getitem__)
    return FusionGroup(tuple(names), resident_tensors=given.resident_tensors | joining.resident_tensors)


def _cycles(schedule: Schedule, group: FusionGroup) -> float:
    """By the clock."""
    target, additions, copies = schedule.target, schedule.additions, schedule.copies
    counts = group_counts(schedule.graph, group, schedule.mappings, target, additions, copies=copies)
    return sum(network_cycles(counts, clock_of(target), target.core).values())


def _order(schedule: Schedule, groups: tuple[FusionGroup, ...]) -> nx.DiGraph[int]:
    """Which groups need results of which, or fill what others write into."""
    index = {name: at for at, group in enumerate(groups) for name in group.layers}
    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(range(len(groups)))
    pairs = (*schedule.graph.dag.edges, *schedule.graph.filled_first)
    edges = ((index[a], index[b]) for a, b in pairs)
    order.add_edges_from((a, b) for a, b in edges if a != b)
    return order


def _together(schedule: Schedule, given: int, joining: int) -> Schedule:
    """The schedule with an operator beside a layer, in its place; what either needs runs before.

    Raises:
        ScheduleError: they do not fit together.
    """
    graph, groups = schedule.graph, list(schedule.groups)
    groups[given] = _both(schedule, groups[given], groups[joining])
    beside = set(groups[given].layers)
    del groups[joining]
    order = _order(schedule, tuple(groups))
    placed = tuple(groups[at] for at in nx.lexicographical_topological_sort(order))
    placed = with_resident_tensors(graph, placed, resident_tensors(schedule.groups))
    changed = replace(
        schedule,
        groups=with_places(graph, placed, schedule.target),
        copies=schedule.copies - beside,
    )
    return replace(changed, additions=quickest_additions(changed))
