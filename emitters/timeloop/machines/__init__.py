"""Machines that we wrote, as Timeloop architectures with energies of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fadiff.costmodel.nests.machine import Machine
from fadiff.emitters.timeloop.read.machine import read_machine

FOLDER = Path(__file__).parent


def machine_names() -> list[str]:
    """Of the shipped machines."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def machine_of(name: str, constraints: Sequence[Path] = (), ert: Path | None = None) -> Machine:
    """A shipped machine by its name, else that of an architecture file.

    Raises:
        TimeloopFormatError, MachineError: as `read_machine`.
    """
    shipped = FOLDER / f"{name}.yaml"
    return read_machine(shipped if shipped.is_file() else Path(name), constraints, ert)
