"""Copies by Gemmini's DMA where the clock finds it quicker than the core, in a finished schedule."""

from __future__ import annotations

from dataclasses import replace

from fadiff.costmodel.group.copies import obstacle_to_moving, while_weights_wait
from fadiff.costmodel.schedule.evaluate import evaluate, group_cost
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.optimizer.cut.partition import Objective
from fadiff.optimizer.finish.traffic_limit import dram_bytes


def with_copies(schedule: Schedule, objective: Objective, most_bytes: int | None = None) -> Schedule:
    """`schedule` (profile hw) with the copies by Gemmini that lower its objective under the clock.

    Args:
        schedule: Whose copies the core makes.
        objective: What counts.
        most_bytes: DRAM bytes that Gemmini may move, if there is a limit.
    """
    if objective == "energy":  # that stays what it is
        return schedule
    cost, waiting, copies = evaluate(schedule, "clock"), while_weights_wait(schedule), set[str]()
    nbytes = dram_bytes(cost)
    for group in schedule.groups:
        name = group.layers[0]
        if obstacle_to_moving(schedule, name, waiting):
            continue
        [moved] = group_cost(
            schedule.graph, group, schedule.mappings, schedule.target, latency="clock", copies={name}
        )
        more = nbytes + moved.total_bytes("dram")
        if moved.latency_cycles < cost.by_name[name].latency_cycles and (
            most_bytes is None or more <= most_bytes
        ):
            nbytes = more
            copies.add(name)
    return replace(schedule, copies=frozenset(copies))
