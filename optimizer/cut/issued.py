"""A schedule as it is emitted: additions and copies in their shortest programs, as the search counts them."""

from __future__ import annotations

from dataclasses import replace

from fadiff.costmodel.group.copies import obstacle_to_moving
from fadiff.costmodel.schedule.clock import quickest_additions
from fadiff.costmodel.schedule.evaluate import evaluate, group_cost
from fadiff.costmodel.schedule.schedule import Schedule


def as_issued(schedule: Schedule) -> Schedule:
    """`schedule` (profile hw) with additions as is quickest, and copies by Gemmini where that is quicker."""
    issued = replace(schedule, additions=quickest_additions(schedule))
    copies = quicker_copies(issued)
    return replace(issued, copies=copies) if copies != issued.copies else issued


def quicker_copies(schedule: Schedule, most_bytes: int | None = None) -> frozenset[str]:
    """Copies (profile hw) that Gemmini's DMA makes in fewer cycles than the core.

    Args:
        schedule: Whose; what its `copies` are now does not matter.
        most_bytes: DRAM bytes that it may move with these, if there is a limit: the first ones that fit.
    """
    able = [group for group in schedule.groups if not obstacle_to_moving(schedule, group.layers[0])]
    if not able:
        return frozenset()
    by_core = evaluate(replace(schedule, copies=frozenset()))
    found, nbytes = set[str](), by_core.dram_bytes
    for group in able:
        name = group.layers[0]
        [moved] = group_cost(schedule.graph, group, {}, schedule.target, copies={name})
        if moved.latency_cycles >= by_core.by_name[name].latency_cycles:
            continue
        more = moved.total_bytes("dram") - by_core.by_name[name].total_bytes("dram")
        if most_bytes is None or nbytes + more <= most_bytes:
            nbytes += more
            found.add(name)
    return frozenset(found)
