"""What `fadiff verify` found: a value that prints as JSON."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

RUNTIME_SQNR_FLOOR = 6.0
"""Below this many decibels the program computes something else than the quantised model: rounding differences
leave 15 and more on most networks, unrelated numbers about 0."""
ROUNDING_SQNR_FLOOR = 3.0
"""The same where no layer by itself differs by more than one step: then rounding was amplified."""
FLOAT_SQNR_FLOOR = 100.0
"""The same where nothing is rounded to integers: 1e-5 of the signal."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class Both(_Record):
    """A measured and a predicted quantity."""

    measured: int
    predicted: int


class Measured(_Record):
    """Counted while one vector ran; all vectors move the same.  Cycles are an estimate."""

    dram_bytes: int
    tile_buffer_bytes: int
    instructions: int
    """Executed, those that hardware loops unroll included."""
    core_instructions: int
    """Issued by the core."""
    instructions_by_kind: dict[str, int]
    estimated_cycles: int
    peak_spad_rows: int
    peak_acc_rows: int


class Predicted(_Record):
    """From schedule.json."""

    dram_bytes: int
    tile_buffer_bytes: int
    latency_cycles: float


class LayerReport(_Record):
    """One layer.  `agrees` and `bit_exact` are None where its output is compared as what is made of it:
    it leaves the accumulator max-pooled, or the layer does a part of a host operator's work.  Roles that read
    one tensor are one entry ("dram I+W").
    """

    name: str
    agrees: bool | None
    """Equal to the reference, within the report's tolerance."""
    bit_exact: bool | None
    """Equal to the reference, bit for bit."""
    max_lsb_diff: float | None
    max_relative_error: float | None
    dram_bytes: Both
    traffic: dict[str, dict[str, Both]]
    """Bytes by "memory role" ("dram W", "tile-buffer I") and direction."""
    estimated_cycles: int
    first_mismatch: dict[str, object] | None = None

    @property
    def traffic_exact(self) -> bool:
        """Whether every tensor moves the predicted bytes in both directions."""
        return all(b.measured == b.predicted for d in self.traffic.values() for b in d.values())


class OutputNoise(_Record):
    """Signal to noise in dB of one output against the float model; None where there is none (`Noise`)."""

    output: str
    sqnr_db: float | None
    median_db: float | None
    tenth_db: float | None
    worst_db: float | None


class VerifyReport(_Record):
    """The outcome; `error` is set when the program broke a rule of the hardware."""

    vectors: int
    vectors_are: Literal["test", "random"] | None = None
    """Given by the user, or drawn: then figures against the float model say nothing about real data.  None:
    not known, where nothing was quantised."""
    tolerance: float = 0.0
    """Largest difference that agrees, relative to a tensor's largest magnitude: 0 (bit for bit) for int8
    targets; sums of float32 round in another order, so theirs is not 0."""
    predicted: Predicted
    measured: Measured | None = None
    layers: tuple[LayerReport, ...] = ()
    first_divergence: dict[str, object] | None = None
    traffic_repeats: bool = True
    """Every vector moved the same bytes."""
    top1_agreement: float | None = None
    """Share of the rows of the first output whose largest entry is the float model's; None if it has no
    [rows, classes]."""
    quantized_top1_agreement: float | None = None
    """The same against ONNX Runtime's run of the quantised model: only rounding differs."""
    sqnr_db: float | None = None
    """The worst output's, of all vectors together."""
    outputs: tuple[OutputNoise, ...] = ()
    runtime_sqnr_db: float | None = None
    """The worst output's against ONNX Runtime's run of the quantised model; None: at most a step off."""
    runtime_steps: int | None = None
    """The most steps by which one layer differs from it, reading the same integers; None: not known."""
    error: str | None = None

    @property
    def compared(self) -> tuple[LayerReport, ...]:
        """The layers whose output is in memory; what others compute shows in their readers."""
        return tuple(layer for layer in self.layers if layer.agrees is not None)

    @property
    def agrees(self) -> bool:
        """Every tensor that the layers leave in memory agrees with the reference, on every vector."""
        return self.error is None and bool(self.compared) and all(layer.agrees for layer in self.compared)

    @property
    def bit_exact(self) -> bool:
        """Every tensor that the layers leave in memory equals the reference, bit for bit."""
        return self.agrees and all(layer.bit_exact for layer in self.compared)

    @property
    def traffic_exact(self) -> bool:
        """Every layer and tensor moves the predicted bytes."""
        exact = bool(self.layers) and all(layer.traffic_exact for layer in self.layers)
        return self.error is None and self.traffic_repeats and exact

    @property
    def meaning_kept(self) -> bool:
        """Outputs follow ONNX Runtime's quantised model, whose rounding differs by steps, not in meaning.

        The integer reference comes from the same graph as the C; this is what catches a wrong graph.  Where a
        network amplifies rounding, ONNX Runtime's int8 run can be further from the program than the float
        model is, which judges as well; and where no layer by itself differs by more than the one step that
        rounding is, twice the noise is rounding, too.
        """
        if self.runtime_sqnr_db is None:
            return True
        if self.tolerance:
            return self.runtime_sqnr_db >= FLOAT_SQNR_FLOOR
        floor = ROUNDING_SQNR_FLOOR if self.runtime_steps in (0, 1) else RUNTIME_SQNR_FLOOR
        return max(self.runtime_sqnr_db, self.sqnr_db or 0) >= floor

    @property
    def passed(self) -> bool:
        """Right numbers, predicted bytes, and the meaning of the model."""
        return self.agrees and self.traffic_exact and self.meaning_kept

    def as_dict(self) -> dict[str, Any]:
        """The JSON of `fadiff verify --json`."""
        head: dict[str, Any] = {
            "passed": self.passed,
            "agrees": self.agrees,
            "bit_exact": self.bit_exact,
            "traffic_exact": self.traffic_exact,
        }
        return {**head, **self.model_dump(mode="json")}
