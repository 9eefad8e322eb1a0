"""Engines: cycles of Gemmini's array and DMA as a target gives them, and how well they fit its hardware."""

from __future__ import annotations

from pydantic import Field

from fadiff.costmodel.target.record import Record


class CalibrationError(Record):
    """Predicted against measured cycles of layers that the fit did not see."""

    layers: int = Field(ge=1)
    median_error: float = Field(ge=0)
    p90_error: float = Field(ge=0)


class Engines(Record):
    """Cycles where a target gives its own (`fadiff targets calibrate`); else those fitted to RTL."""

    short_strip: float | None = Field(
        None, description="least cycles of a preload and compute, a fifth of its rows more", gt=0
    )
    new_weights: float | None = Field(
        None, description="cycles of a preload and compute that brings new weights", gt=0
    )
    request: float | None = Field(None, description="per load of at most 64 bytes of one row", gt=0)
    pixel_copy: float | None = Field(None, description="per further copy of a packed pixel", gt=0)
    byte: float | None = Field(None, description="per byte loaded", gt=0)
    miss: float | None = Field(
        None, description="per cache line loaded that the last-level cache lacks", gt=0
    )
    store_row: float | None = Field(None, description="per accumulator row stored", gt=0)
    added_byte: float | None = Field(None, description="per byte that an addition moves", gt=0)
    overlap: float | None = Field(None, description="exponent: 1 adds the engines' times up", ge=1)
    calibration: CalibrationError | None = Field(None, description="how far the fitted clock was off")
