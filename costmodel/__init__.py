"""What a schedule costs on a Gemmini: targets, mappings, schedules, exact and differentiable evaluation.

`costmodel.schedule.evaluate.evaluate` scores a schedule, `costmodel.schedule.batch.evaluate_batch` many mappings of a
layer, `costmodel.relaxed.model.RelaxedModel` real-valued mappings with gradients.
"""

from costmodel.mapping.mapping import Mapping, MappingError
from costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule
from costmodel.target.target import Target, TargetError, load_target, preset_names

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
