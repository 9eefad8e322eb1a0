"""`diff`: two builds side by side: totals, accuracy, and every layer that differs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fadiff.folder import OutputFolder

if TYPE_CHECKING:
    from fadiff.costmodel.schedule.document import ScheduleDocument

MEASURES = ("cycles", "dram_bytes", "energy_pj")
"""Columns of a layer that are compared."""


@dataclass(frozen=True)
class Difference:
    """Records `name`, `a`, `b` of the totals; and layers of either build, the largest change first."""

    totals: list[dict[str, Any]]
    layers: list[dict[str, Any]]
    """A layer that one build does not have has None there."""


def diff(a: str | Path, b: str | Path) -> Difference:
    """Compare two folders that `compile` made.

    Raises:
        InputError: a folder is none of ours.
    """
    from fadiff.emitters.layers_csv import layer_records

    documents = [OutputFolder(Path(folder)).document for folder in (a, b)]
    one, other = ({row["layer"]: row for row in layer_records(document)} for document in documents)
    layers = []
    for name in dict.fromkeys([*one, *other]):
        left, right = one.get(name, {}), other.get(name, {})
        row: dict[str, Any] = {"layer": name, "op": left.get("op") or right["op"]}
        for measure in MEASURES:
            row |= {f"{measure}_a": left.get(measure), f"{measure}_b": right.get(measure)}
        if left != right:
            layers.append(row)
    layers.sort(key=lambda row: -abs((row["cycles_b"] or 0) - (row["cycles_a"] or 0)))
    figures = [_totals(document) for document in documents]
    return Difference(
        [{"name": name, "a": figures[0][name], "b": figures[1][name]} for name in figures[0]], layers
    )


def _totals(document: ScheduleDocument) -> dict[str, Any]:
    from fadiff.costmodel.schedule.verdict import verdict_of

    totals, verdict = document.totals, verdict_of(document)
    return {
        "model": document.model.name,
        "target": document.target.name,
        "cycles": None if totals.clock_cycles is None else round(totals.clock_cycles),
        "dram_bytes": totals.dram_bytes,
        "energy_pj": round(totals.energy_pj),
        "edp_uj_cycles": totals.edp_uj_cycles,
        "layers": len(document.layers),
        "fused_groups": sum(document.fused),
        "sqnr_db": verdict and verdict.sqnr_db,
        "top1_agreement": verdict and verdict.top1_agreement,
    }
