"""What the report says in one number each: the figures at its top, and what the functional model counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fadiff.costmodel.schedule.document import ScheduleDocument
from fadiff.costmodel.schedule.measurement import Measurement
from fadiff.costmodel.schedule.mixed_precision import mixed_precision
from fadiff.costmodel.schedule.verdict import verdict_of
from fadiff.emitters.report.text import count, edp, percent, picojoules, short, si

COUNTS = {
    "dram_bytes": "DRAM bytes",
    "tile_buffer_bytes": "tile buffer bytes",
    "instructions": "instructions executed",
    "core_instructions": "issued by the core",
    "estimated_cycles": "cycles as the functional model estimates them (to compare programs, not RTL)",
    "peak_spad_rows": "scratchpad rows in use at most",
    "peak_acc_rows": "accumulator rows in use at most",
}
"""Counts of a verification, in words."""


@dataclass(frozen=True)
class Figure:
    """One number of the summary; state is '', 'good' or 'bad'."""

    label: str
    value: str
    detail: str = ""
    state: str = ""


def figures_of(
    document: ScheduleDocument,
    verification: Mapping[str, Any] | None,
    measured: Measurement | None = None,
) -> list[Figure]:
    """The figures at the top."""
    totals = document.totals
    figures = [
        *_latency(document, measured),
        Figure("Energy", picojoules(totals.energy_pj), "per inference, modelled"),
        Figure(
            "Energy-delay product",
            edp(totals.edp_uj_cycles),
            f"µJ × cycles, of {si(totals.latency_cycles)} cycles by the {document.latency_model} model",
        ),
    ]
    if totals.gap is not None and totals.lower_bound_edp_uj_cycles is not None:
        figures.append(
            Figure(
                "Above the lower bound" if totals.gap >= 0 else "Below a bound on less",
                percent(abs(totals.gap)),
                f"{totals.bound_kind or 'relaxed'} bound {edp(totals.lower_bound_edp_uj_cycles)}",
            )
        )
    figures.extend(_accuracy(document, verification or {}))
    if (mixed := mixed_precision(document)) is not None:
        figures.append(Figure("Layers in float32", str(len(mixed.record.layers)), mixed.line()))
    if verification and not verification["measured"]:
        figures.append(Figure("Verified", "failed", verification["error"], "bad"))
        return figures
    if not verification:
        figures.append(Figure("DRAM bytes", si(totals.dram_bytes, "B"), "predicted"))
        if document.is_executable:
            figures.append(Figure("Verified", "not yet", "run: fadiff verify DIR", "bad"))
        return figures
    moved = verification["measured"]["dram_bytes"]
    exact = bool(verification["traffic_exact"])
    detail = (
        "measured, equal to the prediction in every layer and tensor"
        if exact
        else f"measured; predicted {count(totals.dram_bytes)}"
    )
    figures.append(Figure("DRAM bytes", count(moved), detail, "good" if exact else "bad"))
    compared = [layer["agrees"] for layer in verification["layers"] if layer["agrees"] is not None]
    tolerance = verification["tolerance"]
    figures.append(
        Figure(
            f"Layers within {tolerance:g}" if tolerance else "Bit-exact layers",
            f"{sum(compared)} of {len(compared)}",
            f"against the {'float' if tolerance else 'integer'} reference in ONNX Runtime",
            "good" if verification["agrees"] else "bad",
        )
    )
    return figures


def _latency(document: ScheduleDocument, measured: Measurement | None) -> list[Figure]:
    """The one latency of the emitted program, predicted and, where it was, measured."""
    totals = document.totals
    if totals.clock_cycles is None:
        return []
    figures = []
    if measured is not None and measured.unit == "cycles":
        warm = f"cycles, warm, by {short(measured.source, 40)}"
        figures.append(Figure("Latency, measured", si(measured.warm), warm))
    predicted = "Latency, predicted" if figures else "Latency"
    figures.append(Figure(predicted, si(totals.clock_cycles), f"cycles; {totals.clock_error}"))
    return figures


def _accuracy(document: ScheduleDocument, verification: Mapping[str, Any]) -> list[Figure]:
    """Signal to noise and answers kept, against the float model; where nothing was judged, as measured."""
    verdict = verdict_of(document)
    if verdict is None:
        measured = verification.get("sqnr_db")
        return [] if measured is None else [Figure("SQNR", f"{measured:.1f} dB", "device against float")]
    of = f"against the float model, {verdict.record.samples} {verdict.record.inputs} inputs"
    if verdict.state == "meaningless":
        of += ": says nothing about real data"
    state = {"good": "good", "failed": "bad"}.get(verdict.state, "")
    found = []
    if verdict.worst is not None and verdict.worst.least_db != verdict.sqnr_db:
        of += f"; {verdict.worst.what}: {verdict.worst.least_db:.1f} dB"
    if verdict.sqnr_db is not None:
        found.append(Figure("Accuracy", f"{verdict.sqnr_db:.1f} dB", of, state))
    if verdict.top1_agreement is not None:
        found.append(Figure("Top-1 agreement", percent(verdict.top1_agreement, 0), of, state))
    return found


def counts_text(verification: Mapping[str, Any]) -> str:
    """Everything that was counted while one test vector ran."""
    counted = verification["measured"]
    return "; ".join(f"{label}: {count(counted[key])}" for key, label in COUNTS.items() if key in counted)
