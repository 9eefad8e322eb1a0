"""Print report.html: one self-contained file that needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from costmodel.latency.rtl import validation_error
from costmodel.schedule.document import ScheduleDocument
from costmodel.schedule.measurement import Measurement
from emitters.report import view
from emitters.report.charts import roofline, search_curve
from emitters.report.diagrams import arena_map, fusion_graph
from emitters.report.summary import counts_text, figures_of


def render(
    document: ScheduleDocument,
    verification: Mapping[str, Any] | None = None,
    memory_map: Mapping[str, Any] | None = None,
    measured: Measurement | None = None,
) -> str:
    """The report as HTML.

    Args:
        document: schedule.json.
        verification: What `fadiff verify --json` printed for this folder, if it ran.
        memory_map: firmware/memory_map.json, if C was emitted.
        measured: What `fadiff measure` found on hardware, if it ran.
    """
    environment = Environment(
        loader=PackageLoader("emitters.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        document=document,
        verification=verification,
        memory_map=memory_map,
        measured=measured,
        measured_rows=view.measured_rows(measured) if measured else (),
        tiles=figures_of(document, verification),
        counts=counts_text(verification) if verification and verification["measured"] else "",
        share=view.array_share(document),
        rows=view.layer_rows(document),
        totals=view.totals_row(document),
        parts=view.ENERGY_PARTS,
        host=view.host_operators(document),
        quantization=view.quantization_rows(document),
        search_curve=search_curve(document),
        roofline=roofline(document),
        fusion_graph=fusion_graph(document),
        arena=arena_map(document, memory_map) if memory_map else None,
        groups=view.group_rows(document),
        residents=view.resident_rows(document),
        early_weights=view.early_weights(document),
        readings=view.reading_rows(document),
        latency_validation=validation_error() if document.latency_model == "rtl" else document.latency_error,
    )


def write_report(
    document: ScheduleDocument,
    path: Path,
    verification: Mapping[str, Any] | None = None,
    memory_map: Mapping[str, Any] | None = None,
    measured: Measurement | None = None,
) -> None:
    """Write the report to `path`; see `render`."""
    path.write_text(render(document, verification, memory_map, measured), encoding="utf-8")
