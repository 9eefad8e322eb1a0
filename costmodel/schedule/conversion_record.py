"""What schedule.json says of the conversion: what the front end did, and how good the integers are."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fadiff.costmodel.target.record import Record


class QuantizationRecord(Record):
    """Signal to noise of one tensor, quantised model against float model."""

    tensor: str
    sqnr_db: float


class NoiseRecord(Record):
    """Signal to noise in dB of the integers against the float model; null: no noise, no signal, integers."""

    sqnr_db: float | None = Field(None, description="of all samples together")
    median_db: float | None = Field(None, description="of the median sample")
    tenth_db: float | None = Field(None, description="nine samples in ten have more")
    worst_db: float | None = Field(None, description="of the worst sample")
    rounding_db: float | None = Field(
        None, description="of all samples if nothing but this output were rounded to int8"
    )

    @property
    def least_db(self) -> float | None:
        """What a verdict looks at: all samples together, or nine samples in ten."""
        return min((x for x in (self.sqnr_db, self.tenth_db) if x is not None), default=None)


class PartAccuracyRecord(NoiseRecord):
    """Elements of an output that belong together: an operand of its last Concat, columns of unlike size."""

    part: str
    elements: int


class OutputAccuracyRecord(NoiseRecord):
    """One output of the integers against the float model, but for what only passes through from an input."""

    output: str = Field(description="ONNX name")
    top1_agreement: float | None = Field(
        None, description="share of rows with the float model's largest entry; null: no scores of classes"
    )
    classifies: bool = Field(False, description="probabilities or indices: rows are answers, not vectors")
    parts: tuple[PartAccuracyRecord, ...] = Field((), description="unequal things in it, if there are any")


class AccuracyRecord(Record):
    """The integers (bit for bit those of the device) against the float model in the file."""

    inputs: Literal["test", "calibration", "random"] = Field(description="random says nothing about data")
    samples: int
    outputs: tuple[OutputAccuracyRecord, ...]
    inputs_db: float | None = Field(
        None, description="of the worst output if nothing but the inputs were rounded to int8"
    )


class FloatRecord(Record):
    """Layers kept in float32 beside an int8 array, and what they gain."""

    layers: tuple[str, ...]
    states: tuple[str, ...] = Field((), description="input tensors of states that are float32 between runs")
    before_db: float | None = Field(
        None, description="signal to noise of the worst output on held-out calibration samples without them"
    )
    after_db: float | None = None


class ReachRecord(Record):
    """The worst output on held-out samples, as it is and with every layer in float32 that can be."""

    before_db: float
    after_db: float


class RealisedRecord(Record):
    """Other layers that can do the work of a host operator, and what the program takes so."""

    layer: str
    op: str
    form: str
    cycles_before: int
    cycles_after: int
    taken: bool
    why: Literal["cheaper", "not cheaper", "less accurate", "quicker", "not quicker"] = Field(
        description="by the objective; quicker or not where cycles alone decided (before December 2026)"
    )


class ConversionRecord(Record):
    """What the front end did to the model."""

    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = Field((), description="what speaks against the calibration data")
    quantization: tuple[QuantizationRecord, ...] = ()
    accuracy: AccuracyRecord | None = Field(None, description="null: float32 target")
    kept_float: FloatRecord | None = None
    reach: ReachRecord | None = Field(None, description="null: not tried, int8 is good enough")
    realised: tuple[RealisedRecord, ...] = ()
    runtime_steps: int | None = Field(
        None,
        description="the most int8 steps by which a layer differs from ONNX Runtime's run of the quantised "
        "model when both read the same integers (one sample)",
    )
