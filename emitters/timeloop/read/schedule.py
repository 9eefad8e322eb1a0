"""Mappings that people bring as Timeloop files, as schedules."""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from dataclasses import replace
from pathlib import Path

from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.mapping.mapping import Mapping, MappingError
from fadiff.costmodel.schedule.schedule import Profile, Schedule, singleton_groups
from fadiff.costmodel.target.target import Target
from fadiff.emitters.timeloop.read.mapping import check_tiles, read_mapping
from fadiff.emitters.timeloop.read.problem import TimeloopProblem, problem_of, read_problem


def schedule_from_files(mapping: Path, problem: Path, target: Target, profile: Profile = "dosa") -> Schedule:
    """A schedule of one layer, named after the problem file.

    Raises:
        TimeloopFormatError, MappingError: `file:line: field: what is wrong`.
        ScheduleError: the mapping breaks a rule of the profile that Timeloop does not have.
    """
    read = read_problem(problem)
    mappings = {read.layer.name: _checked(mapping, read, target)}
    return Schedule(read.graph, target, mappings, singleton_groups(read.graph), profile)


def with_mappings(schedule: Schedule, files: MappingABC[str, Path]) -> Schedule:
    """The schedule with the mappings of some layers replaced by Timeloop files.

    The files use the letters of the emitted problems (N K C P Q R S, G for groups).

    Raises:
        MappingError: a layer that the schedule does not have, or that is fused with others.
        TimeloopFormatError: `file:line: field: what is wrong`; MappingError says it so, too.
        ScheduleError: the mapping does not fit the schedule's profile.
    """
    layers = {layer.name: layer for layer in schedule.graph.tensor_core_layers}
    mappings = dict(schedule.mappings)
    for name, path in files.items():
        if name not in layers:
            raise MappingError(f"no layer {name!r} to map: choose one of {', '.join(layers)}")
        if len(schedule.group_of[name].layers) > 1:
            raise MappingError(
                f"layer {name} is fused with others: start from a schedule compiled with --no-fusion"
            )
        mappings[name] = _checked(path, problem_of(schedule.graph, layers[name]), schedule.target)
    try:
        return replace(schedule, mappings=mappings)
    except ScheduleError as error:
        if schedule.profile == "dosa":
            raise
        files_say = ", ".join(map(str, files.values()))
        raise ScheduleError(
            f"{files_say}: {error} (Gemmini keeps each block in whole rows, and twice what it loads ahead; "
            "Timeloop counts words once)"
        ) from error


def _checked(path: Path, problem: TimeloopProblem, target: Target) -> Mapping:
    mapping = read_mapping(path, problem)
    check_tiles(path, problem, mapping, target)
    return mapping
