"""What schedule.json says of the conversion: what the front end did, and how good the integers are."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fadiff.costmodel.target.record import Record


class QuantizationRecord(Record):
    """Signal to noise of one tensor, quantised model against float model."""

    tensor: str
    sqnr_db: float


class OutputAccuracyRecord(Record):
    """One output of the integers against the float model."""

    output: str = Field(description="ONNX name")
    sqnr_db: float | None = Field(None, description="null: no noise, no signal, or an integer output")
    top1_agreement: float | None = Field(
        None, description="share of rows with the float model's largest entry; null: no scores of classes"
    )
    classifies: bool = Field(False, description="probabilities or indices: rows are answers, not vectors")


class AccuracyRecord(Record):
    """The integers (bit for bit those of the device) against the float model in the file."""

    inputs: Literal["test", "calibration", "random"] = Field(description="random says nothing about data")
    samples: int
    outputs: tuple[OutputAccuracyRecord, ...]


class FloatRecord(Record):
    """Layers kept in float32 beside an int8 array, and what they gain."""

    layers: tuple[str, ...]
    states: tuple[str, ...] = Field((), description="input tensors of states that are float32 between runs")
    before_db: float | None = Field(
        None, description="signal to noise of the worst output on held-out calibration samples without them"
    )
    after_db: float | None = None


class ConversionRecord(Record):
    """What the front end did to the model."""

    notes: tuple[str, ...] = ()
    quantization: tuple[QuantizationRecord, ...] = ()
    accuracy: AccuracyRecord | None = Field(None, description="null: float32 target")
    kept_float: FloatRecord | None = None
    runtime_steps: int | None = Field(
        None,
        description="the most int8 steps by which a layer differs from ONNX Runtime's run of the quantised "
        "model when both read the same integers (one sample)",
    )
