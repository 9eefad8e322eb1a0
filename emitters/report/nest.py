"""The loop nest of a layer as boxes in boxes, and the C that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fadiff.costmodel.mapping.mapping import ISSUED, Level
from fadiff.costmodel.schedule.document import LayerRecord, MappingRecord

PLACES: dict[Level, str] = {
    "L3": "DRAM to scratchpad",
    "L2": "scratchpad to accumulator",
    "L1": "blocks of the array",
    "L0": "pixels through the array",
}
"""What the loops of each level walk over."""
MOST_LINES = 24
"""Of C beside a loop nest."""


@dataclass(frozen=True)
class Box:
    """The loops of one level, outermost first: dimension and trips of full tiles."""

    kind: str
    place: str
    loops: tuple[tuple[str, int], ...]


def nest_boxes(mapping: MappingRecord) -> tuple[Box, ...]:
    """Levels that have a loop, outermost first."""
    boxes = []
    for level, place in PLACES.items():
        trips = {str(d): n for d, n in mapping.temporal.get(level, {}).items()}
        loops = tuple((d.lower(), trips[d]) for d in mapping.order[level] if trips.get(d, 1) > 1)
        if loops:
            boxes.append(Box(level.lower(), place, loops))
    return tuple(boxes)


def array_text(layer: LayerRecord) -> str:
    """What lies over rows and columns of the array."""
    assert layer.mapping is not None
    spatial = layer.mapping.spatial
    unrolled = [
        f"{' '.join(f'{d}{n}' for d, n in extents.items())} over {where}"
        for where, extents in (("columns", spatial.cols), ("rows", spatial.rows))
        if extents
    ]
    return ", ".join(unrolled) or f"one element of {layer.op}"


def issue_text(mapping: MappingRecord) -> str:
    """How the loops are run, and why not by hardware."""
    return f"issued as {ISSUED[mapping.issue]}" + (f", because {mapping.by_core}" if mapping.by_core else "")


def functions(source: str) -> Mapping[str, str]:
    """The C function of every layer that has one, cut to MOST_LINES, by the name in the comment above it."""
    found: dict[str, str] = {}
    name, body = "", list[str]()
    for line in source.splitlines():
        if line.startswith("/* "):
            name = line[3:].partition(": ")[0]
        elif line.startswith("static void ") and name:
            body = [line]
        elif body:
            body.append(line)
            if line == "}":
                found[name] = _excerpt(body)
                name, body = "", []
    return found


def _excerpt(lines: list[str]) -> str:
    more = len(lines) - MOST_LINES
    return "\n".join([*lines[:MOST_LINES], f"    /* ... {more} more lines */"] if more > 1 else lines)
