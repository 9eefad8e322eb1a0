"""An output folder: names of its files, and reading back what is in it."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fadiff.converter.errors import BadInput
from fadiff.converter.names import printable
from fadiff.costmodel.target.text_file import load_json
from fadiff.errors import InputError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from fadiff.costmodel.schedule.document import ScheduleDocument
    from fadiff.costmodel.schedule.measurement import Measurement
    from fadiff.emitters.memory_map import MemoryMap
    from fadiff.emulator.report import VerifyReport

SCHEDULE = "schedule.json"
ENTRIES = "entries.json"
MEMORY_MAP = "memory_map.json"
Model = TypeVar("Model", bound="BaseModel")


class OutputFolder:
    """What `fadiff compile` wrote to `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entry = path.name if path.name in entry_names(path.parent) else ""
        """Its name, where it is one of several entries of a firmware."""
        self.schedule = path / SCHEDULE
        """The whole decision."""
        self.target = path / "target.yaml"
        """The hardware as a target file."""
        self.firmware = (path.parent if self.entry else path) / "firmware"
        """C sources, weights and memory map; absent for the dosa profile."""
        self.timeloop = path / "timeloop"
        """Architecture, problems and mappings."""
        self.verification_data = path / "verify"
        """What verification needs: models and test vectors."""
        self.verification = self.verification_data / "result.json"
        """What the last `fadiff verify` measured."""
        self.measurement = path / "measured.json"
        """What the last `fadiff measure` found on hardware."""
        self.table = path / "layers.csv"
        """The layers, for spreadsheets."""
        self.report = path / "report.html"
        """The report for people."""

    @cached_property
    def document(self) -> ScheduleDocument:
        """schedule.json; raises InputError where the folder is none of ours."""
        from fadiff.costmodel.schedule.serialize import read_document

        if not self.path.is_dir():
            raise InputError(f"{self.path}: no such folder: give the --out folder of fadiff compile")
        if not self.schedule.is_file():
            raise InputError(f"{self.path}: no {SCHEDULE} in it: give the --out folder of fadiff compile")
        return read_document(self.schedule)

    def measured(self) -> Measurement | None:
        """The last measurement, None where there is none; InputError where the file is none of ours."""
        from fadiff.costmodel.schedule.measurement import Measurement

        return _record(self.measurement, Measurement, "measurement", "measure")

    def verified(self) -> VerifyReport | None:
        """The last verification, None where there is none; InputError where the file is none of ours."""
        from fadiff.emulator.report import VerifyReport

        return _record(self.verification, VerifyReport, "verification", "verify")

    def memory_map(self) -> MemoryMap | None:
        """What the firmware keeps where, None where there is none; MemoryMapError where it is damaged."""
        from fadiff.emitters.memory_map import read_memory_map

        path = self.firmware / self.map_name
        return read_memory_map(path) if path.is_file() else None

    @property
    def map_name(self) -> str:
        """The file of the memory map among those of the firmware."""
        return f"{self.entry}.{MEMORY_MAP}" if self.entry else MEMORY_MAP

    def refresh_report(self) -> Path:
        """Write report.html from what the folder has now."""
        from fadiff.emitters.report import render

        memory, verified = self.memory_map(), self.verified()
        source = self.firmware / f"{Path(memory.model).name}.c" if memory else None
        text = render(
            self.document,
            None if verified is None else verified.as_dict(),
            memory,
            self.measured(),
            source.read_text(encoding="utf-8") if source and source.is_file() else "",
        )
        self.report.write_text(text, encoding="utf-8")
        return self.report


def entry_names(path: Path) -> tuple[str, ...]:
    """The entries of the firmware in an output folder, by the folders that they have in it; none: it has one
    function, or is no output folder."""
    try:
        names = (_json(path / ENTRIES) or {}).get("entries", [])
    except (BadInput, OSError):
        return ()
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def obstacle_to_deleting(path: Path) -> str:
    """Why a folder may hold what `fadiff compile` did not write, nothing where it is ours."""
    if entries := entry_names(path):
        common = {*entries, ENTRIES, "firmware", "report.html"}
        others = sorted(entry.name for entry in path.iterdir() if entry.name not in common)
        found = (obstacle_to_deleting(path / name) for name in entries if (path / name).is_dir())
        return f"{printable(others[0])} is none of its files" if others else next(filter(None, found), "")
    ours = OutputFolder(path)
    try:
        content = _json(ours.schedule) or {}
    except BadInput:
        content = {}
    if not str(content.get("generator", "")).startswith("fadiff ") or "version" not in content:
        return f"no {SCHEDULE} of fadiff in it"
    known = (
        ours.schedule,
        ours.target,
        ours.firmware,
        ours.timeloop,
        ours.verification_data,
        ours.measurement,
        ours.table,
        ours.report,
    )
    other = sorted(entry.name for entry in path.iterdir() if entry not in known)
    return f"{printable(other[0])} is none of its files" if other else ""


def _record(path: Path, kind: type[Model], what: str, command: str) -> Model | None:
    """What `fadiff COMMAND` left in a file, None where there is none."""
    from pydantic import ValidationError

    content = _json(path)
    try:
        return None if content is None else kind.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{path}: no {what}: run fadiff {command} again") from error


def _json(path: Path) -> dict[str, Any] | None:
    """A JSON object, None where there is no such file."""
    if not path.is_file():
        return None
    content = load_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a JSON object")
    return content
