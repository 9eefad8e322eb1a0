"""Who issues a layer's moves and products (profile hw), and what loops and library calls ask.

A loop unit of Gemmini's runs one scratchpad tile per instruction sequence: LOOP_WS a matrix product
(`loop_products.py`), LOOP_CONV_WS a convolution (`loop_convolutions.py`).  It loads, multiplies and stores
while the core prepares the next call, and keeps two calls under way in the two halves of both memories.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from costmodel.group.fusion import Member, ScheduleError
from costmodel.group.loop_convolutions import obstacle_to_convolution_loop
from costmodel.group.loop_products import obstacle_to_call, obstacle_to_product_loop
from costmodel.group.loop_setting import LoopSetting
from costmodel.group.scratchpad import member_spaces
from costmodel.group.weight_prefetch import planned_prefetches
from costmodel.mapping.decision import Decision, FusionGroup

LoopUnit = Literal["product", "convolution"]


def loop_unit(setting: LoopSetting) -> LoopUnit | None:
    """The unit that can run the scratchpad tiles of a layer: of both, the one that overlaps more."""
    if not obstacle_to_product_loop(setting):
        return "product"
    return None if obstacle_to_convolution_loop(setting) else "convolution"


def obstacle_to_issue(setting: LoopSetting) -> str:
    """Why the layer cannot be issued as its mapping says; empty if it can."""
    issue = setting.mapping.issue
    if issue == "call":
        return obstacle_to_call(setting)
    if issue == "loop" and loop_unit(setting) is None:
        is_product = setting.layer.dims.R * setting.layer.dims.S == 1
        return obstacle_to_product_loop(setting) if is_product else obstacle_to_convolution_loop(setting)
    return ""


def loop_settings(
    schedule: Decision, group: FusionGroup, plan: Mapping[str, Member], early: frozenset[str]
) -> Iterator[LoopSetting]:
    """What surrounds each tensor-core member of a group; `early` are layers that prefetches concern."""
    for space in member_spaces(schedule, group, dict(plan)):
        yield LoopSetting(
            schedule.graph,
            group,
            plan,
            space,
            schedule.mappings[space.layer.name],
            schedule.target,
            space.layer.name in early,
        )


def prefetching_layers(schedule: Decision) -> frozenset[str]:
    """Layers whose first weights are loaded early, and those while which they are."""
    prefetches = planned_prefetches(schedule).values()
    return frozenset(name for p in prefetches for name in (p.layer, p.during))


def check_issues(schedule: Decision, plans: list[dict[str, Member]]) -> None:
    """Check that every layer can be issued as its mapping says.

    Raises:
        ScheduleError: one that cannot, naming the layer.
    """
    issued = [name for name, mapping in schedule.mappings.items() if mapping.issue != "instructions"]
    if not issued:
        return
    if schedule.profile != "hw" or schedule.fusion_model != "sound":
        raise ScheduleError(f"{issued[0]}: only schedules that are executed say how layers are issued")
    early = prefetching_layers(schedule)
    for group, plan in zip(schedule.groups, plans, strict=True):
        if not any(name in group.layers for name in issued):
            continue
        for setting in loop_settings(schedule, group, plan, early):
            reason = obstacle_to_issue(setting)
            if reason:
                issue = setting.mapping.issue
                raise ScheduleError(f"{setting.layer.name}: cannot be issued as a {issue}: {reason}")
