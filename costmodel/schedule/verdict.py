"""What to make of the accuracy of a compiled model: a verdict, where it is lost, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fadiff.converter.ir.recurrence import LOST_BY_STATES
from fadiff.costmodel.schedule.conversion_record import AccuracyRecord, NoiseRecord, PartAccuracyRecord
from fadiff.costmodel.schedule.document import ScheduleDocument

State = Literal["good", "poor", "failed", "meaningless"]

MIN_SQNR_DB = 10.0
POOR_SQNR_DB = 20.0
"""Between these two there is a warning: noise is a tenth of the signal, or more."""
MIN_TOP1 = 90.0
"""Percent of answers."""
SHOWN_LAYERS = 3
_CLEAN_DB = 45.0
"""What is assumed of values that are not rounded before."""
_LOSS_DB = 3.0
"""What loses half of the signal to noise; what alone has at most so much more than the whole loses it."""


@dataclass(frozen=True)
class Loss:
    """A layer, and the signal to noise of what it reads (its worst input) and writes; `before_db` is None
    for inputs and outputs of the model, which were rounded alone."""

    layer: str
    before_db: float | None
    after_db: float

    def __str__(self) -> str:
        if self.before_db is None:
            return f"{self.layer}: {self.after_db:.1f} dB if nothing else were rounded to int8"
        return f"{self.layer}: {self.before_db:.1f} dB in, {self.after_db:.1f} dB out"


@dataclass(frozen=True)
class Figure:
    """What the verdict looks at of an output, or of a part of it."""

    what: str
    record: NoiseRecord
    least_db: float


@dataclass(frozen=True)
class Verdict:
    """The verdict over all outputs.

    `sqnr_db` is the worst output's over all samples together, None without noise; `top1_agreement` the
    least, None without classes; `worst` what is lowest of outputs (in nine of ten samples) and their parts.
    """

    state: State
    record: AccuracyRecord
    sqnr_db: float | None
    top1_agreement: float | None
    worst: Figure | None
    low: tuple[Figure, ...]
    """What has less than POOR_SQNR_DB, or than was asked for, lowest first."""
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
            "least_db": self.worst.least_db if self.worst is not None else None,
            "least_of": self.worst.what if self.worst is not None else None,
            **self.record.model_dump(mode="json"),
            "losses": [vars(loss) for loss in self.losses],
        }

    def lines(self) -> list[str]:
        """For people: one line of figures, more where they are bad."""
        figures = figures_of(self.sqnr_db, self.top1_agreement, self._samples()) or "equal"
        head = f"{figures} against the float model on {self.record.samples} {self.record.inputs} inputs"
        if self.state == "good":
            return [head]
        low = [f"{x.what}: {x.least_db:.1f} dB" for x in self.low]
        if self.state == "meaningless":
            parts = [line for line, x in zip(low, self.low, strict=True) if _by_rounding(x) is not None]
            return [f"{head}: says nothing about real data ({self.remedy})", *parts[:SHOWN_LAYERS]]
        word = "FAILED" if self.state == "failed" else "poor"
        lost = [f"lost at {x}" for x in self.losses]
        return [f"{head}: {word}", *low[:SHOWN_LAYERS], *lost[:SHOWN_LAYERS], self.remedy]

    def _samples(self) -> str:
        """Of single samples, of the worst output."""
        outputs = (o for o in self.record.outputs if o.sqnr_db is not None and o.median_db is not None)
        output = min(outputs, key=lambda o: o.sqnr_db or 0.0, default=None)
        if output is None or self.record.samples < 2:
            return ""
        return (
            f"median sample {output.median_db:.1f}, nine in ten {output.tenth_db:.1f}, "
            f"worst {output.worst_db:.1f}"
        )


def verdict_of(
    document: ScheduleDocument, min_sqnr: float | None = None, min_top1: float | None = None
) -> Verdict | None:
    """Judge what schedule.json says of the outputs; None where nothing was quantised.

    Failed: an output, nine samples in ten of it, or a part of it below `min_sqnr` decibels (MIN_SQNR_DB by
    default), or fewer than `min_top1` percent (MIN_TOP1) of answers as the float model's.  Scores that no
    softmax made may be any vector: alone they are a reason for a warning, and fail with noise that is one.
    """
    record = document.conversion.accuracy
    if record is None:
        return None
    least = MIN_SQNR_DB if min_sqnr is None else min_sqnr
    share = (MIN_TOP1 if min_top1 is None else min_top1) / 100
    figures = sorted(_figures(record), key=lambda figure: figure.least_db)
    low = tuple(figure for figure in figures if figure.least_db < max(POOR_SQNR_DB, least))
    unlike = [o for o in record.outputs if o.top1_agreement is not None and o.top1_agreement < share]
    ratios = [output.sqnr_db for output in record.outputs if output.sqnr_db is not None]
    shares = [output.top1_agreement for output in record.outputs if output.top1_agreement is not None]
    state: State = "good"
    if record.inputs == "random":
        state = "meaningless"
    elif (low and low[0].least_db < least) or any(
        o.classifies or (o.least_db is not None and o.least_db < POOR_SQNR_DB) for o in unlike
    ):
        state = "failed"
    elif low or unlike:
        state = "poor"
    return Verdict(
        state,
        record,
        min(ratios, default=None),
        min(shares, default=None),
        figures[0] if figures else None,
        low,
        (*_alone(record, low), *losses(document)),
        _remedy(document, state, low),
    )


def is_poor(record: AccuracyRecord) -> bool:
    """Whether an output or a part of it is, in noise or in answers, by default."""
    answers = (o.top1_agreement for o in record.outputs if o.top1_agreement is not None)
    noisy = any(figure.least_db < POOR_SQNR_DB for figure in _figures(record))
    return noisy or any(share < MIN_TOP1 / 100 for share in answers)


def _figures(record: AccuracyRecord) -> Iterator[Figure]:
    """Of every output and part that has noise."""
    for output in record.outputs:
        if (least := output.least_db) is not None:
            what = "nine samples in ten of " if least == output.tenth_db != output.sqnr_db else ""
            yield Figure(f"{what}{output.output}", output, least)
        for part in output.parts:
            if part.sqnr_db is not None:
                yield Figure(f"{part.part} of {output.output}", part, part.sqnr_db)


def _alone(record: AccuracyRecord, low: Sequence[Figure]) -> Iterator[Loss]:
    """What inputs and outputs lose that were rounded alone, where that is what was lost."""
    if not low:
        return
    whole = low[0].record.sqnr_db
    if record.inputs_db is not None and whole is not None and record.inputs_db < whole + _LOSS_DB:
        yield Loss("the inputs", None, record.inputs_db)
    if (rounding := _by_rounding(low[0])) is not None:
        yield Loss(low[0].what, None, rounding)


def _by_rounding(figure: Figure) -> float | None:
    """What rounding leaves of an output or part, where little more is lost before."""
    rounding, found = figure.record.rounding_db, figure.record.sqnr_db
    return rounding if rounding is not None and found is not None and rounding < found + _LOSS_DB else None


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
        worst = min([_CLEAN_DB, *before])
        if worst - after >= _LOSS_DB:
            found.append((worst - after, Loss(layer.name, worst, after)))
    return tuple(loss for _, loss in sorted(found, key=lambda entry: -entry[0]))


def _remedy(document: ScheduleDocument, state: State, low: Sequence[Figure]) -> str:
    """What to do; nothing that was tried without success."""
    if state == "meaningless":
        return "give real inputs with --calibration FILE.npz"
    conversion, record = document.conversion, document.conversion.accuracy
    notes: Sequence[str] = conversion.notes
    if any("requantised" in note or "from the file" in note for note in notes):
        return "convert the float model with --calibration FILE.npz instead of the quantised file"
    if any("no calibration data" in note for note in notes):
        return "the ranges come from random inputs: give real ones with --calibration FILE.npz"
    if conversion.doubts:
        return conversion.doubts[0]
    if record is not None and next(iter(_alone(record, low)), None) is not None:
        return _remedy_of_ends(record, low)
    lost_by_states = next((note for note in notes if LOST_BY_STATES in note), None)
    if lost_by_states is not None:
        return f"{lost_by_states}; docs/accuracy.md has more"
    reach = conversion.reach
    if reach is None or conversion.kept_float is not None:
        return (
            "give more (or more typical) calibration inputs, or a float32 target; docs/accuracy.md has more"
        )
    gain = f"{reach.before_db:.1f} -> {reach.after_db:.1f} dB on held-out samples"
    if reach.after_db < reach.before_db + _LOSS_DB:
        return f"layers in float32 would not help ({gain} with all that can be); a float32 target would"
    goal = int(min(POOR_SQNR_DB, reach.after_db))
    return f"keep the layers that lose it in float32: --keep-float auto --min-sqnr {goal} ({gain} with all)"


def _remedy_of_ends(record: AccuracyRecord, low: Sequence[Figure]) -> str:
    """Where inputs or outputs alone lose it."""
    if _by_rounding(low[0]) is None:
        return "one int8 scale is too coarse for the inputs: scale their columns alike, or a float32 target"
    part = low[0].record
    if not isinstance(part, PartAccuracyRecord):
        return "one int8 scale is too coarse for this output: a float32 target has none"
    whole = next(output for output in record.outputs if part in output.parts)
    joined = [other.part for other in whole.parts]
    if len(joined) == 1:
        return (
            "one int8 scale serves columns of unlike size: scale them alike in the model, or a float32 target"
        )
    return f"one int8 scale serves parts of unlike size: make them outputs with --outputs {','.join(joined)}"


def figures_of(sqnr_db: float | None, top1_agreement: float | None, samples: str = "") -> str:
    """In words; empty where neither is known."""
    noise = "" if sqnr_db is None else f"SQNR {sqnr_db:.1f} dB{samples and f' ({samples})'}"
    answers = "" if top1_agreement is None else f"top-1 {100 * top1_agreement:.1f} %"
    return ", ".join(filter(None, (noise, answers)))
