"""Schedule: the whole decision for one graph on one target.  Scored, executed and exported as is."""

from __future__ import annotations

from dataclasses import dataclass

from fadiff.costmodel.mapping.counting import LatencyModel, Profile
from fadiff.costmodel.mapping.decision import (
    Decision,
    FusionGroup,
    FusionModel,
    GroupTile,
    singleton_groups,
)
from fadiff.costmodel.schedule.legality import check_schedule

__all__ = [
    "FusionGroup",
    "FusionModel",
    "GroupTile",
    "LatencyModel",
    "Profile",
    "Schedule",
    "singleton_groups",
]


@dataclass(frozen=True)
class Schedule(Decision):
    """A decision that can be executed: one that breaks a rule does not exist.

    Raises:
        ScheduleError: the first constraint that breaks (see costmodel.schedule.legality), naming the layer.
    """

    def __post_init__(self) -> None:
        check_schedule(self)
