"""Timeloop's YAML with its line numbers kept, so that a wrong entry is reported where it stands."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import yaml

from fadiff.converter.errors import ModelError
from fadiff.costmodel.target.text_file import FormatError, compose_yaml


class TimeloopFormatError(ModelError):
    """A Timeloop file that cannot be read; the message is `file:line: field: what and remedy`."""


@dataclass(frozen=True)
class Entry:
    """One node of a YAML file, with the field path that leads to it.

    Tags (`!Component`, `!Mapping` of the front-end dialect) are ignored, nothing is constructed.
    """

    file: Path
    field: str
    node: yaml.Node

    @property
    def line(self) -> int:
        """Counted from one."""
        return int(self.node.start_mark.line) + 1

    def fail(self, problem: str) -> NoReturn:
        """Raise the one-line error for this entry."""
        where = f" {self.field}:" if self.field else ""
        raise TimeloopFormatError(f"{self.file}:{self.line}:{where} {problem}")

    def keys(self) -> dict[str, Entry]:
        """The entries of a map; `-` and `_` in keys mean the same, as in Timeloop since 2024-02."""
        if not isinstance(self.node, yaml.MappingNode):
            self.fail("expected a map (key: value)")
        found: dict[str, Entry] = {}
        for key, value in self.node.value:
            name = str(key.value).replace("-", "_")
            entry = Entry(self.file, f"{self.field}.{name}".lstrip("."), value)
            if name in found:
                Entry(self.file, entry.field, key).fail("given twice")
            found[name] = entry
        return found

    def required(self, what: str, *names: str) -> dict[str, Entry]:
        """The entries of a map that must have some: `what` is it, `names` are they."""
        found = self.keys()
        if any(name not in found for name in names):
            self.fail(f"{what} needs {' and '.join(f'`{name}:`' for name in names)}")
        return found

    def items(self) -> Iterator[Entry]:
        """The entries of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            self.fail("expected a list")
        for index, value in enumerate(self.node.value):
            yield Entry(self.file, f"{self.field}[{index}]", value)

    @property
    def is_text(self) -> bool:
        """Whether this is a single value."""
        return isinstance(self.node, yaml.ScalarNode)

    @property
    def is_list(self) -> bool:
        """Whether this is a list."""
        return isinstance(self.node, yaml.SequenceNode)

    @property
    def is_map(self) -> bool:
        """Whether this is a map."""
        return isinstance(self.node, yaml.MappingNode)

    def text(self) -> str:
        """A scalar as it is written."""
        if not isinstance(self.node, yaml.ScalarNode):
            self.fail("expected a single value")
        return str(self.node.value)

    def positive(self) -> int:
        """A positive integer."""
        text = self.text()
        if not text.isdecimal() or len(text) > 18 or int(text) < 1:
            self.fail(f"{text!r} is not a positive integer")
        return int(text)

    def number(self) -> float:
        """A number that is not negative."""
        try:
            found = float(self.text())
        except ValueError:
            found = math.nan
        if not 0 <= found < math.inf:
            self.fail(f"{self.text()!r} is not a number of zero or more")
        return found

    def texts(self) -> list[str]:
        """A list of scalars."""
        return [item.text() for item in self.items()]


def read_root(path: Path, key: str) -> Entry:
    """The entry `key` of the top-level map of a YAML file.

    Raises:
        TimeloopFormatError: as `read_entries`, or it lacks `key`.
    """
    entries = read_entries(path)
    if key not in entries:
        found = ", ".join(entries) or "nothing"
        raise TimeloopFormatError(f"{path}:1: no `{key}:` entry (found {found})")
    return entries[key]


def read_entries(path: Path) -> dict[str, Entry]:
    """The top-level map of a YAML file.

    Raises:
        TimeloopFormatError: the file cannot be read, is no YAML, or is empty.
    """
    try:
        root = compose_yaml(path)
    except OSError as error:
        raise TimeloopFormatError(f"{path}: cannot read: {error.strerror}") from error
    except FormatError as error:
        raise TimeloopFormatError(str(error)) from error
    if root is None:
        raise TimeloopFormatError(f"{path}:1: the file is empty; expected `key:` entries")
    return Entry(path, "", root).keys()
