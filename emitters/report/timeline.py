"""Where the time goes: the program's cycles by kind, and what runs when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from fadiff.costmodel.schedule.clock_parts import LayerClock
from fadiff.costmodel.schedule.document import ScheduleDocument
from fadiff.costmodel.schedule.measurement import Measurement
from fadiff.emitters.report.svg import Scale, axis_below, box, canvas, text
from fadiff.emitters.report.text import count, percent, tick

KINDS = (
    ("array", "mac", "array"),
    ("dma", "l3", "DMA: loads and stores"),
    ("core", "l1", "core: issuing commands"),
    ("host", "host", "core: operators"),
    ("waiting", "wait", "waiting: fences"),
)
"""Field of Parts, CSS class, and what it is."""
ROWS = {"array": "array", "dma": "DMA", "core": "core", "host": "operators"}
"""Names of the rows of the timeline."""
WIDTH, LEFT, RIGHT, ROW, BOTTOM = 1180, 64, 8, 30, 40
VISIBLE = 0.01
"""Share of a layer's time below which an engine counts as idle."""
MIN_LABEL = 7
"""Pixels of a digit: a block is labelled where its number fits."""


@dataclass(frozen=True)
class Part:
    """One kind of time in the whole network."""

    kind: str
    label: str
    cycles: str
    share: str
    width: float


@dataclass(frozen=True)
class Latency:
    """The program's cycles, what they are made of, and what hardware took; widths in percent."""

    predicted: str
    predicted_width: float
    parts: tuple[Part, ...]
    measured: str = ""
    measured_width: float = 0.0
    error: str = ""


def latency(clocks: Mapping[str, LayerClock], measured: Measurement | None) -> Latency | None:
    """The one latency of the network, decomposed; None where nothing is emitted."""
    total = sum(round(clock.cycles) for clock in clocks.values())  # as schedule.json adds them
    if not total:
        return None
    warm = measured.warm if measured is not None and measured.unit == "cycles" else 0
    longest = max(total, warm)
    sums = [
        (kind, label, sum(getattr(c.parts, field) for c in clocks.values())) for field, kind, label in KINDS
    ]
    return Latency(
        predicted=count(total),
        predicted_width=100 * total / longest,
        parts=tuple(
            Part(kind, label, count(cycles), percent(cycles / total), 100 * cycles / total)
            for kind, label, cycles in sums
            if cycles
        ),
        measured=count(warm) if warm else "",
        measured_width=100 * warm / longest,
        error=f"{100 * (total / warm - 1):+.1f} %" if warm else "",
    )


def timeline(document: ScheduleDocument, clocks: Mapping[str, LayerClock]) -> Markup | None:
    """Groups and layers one after the other; below, how busy each engine is meanwhile."""
    total = sum(round(clock.cycles) for clock in clocks.values())  # as schedule.json adds them
    if not total:
        return None
    kinds = [kind for kind in KINDS[:4] if any(getattr(c.busy, kind[0]) for c in clocks.values())]
    height = ROW * (2 + len(kinds)) + BOTTOM
    x = Scale(0.0, total, LEFT, WIDTH - RIGHT)
    index = {layer.name: i for i, layer in enumerate(document.layers)}
    parts = axis_below(x, height - BOTTOM + 2, ((v, tick(v)) for v in x.ticks()), "cycles", top=2)
    for row, label in enumerate(["group", "layer", *(ROWS[kind[0]] for kind in kinds)]):
        parts.append(text(label, 0, ROW * row + 19, "note"))
    start, number = 0.0, 0
    for names, fused in zip(document.fusion.groups, document.fused, strict=True):
        cycles = sum(clocks[name].cycles for name in names)
        several = len(names) > 1
        number += several
        how = "tile by tile" if fused else "side by side"
        members = f"{len(names)} layers {how}" if several else "one layer"
        tip = f"{f'group {number}: ' if several else ''}{members}, {count(cycles)} cycles"
        kind, label = ("group fused", str(number)) if several else ("group", "")
        parts.append(_block(x, start, cycles, 0, kind, tip, label))
        for name in names:
            clock = clocks[name]
            if clock.cycles:
                tip = f"{index[name]} {name}: {count(clock.cycles)} cycles"
                kind = f"span shade{index[name] % 2}"
                parts.append(_block(x, start, clock.cycles, 1, kind, tip, str(index[name])))
                parts += _engines(x, start, index[name], clock, kinds)
            start += clock.cycles
    return canvas(WIDTH, height, "Timeline of groups, layers and engines", parts)


def _engines(
    x: Scale, start: float, layer: int, clock: LayerClock, kinds: list[tuple[str, str, str]]
) -> list[Markup]:
    blocks = []
    for row, (field, kind, label) in enumerate(kinds, 2):
        busy = getattr(clock.busy, field)
        if busy >= VISIBLE * clock.cycles:
            share = min(1.0, busy / clock.cycles)
            tip = f"{layer}: {label}, busy {percent(share, 0)}"
            dark = round(0.12 + 0.88 * share, 2)
            blocks.append(_block(x, start, clock.cycles, row, f"busy {kind}", tip, opacity=dark))
    return blocks


def _block(
    x: Scale,
    start: float,
    cycles: float,
    row: int,
    kind: str,
    tip: str,
    label: str = "",
    opacity: float | None = None,
) -> Markup:
    left, right = x(start), x(start + cycles)
    wide, top = max(right - left, 0.5), ROW * row + 4
    block = box(kind, tip, left, top, wide, ROW - 6, fill_opacity=opacity)
    if not label or right - left < MIN_LABEL * len(label) + 4:
        return block
    shade = "label light" if kind == "group fused" else "label"
    return block + text(label, round((left + right) / 2, 1), top + 16, shade, text_anchor="middle")
