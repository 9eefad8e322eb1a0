"""What a program took on hardware: what firmware with -DFADIFF_PROFILE prints, and measured.json."""

from __future__ import annotations

import re
from typing import Literal

from fadiff.converter.errors import BadInput
from fadiff.costmodel.target.record import Record

Unit = Literal["cycles", "instructions"]

_HEADER = re.compile(r"fadiff-profile 1 (\w+) ([0-9a-f]{64}|unknown)")
_RUN = re.compile(r"fadiff-run (cold|warm|layers) (\d+)")
_LAYER = re.compile(r"fadiff-layer (\d+) (\d+) (\d+)")
_END = "fadiff-profile end"


class MeasurementError(BadInput, ValueError):
    """A log that is no measurement of this program; the message names it and the remedy."""


class LayerMeasurement(Record):
    """One layer, all its calls in one run together; fences at both ends."""

    name: str
    calls: int
    measured: int
    predicted: float


class Measurement(Record):
    """measured.json: one measurement of one output folder.

    `cold` and `warm` are whole runs without observer; `layers` are those of a third run, in which fences
    around every layer forbid overlap, so that their sum may exceed `warm`.
    """

    version: Literal[1] = 1
    source: str
    """The command or the log."""
    unit: Unit
    """`instructions` where the machine counts those (Spike): then nothing here is a time."""
    cold: int
    warm: int
    predicted: float
    layers: tuple[LayerMeasurement, ...]

    @property
    def error(self) -> float:
        """Predicted over measured (warm), minus one."""
        return self.predicted / self.warm - 1 if self.warm else 0.0


def read_profile(
    text: str,
    source: str,
    *,
    sha256: str | None,
    predicted: dict[str, float],
    total: float,
    unit: Unit,
    program: str = "",
) -> Measurement:
    """The measurement in a console log; anything else in the log is passed over.

    Args:
        text: What the program printed, with whatever a simulator or a serial line adds.
        source: Names the log in messages and in the result.
        sha256: Of the ONNX file that the folder was made from; a program made of another is refused.
        predicted: Predicted cycles of each layer, in the order of the firmware's layer table.
        total: Predicted cycles of the network.
        unit: What the machine counts.
        program: Of several entries that one log has, the one that is called so.

    Raises:
        MeasurementError: no table, half a table, or that of another program.
    """
    headers = list(_HEADER.finditer(text))
    if len(headers) > 1:
        headers = [found for found in headers if found[1] == program]
    if not headers:
        raise MeasurementError(
            f"{source}: no line 'fadiff-profile' of {program or 'a program'}: run the program that "
            "`make profile` builds, and keep all that it prints"
        )
    header = headers[0]
    if sha256 and header[2] not in (sha256, "unknown"):
        raise MeasurementError(
            f"{source}: the program is that of another model ({header[1]}): run this folder's"
        )
    table = text[header.end() :]
    end = table.find(_END)
    if end < 0:
        raise MeasurementError(f"{source}: the table breaks off before '{_END}': the run did not finish")
    table = table[:end]
    runs = {name: int(count) for name, count in _RUN.findall(table)}
    rows = {int(index): (int(calls), int(count)) for index, calls, count in _LAYER.findall(table)}
    if set(runs) != {"cold", "warm", "layers"} or sorted(rows) != list(range(len(predicted))):
        raise MeasurementError(
            f"{source}: {len(rows)} layers and {len(runs)} runs, expected {len(predicted)} and 3: lines are "
            "missing, or the program was made from another schedule"
        )
    return Measurement(
        source=source,
        unit=unit,
        cold=runs["cold"],
        warm=runs["warm"],
        predicted=total,
        layers=tuple(
            LayerMeasurement(name=name, calls=rows[index][0], measured=rows[index][1], predicted=cycles)
            for index, (name, cycles) in enumerate(predicted.items())
        ),
    )
