"""From a converted model to the schedule that is emitted: searches, and what is settled after them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from fadiff.console import Console, duration
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.errors import InputError, one_line, remedy
from fadiff.optimizer import SearchResult, Settings, optimize
from fadiff.optimizer.cut.issued import quicker_copies
from fadiff.optimizer.finish.issue import with_issues
from fadiff.optimizer.finish.pipelines import with_pipelines
from fadiff.optimizer.finish.side_by_side import with_side_by_side
from fadiff.optimizer.finish.traffic_limit import automatic_bytes, dram_bytes, within
from fadiff.optimizer.finish.weight_prefetch import with_prefetches
from fadiff.optimizer.search import PROVING

if TYPE_CHECKING:
    from fadiff.converter import Conversion, Graph
    from fadiff.costmodel.target.target import Target
    from fadiff.optimizer.layer.solved import SolvedLayers

DramLimit = int | Literal["gemmini-auto"] | None
"""Most bytes a schedule may move, what gemmini.h's automatic tiles would move, or no limit."""


@dataclass(frozen=True)
class SearchOptions(Settings):
    """What to search for and how, and what to settle afterwards; names and defaults of the command line."""

    prefetch: bool = False
    """Whether the first weights of a group may load while the group before computes."""

    @property
    def is_executed(self) -> bool:
        """Whether schedules of our own methods are searched that the C executes; baselines stay."""
        return self.fusion_model == "sound" and self.profile == "hw" and self.method in PROVING

    @property
    def fuses(self) -> bool:
        """Whether groups of several layers are searched."""
        return self.fusion and self.method != "layerwise"


def find_schedule(
    graph: Graph,
    target: Target,
    search: Settings,
    console: Console,
    solved: SolvedLayers | None = None,
) -> SearchResult:
    """Run the optimiser; `solved` are layers that earlier searches solved.

    Raises:
        InputError: the method cannot search this fusion model, or needs a package that is not installed.
    """
    if search.obstacle:
        raise InputError(search.obstacle)
    limit = search.limit(graph)
    with console.stage(f"searching ({search.method}, at most {duration(limit)})", limit):
        try:
            found = optimize(graph, target, search, progress=console.update, solved=solved)
        except ImportError as error:
            raise InputError(one_line(error)) from error
    if found.settled is not None and found.settled < 1:
        decided = f"enumeration decided {found.settled:.0%} of the layers"
        if find_spec("torch"):
            console.note(f"{decided}, descent worked on the rest")
        else:
            console.warn(f"{decided}; descent could better the rest: {remedy('torch')}")
    return found


def limit_traffic(found: SearchResult, limit: int, console: Console) -> tuple[SearchResult, str]:
    """The schedule within `limit` DRAM bytes, and a note of what that costs ("" if nothing)."""
    if dram_bytes(found.cost) <= limit:
        return found, ""
    with console.stage("limiting DRAM bytes"):
        limited = within(found, limit)
        if found.settings.latency == "clock":
            limited = _issued(limited, limit)
    note = (
        f"DRAM bytes limited to {limit:,}: {dram_bytes(found.cost):,} became {dram_bytes(limited.cost):,}, "
        f"{found.settings.objective} {limited.value / found.value - 1:+.2%} (--max-dram-bytes none: no limit)"
    )
    return limited, note


def _issued(found: SearchResult, limit: int | None) -> SearchResult:
    """The schedule with its layers issued as the clock finds best, within `limit` DRAM bytes."""
    settings = found.settings
    issued = with_issues(found.schedule, limit, settings.objective, residency=settings.residency)
    return replace(found, schedule=issued, cost=evaluate(issued, settings.latency))


def _pipelined(found: SearchResult, limit: int | None, copied: int | None = None) -> SearchResult:
    """The schedule with the pipelines that the clock finds to pay, within `limit` DRAM bytes, with copies by
    Gemmini, within `copied` bytes, and with host operators beside other layers."""
    settings = found.settings
    schedule = with_pipelines(found.schedule, settings.objective, limit)
    schedule = replace(schedule, copies=quicker_copies(schedule, copied))
    schedule = with_side_by_side(schedule, settings.objective)
    bound = found.bound  # the roofline counts such schedules as all others
    if settings.latency == "clock" and schedule != found.schedule:
        bound = "sequential"
    return replace(found, schedule=schedule, cost=evaluate(schedule, settings.latency), bound=bound)


def load_early(found: SearchResult, limit: int | None, console: Console) -> tuple[SearchResult, str]:
    """The schedule with prefetches where they pay, and a note of what they change."""
    with console.stage("prefetching weights"):
        early = with_prefetches(found, limit, progress=console.update)
    count = sum(group.prefetch_during is not None for group in early.schedule.groups)
    change = early.value / found.value - 1 if count else 0.0
    note = (
        f"first weights of {count} of {len(early.schedule.groups)} groups loaded under the group before: "
        f"{found.settings.objective} {change:+.2%}"
    )
    return early, note


def decide(
    conversion: Conversion, target: Target, search: SearchOptions, limit: DramLimit, console: Console
) -> tuple[Conversion, SearchResult]:
    """Search, then settle what the search does not see; notes say what each step changed.

    Only schedules of our own methods that are executed are settled: baselines stay what they are.
    """
    found = find_schedule(conversion.graph, target, search, console)
    if search.fusion_model != "sound" or search.method not in PROVING:
        return conversion, found
    notes = []
    given = limit if isinstance(limit, int) else None  # else what copies move, the core moves in either
    if search.profile != "hw":
        limit = None
    if limit == "gemmini-auto":
        try:
            limit = automatic_bytes(found.schedule, row_packing=search.row_packing)
        except ScheduleError as error:  # memories too small for gemmini.h's tiles: nothing to compare with
            limit = None
            notes.append(f"DRAM bytes not limited: gemmini.h's automatic tiles do not fit ({error})")
        found = replace(found, automatic_bytes=limit)
    if limit is not None:
        found, note = limit_traffic(found, limit, console)
        notes.append(note)
    if search.prefetch:
        found, note = load_early(found, limit, console)
        notes.append(note)
    if search.profile == "hw":
        with console.stage("choosing hardware loops"):
            if search.latency != "clock":  # which searches them
                found = _issued(found, limit)
            if search.fuses:
                found = _pipelined(found, limit, given)
    notes = [text for text in notes if text]
    for text in notes:
        console.note(text)
    return replace(conversion, notes=(*conversion.notes, *notes)), found
