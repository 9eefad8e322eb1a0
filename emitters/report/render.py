"""Print report.html: one self-contained file that needs no network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fadiff.costmodel.schedule.clock_parts import program_parts
from fadiff.costmodel.schedule.document import ScheduleDocument
from fadiff.costmodel.schedule.measurement import Measurement
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.costmodel.schedule.serialize import schedule_from_document
from fadiff.emitters.layers_csv import layers_csv
from fadiff.emitters.memory_map import MemoryMap
from fadiff.emitters.report import view
from fadiff.emitters.report.advice import advice
from fadiff.emitters.report.charts import bound_class, roofline, search_curve
from fadiff.emitters.report.fusion import fusion_graph
from fadiff.emitters.report.layers import (
    ENERGY_PARTS,
    clock_limit,
    dims_text,
    energies,
    extents_text,
    times,
    transfers,
)
from fadiff.emitters.report.memory import arena_blocks, local_memories, memory_picture, tile_buffer_blocks
from fadiff.emitters.report.nest import array_text, functions, issue_text, nest_boxes
from fadiff.emitters.report.summary import counts_text, figures_of
from fadiff.emitters.report.text import limit, percent, picojoules, si
from fadiff.emitters.report.timeline import KINDS, latency, timeline
from fadiff.emitters.report.waterfall import dram_steps
from fadiff.emitters.trace import trace

FILTERS: dict[str, Callable[..., Any]] = {
    "array": array_text,
    "bound_class": bound_class,
    "dims": dims_text,
    "energies": energies,
    "extents": extents_text,
    "issue": issue_text,
    "clock_limit": clock_limit,
    "limit": limit,
    "nest": nest_boxes,
    "percent": percent,
    "picojoules": picojoules,
    "si": si,
    "times": times,
    "transfers": transfers,
}
"""How templates write what they read in schedule.json."""


def render(
    document: ScheduleDocument,
    verification: Mapping[str, Any] | None = None,
    memory_map: MemoryMap | None = None,
    measured: Measurement | None = None,
    source: str = "",
) -> str:
    """The report as HTML.

    Args:
        document: schedule.json.
        verification: What `fadiff verify --json` printed for this folder, if it ran.
        memory_map: firmware/memory_map.json, if C was emitted.
        measured: What `fadiff measure` found on hardware, if it ran.
        source: The C of the model, if it was emitted.
    """
    schedule = schedule_from_document(document)
    clocks = program_parts(schedule) if document.is_executable else {}
    cycles = {
        layer.name: clocks[layer.name].cycles if layer.name in clocks else layer.cost.latency_cycles
        for layer in document.layers
    }
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            document=document,
            verification=verification,
            memory_map=memory_map,
            measured=measured,
            longest_measured=max((max(m.measured, m.predicted) for m in measured.layers), default=0) or 1
            if measured
            else 1,
            tiles=figures_of(document, verification, measured),
            latency=latency(clocks, measured),
            kinds=KINDS,
            timeline=timeline(document, clocks),
            dram_steps=dram_steps(document, schedule),
            advice=advice(document, schedule),
            trace="data:application/json;charset=utf-8," + quote(trace(document)) if clocks else "",
            order=sorted(range(len(document.layers)), key=lambda i: -cycles[document.layers[i].name]),
            csv="data:text/csv;charset=utf-8," + quote(layers_csv(document)),
            counts=counts_text(verification) if verification and verification["measured"] else "",
            share=view.array_share(document),
            clocks=clocks,
            cycles=cycles,
            longest=max(cycles.values(), default=0.0) or 1.0,
            most=max((layer.cost.energy_pj for layer in document.layers), default=0.0) or 1.0,
            group_of={
                name: i for i, (names, _) in enumerate(view.fused_groups(document), 1) for name in names
            },
            functions=functions(source),
            energy_parts=ENERGY_PARTS,
            host=view.host_operators(document),
            quantization=view.quantization_rows(document),
            search_curve=search_curve(document),
            roofline=roofline(document),
            fusion_graph=fusion_graph(document),
            memories=_memories(document, schedule, memory_map),
            groups=view.group_rows(document),
            residents=view.resident_rows(document),
        )
    )


def page(title: str, *parts: Markup | Sequence[Mapping[str, Any]]) -> str:
    """Pictures and tables of records, one below the other."""
    return environment().get_template("page.html.j2").render(title=title, parts=parts)


@cache
def environment() -> Environment:
    """The templates of this package, each compiled once in a process."""
    made = Environment(
        loader=PackageLoader("fadiff.emitters.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= FILTERS
    return made


def _memories(
    document: ScheduleDocument, schedule: Schedule, memory_map: MemoryMap | None
) -> list[tuple[str, Markup]]:
    """Pictures of the memories that hold something, from far to near."""
    if memory_map is None:
        return []
    symbols = memory_map.symbols
    layers = len(document.layers)
    far = (
        ("Arena (DRAM)", "arena", symbols.arena, arena_blocks(document, memory_map)),
        ("Tile buffer", "tile buffer", symbols.tile_buffer, tile_buffer_blocks(memory_map)),
    )
    found = [
        (label, picture)
        for label, what, symbol, blocks in far
        if (picture := memory_picture(what, blocks, symbol.bytes, layers))
    ]
    return [*found, *local_memories(document, schedule)]
