"""The CSV file of a sweep: a row as soon as a point is finished, so that a sweep can go on where it ended."""

from __future__ import annotations

import csv
import fcntl
import io
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fadiff.errors import InputError
from fadiff.output import naming_file

KEY = "key"
"""The column that says what a row is of: a hash of the model, the hardware and the search."""

Row = Mapping[str, Any]


class SweepTable:
    """Rows by key, kept in a file; to be used in a `with` block.

    Rows that the file had before are in `rows`, with texts as values.  Without a path nothing is kept.
    """

    def __init__(self, path: Path | None, columns: Sequence[str], *, force: bool) -> None:
        """Open the file, or make it.

        Raises:
            InputError: it holds something else (without force), or another sweep writes it.
        """
        self.path = path
        self.columns = [*columns, KEY]
        self.rows: dict[str, Row] = {}
        if path is None:
            return
        self._file = path.open("r+b" if path.exists() else "w+b")
        with ExitStack() as refused:
            refused.callback(self._file.close)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InputError(f"{path}: another sweep is writing it: choose another name") from error
            if force:
                self._file.truncate(0)
            self._read(path)
            refused.pop_all()

    def __enter__(self) -> SweepTable:
        return self

    def __exit__(self, *_: object) -> None:
        if self.path is not None:
            self._file.close()

    def add(self, key: str, row: Row) -> None:
        """Keep one more row; it is on the disk when this returns."""
        self.rows[key] = {**row, KEY: key}
        if self.path is not None:
            self._write([self.rows[key]])

    def sort(self, keys: Sequence[str]) -> None:
        """Put the rows in this order; those of other sweeps come behind."""
        if self.path is None:
            return
        rest = [key for key in self.rows if key not in set(keys)]
        ordered = [self.rows[key] for key in (*dict.fromkeys(keys), *rest)]
        sorted_file = self.path.with_name(f".{self.path.name}.sorted")
        with naming_file(self.path), sorted_file.open("wb") as file:
            file.write(self._header() + self._lines(ordered))
        sorted_file.replace(self.path)

    def _read(self, path: Path) -> None:
        """What the file has; a last line that was not finished is cut off."""
        self._file.seek(0)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        header = self._header()
        if not (content.startswith(header) or header.startswith(content)):
            raise InputError(
                f"{path}: already exists, with other columns: choose another name, or replace it with --force"
            )
        self._file.truncate(len(whole))
        self._file.seek(len(whole))
        if not whole:
            self._write([], header=True)
        text = io.StringIO(whole.decode("utf-8", errors="replace"), newline="")
        for row in csv.DictReader(text):
            if row.get(KEY):
                self.rows[row[KEY]] = row

    def _write(self, rows: Sequence[Row], *, header: bool = False) -> None:
        assert self.path is not None
        with naming_file(self.path):
            self._file.write((self._header() if header else b"") + self._lines(rows))
            self._file.flush()
            os.fsync(self._file.fileno())

    def _header(self) -> bytes:
        return self._text(lambda writer: writer.writeheader())

    def _lines(self, rows: Sequence[Row]) -> bytes:
        return self._text(lambda writer: writer.writerows(rows))

    def _text(self, write: Any) -> bytes:
        text = io.StringIO(newline="")
        write(csv.DictWriter(text, self.columns))
        return text.getvalue().encode()
