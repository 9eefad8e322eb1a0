"""What would make it faster: the changes worth most, as rows of a table."""

from __future__ import annotations

from typing import NamedTuple

from fadiff.costmodel.schedule.changes import changes
from fadiff.costmodel.schedule.document import ScheduleDocument
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.emitters.report.text import count, percent, short

MOST = 5
"""Changes that the report opens with."""
NAMED = 2
"""Layers of a change that are named."""


class Advice(NamedTuple):
    """One row; `width` is its share of the latency, in percent."""

    what: str
    layers: str
    won: str
    share: str
    width: float
    costs: str


def advice(document: ScheduleDocument, schedule: Schedule) -> list[Advice]:
    """The five changes that win most cycles; none where no program is emitted."""
    total = document.totals.clock_cycles
    if not total or not document.is_executable:
        return []
    kept = document.conversion.kept_float
    loss = "" if kept is None or kept.before_db is None else f"accuracy: {kept.before_db:.1f} dB without them"
    rows = []
    for change in changes(schedule, loss)[:MOST]:
        more = len(change.layers) - NAMED
        named = ", ".join(short(name, 32) for name in change.layers[:NAMED]) + f" and {more} more" * (
            more > 0
        )
        share = change.cycles_won / total
        won = count(change.cycles_won)
        rows.append(Advice(change.what, named, won, percent(share), 100 * share, change.costs))
    return rows
