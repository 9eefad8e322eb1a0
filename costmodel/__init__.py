"""What a schedule costs on a Gemmini: targets, mappings, schedules, exact and differentiable evaluation.

`costmodel.evaluate.evaluate` scores a schedule, `costmodel.batch.evaluate_batch` many mappings of a
layer, `costmodel.relaxed.RelaxedModel` real-valued mappings with gradients.
"""

from costmodel.mapping import Mapping, MappingError
from costmodel.schedule import FusionGroup, GroupTile, Schedule
from costmodel.target import Target, TargetError, load_target, preset_names

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
