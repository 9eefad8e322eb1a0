"""What a schedule costs on a Gemmini: targets, mappings, schedules, exact and differentiable evaluation.

Rooms, each needing only those before it:

target    one Gemmini and its memories          group     layers that run together, and where tensors live
mapping   how one layer is tiled                schedule  the whole decision: legal, scored, in schedule.json
count     loop nest, bytes, energy              relaxed   the differentiable model (torch)
latency   cycles of what was counted
"""

from fadiff.costmodel.mapping.mapping import Mapping, MappingError
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule
from fadiff.costmodel.target.target import Target, TargetError, load_target, preset_names

__all__ = [
    "FusionGroup",
    "GroupTile",
    "Mapping",
    "MappingError",
    "Schedule",
    "Target",
    "TargetError",
    "load_target",
    "preset_names",
]
