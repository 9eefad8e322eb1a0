"""The timeline as a trace in Chrome's JSON format, which Perfetto and chrome://tracing open.

One microsecond of the trace is one cycle of the clock model.
"""

from __future__ import annotations

import json
from typing import Any

from fadiff.costmodel.schedule.clock_parts import program_parts
from fadiff.costmodel.schedule.document import ScheduleDocument
from fadiff.costmodel.schedule.serialize import schedule_from_document

TRACKS = ("group", "layer", "array", "dma", "core", "host")
"""Threads of the trace, from 1; the last four are engines, busy for a part of a layer's time."""


def trace(document: ScheduleDocument) -> str:
    """The trace of a document of which a program is emitted."""
    clocks = program_parts(schedule_from_document(document))
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": document.model.name}},
        *(
            {"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": name}}
            for tid, name in enumerate(TRACKS, 1)
        ),
    ]

    def span(tid: int, name: str, start: float, cycles: float, **about: Any) -> None:
        events.append(
            {"ph": "X", "pid": 1, "tid": tid, "name": name, "ts": start, "dur": cycles, "args": about}
        )

    records, start = {layer.name: layer for layer in document.layers}, 0.0
    for number, names in enumerate(document.fusion.groups):
        span(1, f"group {number}", start, sum(clocks[name].cycles for name in names), layers=list(names))
        for name in names:
            clock, layer = clocks[name], records[name]
            span(2, name, start, clock.cycles, op=layer.op, macs=layer.macs, dram_bytes=layer.dram_bytes)
            for tid, engine in enumerate(TRACKS[2:], 3):
                if busy := min(getattr(clock.busy, engine), clock.cycles):
                    span(tid, name, start, busy, share=round(busy / clock.cycles, 3))
            start += clock.cycles
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})
