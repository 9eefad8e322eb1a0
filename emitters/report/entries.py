"""The first page of a firmware with several entries: figures side by side, with links to their reports."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from markupsafe import Markup

from fadiff.costmodel.schedule.document import ScheduleDocument

_PAGE = Markup(
    """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }}
td, th {{ padding: 0.2em 1em 0.2em 0; text-align: right }}
td:first-child, th:first-child {{ text-align: left }}</style>
</head><body><h1>{name}</h1>
<p>One firmware for {target}; its entries are called in turn, with common weights and states.</p>
<table><tr><th>entry</th><th>layers</th><th>cycles as emitted</th><th>DRAM bytes</th><th>energy, uJ</th>
<th>EDP, uJ x cycles</th><th>bound</th></tr>
{rows}</table></body></html>
"""
)
_ROW = Markup(
    '<tr><td><a href="{link}/report.html">{name}</a></td><td>{layers}</td><td>{cycles}</td><td>{dram}</td>'
    "<td>{energy}</td><td>{edp}</td><td>{bound}</td></tr>\n"
)


def render_entries(name: str, documents: Mapping[str, ScheduleDocument]) -> str:
    """The page; the report of an entry lies in the folder of its name."""
    rows = Markup("").join(_row(entry, document) for entry, document in documents.items())
    target = next(iter(documents.values())).target.name
    return str(_PAGE.format(name=name, target=target, rows=rows))


def _row(entry: str, document: ScheduleDocument) -> Markup:
    totals = document.totals
    cycles, bound = totals.clock_cycles, totals.lower_bound_edp_uj_cycles
    return _ROW.format(
        link=quote(entry),
        name=entry,
        layers=len(document.layers),
        cycles="" if cycles is None else f"{cycles:,.0f}",
        dram=f"{totals.dram_bytes:,}",
        energy=f"{totals.energy_pj * 1e-6:,.1f}",
        edp=f"{totals.edp_uj_cycles:.4e}",
        bound="" if bound is None else f"{bound:.4e}",
    )
