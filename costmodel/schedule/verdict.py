"""What to make of the accuracy of a compiled model: a verdict, the layers that lose it, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fadiff.converter.ir.states import LOST_BY_STATES
from fadiff.costmodel.schedule.conversion_record import AccuracyRecord
from fadiff.costmodel.schedule.document import ScheduleDocument

State = Literal["good", "poor", "failed", "meaningless"]

MIN_SQNR_DB = 10.0
POOR_SQNR_DB = 20.0
"""Between these two there is a warning: noise is a tenth of the signal, or more."""
MIN_TOP1 = 90.0
"""Percent of answers."""
SHOWN_LAYERS = 3
_CLEAN_DB = 45.0
"""What is assumed of values that are not rounded before: model inputs."""
_LOSS_DB = 3.0


@dataclass(frozen=True)
class Loss:
    """A layer, and the signal to noise of what it reads (its worst input) and writes."""

    layer: str
    before_db: float
    after_db: float


@dataclass(frozen=True)
class Verdict:
    """The verdict over all outputs.

    `sqnr_db` is the worst output's, None without noise; `top1_agreement` the least, None without classes.
    """

    state: State
    record: AccuracyRecord
    sqnr_db: float | None
    top1_agreement: float | None
    losses: tuple[Loss, ...]
    remedy: str

    @property
    def passed(self) -> bool:
        """Whether this is no reason to fail."""
        return self.state != "failed"

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "state": self.state,
            "sqnr_db": self.sqnr_db,
            "top1_agreement": self.top1_agreement,
            **self.record.model_dump(mode="json"),
            "losses": [vars(loss) for loss in self.losses],
        }

    def lines(self) -> list[str]:
        """For people: one line of figures, more where they are bad."""
        figures = figures_of(self.sqnr_db, self.top1_agreement) or "equal"
        head = f"{figures} against the float model on {self.record.samples} {self.record.inputs} inputs"
        if self.state == "meaningless":
            return [f"{head}: says nothing about real data ({self.remedy})"]
        if self.state == "good":
            return [head]
        word = "FAILED" if self.state == "failed" else "poor"
        lost = [f"{x.layer}: {x.before_db:.1f} dB in, {x.after_db:.1f} dB out" for x in self.losses]
        return [f"{head}: {word}", *(f"lost at {line}" for line in lost[:SHOWN_LAYERS]), self.remedy]


def verdict_of(
    document: ScheduleDocument, min_sqnr: float | None = None, min_top1: float | None = None
) -> Verdict | None:
    """Judge what schedule.json says of the outputs; None where nothing was quantised.

    Failed: an output below `min_sqnr` decibels (MIN_SQNR_DB by default), or fewer than `min_top1` percent
    (MIN_TOP1) of answers as the float model's.  Scores that no softmax made may be any vector: they only
    fail with noise worth a warning.
    """
    record = document.conversion.accuracy
    if record is None:
        return None
    least = MIN_SQNR_DB if min_sqnr is None else min_sqnr
    share = (MIN_TOP1 if min_top1 is None else min_top1) / 100
    ratios = [output.sqnr_db for output in record.outputs if output.sqnr_db is not None]
    shares = [output.top1_agreement for output in record.outputs if output.top1_agreement is not None]
    worst = min(ratios, default=None)
    state: State = "good"
    if record.inputs == "random":
        state = "meaningless"
    elif (worst is not None and worst < least) or any(
        output.top1_agreement is not None
        and output.top1_agreement < share
        and (output.classifies or (output.sqnr_db is not None and output.sqnr_db < POOR_SQNR_DB))
        for output in record.outputs
    ):
        state = "failed"
    elif worst is not None and worst < max(POOR_SQNR_DB, least):
        state = "poor"
    return Verdict(
        state, record, worst, min(shares, default=None), losses(document), _remedy(document, state)
    )


def losses(document: ScheduleDocument) -> tuple[Loss, ...]:
    """Layers by how much signal to noise is lost between what they read and what they write, most first."""
    ratio = {row.tensor: row.sqnr_db for row in document.conversion.quantization}
    computed = {name for layer in document.layers for name in layer.outputs}
    found = []
    for layer in document.layers:
        after = min((ratio[name] for name in layer.outputs if name in ratio), default=None)
        before = [ratio[name] for name in layer.inputs if name in ratio]
        unknown = any(name in computed and name not in ratio for name in layer.inputs)
        if after is None or (unknown and not before):
            continue
        loss = Loss(layer.name, min([_CLEAN_DB, *before]), after)
        if loss.before_db - loss.after_db >= _LOSS_DB:
            found.append(loss)
    return tuple(sorted(found, key=lambda loss: loss.after_db - loss.before_db))


def _remedy(document: ScheduleDocument, state: State) -> str:
    if state == "meaningless":
        return "give real inputs with --calibration FILE.npz"
    notes: Sequence[str] = document.conversion.notes
    if any("requantised" in note or "from the file" in note for note in notes):
        return "convert the float model with --calibration FILE.npz instead of the quantised file"
    if any("no calibration data" in note for note in notes):
        return "the ranges come from random inputs: give real ones with --calibration FILE.npz"
    lost_by_states = next((note for note in notes if LOST_BY_STATES in note), None)
    if lost_by_states is not None:
        return f"{lost_by_states}; docs/accuracy.md has more"
    if document.conversion.kept_float is None and state == "failed":
        keep = f"keep the layers that lose it in float32: --keep-float auto --min-sqnr {POOR_SQNR_DB:.0f}"
        return f"give more (or more typical) calibration inputs, or {keep}; docs/accuracy.md has more"
    return "give more (or more typical) calibration inputs, or a float32 target; docs/accuracy.md has more"


def figures_of(sqnr_db: float | None, top1_agreement: float | None) -> str:
    """In words; empty where neither is known."""
    noise = "" if sqnr_db is None else f"SQNR {sqnr_db:.1f} dB"
    answers = "" if top1_agreement is None else f"top-1 {100 * top1_agreement:.1f} %"
    return ", ".join(filter(None, (noise, answers)))
