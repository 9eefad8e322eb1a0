"""layers.csv: one line per layer, for spreadsheets and notebooks."""

from __future__ import annotations

import csv
import io
from typing import Any, Literal

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


def layer_records(document: ScheduleDocument) -> list[dict[str, Any]]:
    """The layers in order of execution, by column, groups counted from 0.

    `cycles` are those of the emitted program (the clock model; None where no program is emitted),
    `latency_cycles` those that the EDP counts.
    """
    groups = {name: number for number, names in enumerate(document.fusion.groups) for name in names}
    return [
        dict(
            zip(
                COLUMNS,
                (layer.name, layer.op, groups[layer.name], layer.macs, *_cost(layer), *_tiles(layer)),
                strict=True,
            )
        )
        for layer in document.layers
    ]


def layers_csv(document: ScheduleDocument) -> str:
    """The records as text; no name is a formula."""
    text = io.StringIO()
    rows = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    rows.writeheader()
    for record in layer_records(document):
        rows.writerow(record | {"layer": safe_cell(record["layer"])})
    return text.getvalue()


def _cost(layer: LayerRecord) -> tuple[object, ...]:
    cost = layer.cost
    cycles = None if cost.clock_cycles is None else round(cost.clock_cycles)
    return cycles, round(cost.latency_cycles), round(cost.energy_pj), layer.dram_bytes, cost.bound


def _tiles(layer: LayerRecord) -> tuple[str, str, str]:
    mapping = layer.mapping
    if mapping is None:
        return layer.issue or "", "", ""
    return mapping.issue, _extents(mapping, "L2"), _extents(mapping, "L1")


def _extents(mapping: MappingRecord, level: Literal["L2", "L1"]) -> str:
    return " ".join(f"{d}{n}" for d, n in mapping.tile[level].items())


def safe_cell(name: str) -> str:
    """A name that no spreadsheet takes for a formula: names come from model files."""
    return f"'{name}" if name[:1] in ("=", "+", "-", "@", "\t", "\r") else name
