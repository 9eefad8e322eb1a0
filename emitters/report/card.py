"""A compilation in a notebook: its figures and timeline on one card, and in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fadiff.costmodel.schedule.clock_parts import program_parts
from fadiff.costmodel.schedule.document import ScheduleDocument
from fadiff.costmodel.schedule.serialize import schedule_from_document
from fadiff.emitters.report.render import environment
from fadiff.emitters.report.summary import figures_of
from fadiff.emitters.report.text import count, edp
from fadiff.emitters.report.timeline import timeline


def card(document: ScheduleDocument, verification: Mapping[str, Any] | None = None) -> str:
    """The card as HTML that stands alone."""
    clocks = program_parts(schedule_from_document(document)) if document.is_executable else {}
    return (
        environment()
        .get_template("card.html.j2")
        .render(
            title=f"{document.model.name} on {document.target.name}",
            figures=figures_of(document, verification),
            timeline=timeline(document, clocks),
        )
    )


def one_line(document: ScheduleDocument, passed: bool | None = None) -> str:
    """Model, target, layers, cycles, EDP, and whether it was verified."""
    totals = document.totals
    clock = "" if totals.clock_cycles is None else f"{count(totals.clock_cycles)} cycles, "
    checked = "" if passed is None else ", verified" if passed else ", FAILED verification"
    return (
        f"{document.model.name} on {document.target.name}: {len(document.layers)} layers, {clock}"
        f"EDP {edp(totals.edp_uj_cycles)} uJ x cycles{checked}"
    )
