"""From a converted model to the schedule that is emitted: searches, and what is settled after them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fadiff.console import Console, duration
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.errors import InputError, one_line
from fadiff.optimizer import SearchResult, Settings, optimize
from fadiff.optimizer.dram_limit import automatic_bytes, within
from fadiff.optimizer.finish.pipelines import with_pipelines
from fadiff.optimizer.finish.side_by_side import with_side_by_side
from fadiff.optimizer.search import PROVING

if TYPE_CHECKING:
    from fadiff.converter import Conversion, Graph
    from fadiff.costmodel.target.target import Target

DramLimit = int | Literal["gemmini-auto"] | None
"""Most bytes a schedule may move, what gemmini.h's automatic tiles would move, or no limit."""


@dataclass(frozen=True)
class SearchOptions(Settings):
    """What to search for and how; names and defaults of the command line."""

    @property
    def is_executed(self) -> bool:
        """Whether schedules of our own methods are searched that the C executes; baselines stay."""
        return self.fusion_model == "sound" and self.profile == "hw" and self.method in PROVING


def find_schedule(
    graph: Graph,
    target: Target,
    search: Settings,
    console: Console,
) -> SearchResult:
    """Run the optimiser.

    Raises:
        InputError: the method cannot search this fusion model, or needs a package that is not installed.
    """
    if search.obstacle:
        raise InputError(search.obstacle)
    limit = search.limit(graph)
    with console.stage(f"searching ({search.method}, at most {duration(limit)})", limit):
        try:
            found = optimize(graph, target, search, progress=console.update)
        except ImportError as error:
            raise InputError(one_line(error)) from error
    return found


def limit_traffic(found: SearchResult, limit: int, console: Console) -> tuple[SearchResult, str]:
    """The schedule within `limit` DRAM bytes, and a note of what that costs ("" if nothing)."""
    if found.cost.dram_bytes <= limit:
        return found, ""
    with console.stage("limiting DRAM bytes"):
        limited = within(found, limit, console.update)
    note = (
        f"DRAM bytes limited to {limit:,}: {found.cost.dram_bytes:,} became {limited.cost.dram_bytes:,}, "
        f"{found.settings.objective} {limited.value / found.value - 1:+.2%} (--max-dram-bytes none: no limit)"
    )
    return limited, note


def _overlapped(found: SearchResult, limit: int | None) -> SearchResult:
    """The schedule with core and Gemmini at work at the same time where that pays, within `limit` bytes."""
    schedule = with_pipelines(found.schedule, found.settings, limit)
    schedule = with_side_by_side(schedule, found.settings.objective)
    overlaps = any(group.pipelined or group.side_by_side for group in schedule.groups)
    bound = "sequential" if overlaps else found.bound
    return replace(found, schedule=schedule, cost=evaluate(schedule), bound=bound)


def decide(
    conversion: Conversion, target: Target, search: SearchOptions, limit: DramLimit, console: Console
) -> tuple[Conversion, SearchResult]:
    """Search, then keep to a limit of DRAM bytes and let core and Gemmini work at the same time.

    Only schedules of our own methods that are executed are changed: baselines stay what they are.
    """
    found = find_schedule(conversion.graph, target, search, console)
    if not search.is_executed:
        return conversion, found
    notes = []
    if limit == "gemmini-auto":
        try:
            limit = automatic_bytes(conversion.graph, target, row_packing=search.row_packing)
        except ScheduleError as error:  # memories too small for gemmini.h's tiles: nothing to compare with
            limit = None
            notes.append(f"DRAM bytes not limited: gemmini.h's automatic tiles do not fit ({error})")
        found = replace(found, automatic_bytes=limit)
    if limit is not None:
        found, note = limit_traffic(found, limit, console)
        notes.append(note)
    if search.fuses:
        with console.stage("overlapping core and Gemmini"):
            found = _overlapped(found, limit)
    notes = [text for text in notes if text]
    for text in notes:
        console.note(text)
    return replace(conversion, notes=(*conversion.notes, *notes)), found
