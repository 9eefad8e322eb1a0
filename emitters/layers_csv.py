"""layers.csv: one line per layer, for spreadsheets and notebooks."""

from __future__ import annotations

import csv
import io
from typing import Literal

from fadiff.costmodel.schedule.document import LayerRecord, MappingRecord, ScheduleDocument

COLUMNS = (
    "layer",
    "op",
    "group",
    "macs",
    "cycles",
    "latency_cycles",
    "energy_pj",
    "dram_bytes",
    "bound",
    "issue",
    "scratchpad_tile",
    "accumulator_tile",
)


def layers_csv(document: ScheduleDocument) -> str:
    """The layers in order of execution, groups counted from 0.

    `cycles` are those of the emitted program (the clock model; empty where no program is emitted),
    `latency_cycles` those that the EDP counts.
    """
    groups = {name: number for number, names in enumerate(document.fusion.groups) for name in names}
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for layer in document.layers:
        rows.writerow(
            (_safe(layer.name), layer.op, groups[layer.name], layer.macs, *_cost(layer), *_tiles(layer))
        )
    return text.getvalue()


def _cost(layer: LayerRecord) -> tuple[object, ...]:
    cost = layer.cost
    cycles = "" if cost.clock_cycles is None else f"{cost.clock_cycles:.0f}"
    return cycles, f"{cost.latency_cycles:.0f}", f"{cost.energy_pj:.0f}", layer.dram_bytes, cost.bound


def _tiles(layer: LayerRecord) -> tuple[str, str, str]:
    mapping = layer.mapping
    if mapping is None:
        return layer.issue or "", "", ""
    return mapping.issue, _extents(mapping, "L2"), _extents(mapping, "L1")


def _extents(mapping: MappingRecord, level: Literal["L2", "L1"]) -> str:
    return " ".join(f"{d}{n}" for d, n in mapping.tile[level].items())


def _safe(name: str) -> str:
    """A name that no spreadsheet takes for a formula: names come from model files."""
    return f"'{name}" if name[:1] in ("=", "+", "-", "@", "\t", "\r") else name
