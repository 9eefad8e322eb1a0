"""Who issues a layer's moves and products (profile hw), and what they ask.

A loop unit of Gemmini's runs one scratchpad tile per instruction sequence: LOOP_WS a matrix product
(`loop_products.py`), LOOP_CONV_WS a convolution (`loop_convolutions.py`).  It loads, multiplies and stores
while the core prepares the next call, and keeps two calls under way in the two halves of both memories.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fadiff.converter.ir.loops import RELEVANT
from fadiff.costmodel.group.fusion import Member, ScheduleError, plan_group
from fadiff.costmodel.group.loop_convolutions import (
    convolution_rows,
    obstacle_to_convolution_loop,
    obstacle_to_convolutions,
)
from fadiff.costmodel.group.loop_products import (
    obstacle_to_core_products,
    obstacle_to_core_tiles,
    obstacle_to_product_loop,
    obstacle_to_products,
    product_rows,
)
from fadiff.costmodel.group.loop_setting import LoopSetting, PinnedWeights
from fadiff.costmodel.group.scratchpad import member_spaces
from fadiff.costmodel.mapping.decision import Decision, FusionGroup
from fadiff.costmodel.mapping.mapping import BY_CORE, LOOPS, Issue

_OBSTACLES: dict[Issue, Callable[[LoopSetting], str]] = {
    "instructions": lambda setting: "",
    "core_ws": obstacle_to_core_tiles,
    "loop_ws": obstacle_to_product_loop,
    "loop_conv_ws": obstacle_to_convolution_loop,
}
_OBSTACLES_TO_UNITS: dict[Issue, Callable[[LoopSetting], str]] = {
    "core_ws": obstacle_to_core_products,
    "loop_ws": obstacle_to_products,
    "loop_conv_ws": obstacle_to_convolutions,
}


def obstacle_to_issue(setting: LoopSetting) -> str:
    """Why the layer cannot be issued as its mapping says; empty if it can."""
    return _OBSTACLES[setting.mapping.issue](setting)


def obstacle_to_unit(setting: LoopSetting, unit: Issue) -> str:
    """Why a layer cannot be issued as tiles of a loop unit, however it is mapped; empty if it may."""
    return _OBSTACLES_TO_UNITS[unit](setting)


def obstacle_to_loops(setting: LoopSetting) -> str:
    """Why no loop unit can run the layer as it is mapped; empty if one can."""
    product, convolution = obstacle_to_product_loop(setting), obstacle_to_convolution_loop(setting)
    if not product or not convolution:
        return ""
    return product if setting.layer.op in ("gemm", "bmm") else convolution


def issued_by_core(schedule: Decision) -> dict[str, str]:
    """Layers of a schedule (profile hw) issued as single instructions, and why no loop unit runs them."""
    return {
        setting.layer.name: obstacle_to_loops(setting) or "the core is as fast"
        for group in schedule.groups
        for setting in loop_settings(schedule, group, plan_group(schedule.graph, group))
        if setting.mapping.issue in BY_CORE
    }


def loop_settings(schedule: Decision, group: FusionGroup, plan: Mapping[str, Member]) -> list[LoopSetting]:
    """What surrounds each tensor-core member of a group."""
    spaces = member_spaces(schedule, group, dict(plan))
    resident = sum(space.weights for space in spaces if space.room.is_resident)
    settings = [
        LoopSetting(
            schedule.graph,
            group,
            plan,
            space,
            schedule.mappings[space.layer.name],
            schedule.target,
            resident - space.weights if space.room.is_resident else resident,
        )
        for space in spaces
    ]
    pinned = pinned_weights(settings)
    return [replace(setting, pinned=pinned) for setting in settings]


def pinned_weights(settings: Sequence[LoopSetting]) -> PinnedWeights | None:
    """The weights that stay for a group; None if none do, or if some member runs on no loop unit.

    Args:
        settings: Of all the group's members on the array.
    """
    residents = [setting for setting in settings if setting.space.room.is_resident]
    if not residents or any(setting.mapping.issue not in LOOPS for setting in settings):
        return None
    tiles = {
        setting.layer.name: math.prod(setting.mapping.trips("L3", setting.bounds)[d] for d in RELEVANT["W"])
        for setting in residents
    }
    return PinnedWeights(tiles, max(_rows(setting) for setting in residents))


def _rows(setting: LoopSetting) -> int:
    """Of a weight tile, as the unit lays it out."""
    rows = product_rows if setting.mapping.issue == "loop_ws" else convolution_rows
    return rows(setting)[1]


def check_issues(schedule: Decision, plans: list[dict[str, Member]]) -> None:
    """Check that every layer can be issued as its mapping says.

    Raises:
        ScheduleError: one that cannot, naming the layer.
    """
    issued = {name: None for name, mapping in schedule.mappings.items() if mapping.issue != "instructions"}
    if not issued:
        return
    if not schedule.is_executable:
        raise ScheduleError(
            f"{next(iter(issued))}: only schedules that are executed say how layers are issued"
        )
    for group, plan in zip(schedule.groups, plans, strict=True):
        if not any(name in issued for name in group.layers):
            continue
        for setting in loop_settings(schedule, group, plan):
            reason = obstacle_to_issue(setting)
            if reason:
                issue = setting.mapping.issue
                raise ScheduleError(f"{setting.layer.name}: cannot be issued as {issue}: {reason}")
