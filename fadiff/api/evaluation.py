"""`evaluate`: the exact cost of a given schedule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fadiff.console import Console
from fadiff.errors import naming
from fadiff.pipeline import as_target

if TYPE_CHECKING:
    from fadiff.costmodel.schedule.evaluate import NetworkCost
    from fadiff.costmodel.schedule.schedule import Profile, Schedule
    from fadiff.costmodel.target.target import Target


def evaluate(
    schedule: str | Path | Schedule,
    *,
    sliding_window: bool = False,
    target: str | Path | Target | None = None,
    profile: Profile | None = None,
    console: Console | None = None,
) -> NetworkCost:
    """Energy, latency and DRAM bytes of a schedule.json or a Schedule, layer by layer.

    Args:
        schedule: The file, or the schedule.
        sliding_window: Keep what consecutive input tiles share, as Timeloop does.
        target: Other hardware.
        profile: Other counting.
        console: Where warnings go.

    Raises:
        ScheduleError: it does not fit the target, or is not legal under the profile.
        ScheduleFileError: the file cannot be used.
    """
    from fadiff.costmodel.schedule.evaluate import evaluate as exact_cost

    if isinstance(schedule, str | Path):
        hardware = None if target is None else as_target(target)
        console = console or Console(verbosity=-1)
        schedule = schedule_from_file(Path(schedule), hardware, profile, console)
    elif target is not None or profile is not None:
        schedule = replace(
            schedule,
            target=schedule.target if target is None else as_target(target),
            profile=profile or schedule.profile,
        )
    return exact_cost(schedule, sliding_window=sliding_window)


def schedule_from_file(
    path: Path, target: Target | None, profile: Profile | None, console: Console
) -> Schedule:
    """A schedule file, on other hardware or under another profile where asked."""
    from fadiff.costmodel.group.fusion import ScheduleError
    from fadiff.costmodel.schedule.serialize import read_document, schedule_from_document

    document = read_document(path)
    with naming(path):
        decision = schedule_from_document(document)
    asked = [option for option, given in (("--target", target), ("--profile", profile)) if given]
    with naming(path, on=target.name if target else ""):
        try:
            decision = replace(decision, target=target or decision.target)
            decision = _counted(console, decision, profile or decision.profile)
        except ScheduleError as error:
            remedy = f"compile with the same {' and '.join(asked)} for a schedule that is legal there"
            raise ScheduleError(f"{error}; {remedy}") from error
    return decision


def _counted(console: Console, schedule: Schedule, profile: Profile) -> Schedule:
    """The schedule under a profile, without tensors on chip between groups where that forbids them."""
    from fadiff.costmodel.group.fusion import ScheduleError
    from fadiff.costmodel.schedule.reduced import as_instructions, within_groups

    if profile != "hw":
        schedule = as_instructions(schedule)
    try:
        return replace(schedule, profile=profile)
    except ScheduleError as error:
        if not any(group.resident_tensors for group in schedule.groups):
            raise
        counted = replace(within_groups(schedule), profile=profile)
        console.warn(f"counted without the tensors that stay on chip between groups; {profile}: {error}")
        return counted
