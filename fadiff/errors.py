"""How an error becomes one line and an exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fadiff.converter.errors import BadInput

OK: Final = 0
CHECK_FAILED: Final = 1
BAD_INPUT: Final = 2
INTERNAL: Final = 3


EXTRAS: Final = {
    "torch": "torch",
    "onnxscript": "torch",
    "sklearn": "samples",
    "optuna": "baselines",
    "pymoo": "baselines",
    "distributed": "cluster",
}
"""Optional packages, by the name they are imported by, and the extra that brings them."""


class InputError(BadInput):
    """Of a command or its files."""


@contextmanager
def naming(file: str | Path, on: str = "") -> Iterator[None]:
    """Put the file (and the target it is tried `on`) before messages that know only its layers."""
    from fadiff.costmodel.group.fusion import ScheduleError
    from fadiff.costmodel.nests.machine import MachineError
    from fadiff.costmodel.schedule.serialize import ScheduleFileError

    try:
        yield
    except (ScheduleError, ScheduleFileError, MachineError) as error:
        raise type(error)(f"{file}{on and f' on {on}'}: {error}") from error


def is_bad_input(error: BaseException) -> bool:
    """Whether `error` is the user's to mend (exit code 2) and not a bug of ours (3)."""
    return isinstance(error, BadInput | MemoryError | OSError) or bool(_missing(error))


def _missing(error: BaseException) -> str:
    """The optional package that is not installed, empty for other errors."""
    package = (error.name or "").split(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return package if package in EXTRAS else ""


def remedy(package: str) -> str:
    """What to do where an optional package is not installed."""
    return f"this needs {package}: pip install 'fadiff[{EXTRAS[package]}]'"


def one_line(error: BaseException) -> str:
    """The message for the terminal; an OSError is put in order as 'file: reason'."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if package := _missing(error):
        return remedy(package)
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}; give smaller --dim sizes" if str(error) else "not enough memory"
    return str(error) or type(error).__name__
