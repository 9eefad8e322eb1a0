"""What each step saves in DRAM traffic: gemmini.h's tiles, ours, fusion, tensors that stay on chip."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.schedule.document import ScheduleDocument
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.emitters.report.text import si


@dataclass(frozen=True)
class Step:
    """DRAM bytes of one way to run the network; width in percent of the most."""

    label: str
    detail: str
    nbytes: str
    width: float
    change: str
    """Against the step before."""


def dram_steps(document: ScheduleDocument, schedule: Schedule) -> list[Step]:
    """As far as they are known, in the order in which they save bytes; the last is this schedule."""
    automatic, unfused = _without_us(document)
    ours = "fused" if any(document.fused) else "scheduled"
    kept = _without_residents(schedule)
    found = [
        (
            "gemmini.h",
            "its automatic tiles, every layer alone",
            automatic,
        ),
        ("unfused", "the best schedule without fusion", unfused),
        (ours, "this schedule with nothing kept on chip between groups", kept),
        (ours if kept is None else "resident", "this schedule", document.totals.dram_bytes),
    ]
    known = [(label, detail, nbytes) for label, detail, nbytes in found if nbytes]
    most = max((nbytes for _, _, nbytes in known), default=1)
    before = [None, *(nbytes for _, _, nbytes in known)]
    return [
        Step(label, detail, si(nbytes, "B"), 100 * nbytes / most, _change(last, nbytes))
        for (label, detail, nbytes), last in zip(known, before, strict=False)
    ]


def _without_us(document: ScheduleDocument) -> tuple[int | None, int | None]:
    """Of gemmini.h's tiles and of the best schedule without fusion, where the search found them; with the
    copies that Gemmini makes here, the core there.
    """
    search = document.search
    copied = sum(layer.dram_bytes for layer in document.layers if layer.op == "copy")
    automatic, unfused = (search.automatic_dram_bytes, search.unfused_dram_bytes) if search else (None, None)
    return automatic and automatic + copied, unfused and unfused + copied


def _change(before: int | None, after: int) -> str:
    return "" if before is None else f"{round(100 * (after / before - 1), 1) + 0.0:+.1f} %"


def _without_residents(schedule: Schedule) -> int | None:
    """None where nothing stays, or where it cannot be told."""
    if not any(group.resident_tensors for group in schedule.groups):
        return None
    groups = tuple(replace(group, resident_tensors=frozenset()) for group in schedule.groups)
    try:
        cost = evaluate(replace(schedule, groups=groups, additions={}))  # which may need whole sums
    except ScheduleError:
        return None
    return sum(sum(moved) for layer in cost.layers for moved in layer.bytes_in("dram").values())
