"""`index.yaml`: which files belong together and what is known about each run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from fadiff.costmodel.target.record import Record
from fadiff.costmodel.target.text_file import load_yaml
from fadiff.costmodel.target.validation import one_line
from fadiff.emitters.timeloop.read.yaml_lines import TimeloopFormatError

FORMAT: Literal[1] = 1


class Predicted(Record):
    """What Timeloop should find: cycles, pJ, words read and written (all instances) by `level.data space`."""

    cycles: int
    energy_pj: float
    accesses: dict[str, tuple[int, int]]


class IndexEntry(Record):
    """One run: files (relative to the index), how often the layer does it, how exact Timeloop is.

    `predicted` is None where a schedule says it (`fadiff compile`).
    """

    layer: str
    arch: str
    problem: str
    mapping: str | None
    runs: int
    factors: Literal["perfect", "imperfect", "none"]
    notes: tuple[str, ...] = ()
    predicted: Predicted | None = None


class Index(Record):
    """The manifest of a folder of Timeloop files."""

    format: Literal[1]
    model: str
    target: str
    profile: Literal["hw", "dosa"]
    dialect: Literal["native", "frontend"]
    layers: tuple[IndexEntry, ...]


def read_index(path: Path) -> Index:
    """Read `index.yaml`.

    Raises:
        TimeloopFormatError: unreadable, no YAML, or a field that does not validate.
    """
    try:
        return Index.model_validate(load_yaml(path))
    except OSError as error:
        raise TimeloopFormatError(
            f"{path}: cannot read: {error.strerror}; compile the model first"
        ) from error
    except ValidationError as error:
        raise TimeloopFormatError(f"{path}: {one_line(error, Index)}") from error
