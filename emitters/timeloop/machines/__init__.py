"""Machines that we wrote, as Timeloop architectures with energies of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fadiff.costmodel.nests.machine import Machine
from fadiff.emitters.timeloop.read.machine import read_machine
from fadiff.emitters.timeloop.read.yaml_lines import TimeloopFormatError

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
    if shipped.is_file():
        return read_machine(shipped, constraints, ert)
    if not Path(name).exists():
        known = ", ".join(machine_names())
        raise TimeloopFormatError(f"{name}: no such file, and no shipped machine; these are {known}")
    return read_machine(Path(name), constraints, ert)
