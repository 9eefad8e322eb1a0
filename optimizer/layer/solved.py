"""Solved layers on disk, for every search that meets them again: other designs, models, processes.

Kept are the few mappings of a layer that are best at some energies and bandwidths, so that designs which
differ in prices alone share them.  The key is a hash of all that decides them: the layer's dimensions, its
region and place in a group, array and memory sizes, the rules of the search and our own source; in
profile hw the whole target and the bytes of all weights, too.  The file is SQLite's: safe under processes
that read and write at once.  What cannot be read back is not used, and a file that cannot be used at all
costs a search nothing but time.
"""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from types import TracebackType

import numpy as np

from fadiff.converter.folders import cache_folder
from fadiff.optimizer.layer.canonical import Points
from fadiff.optimizer.layer.space import LayerSpace

MOST_BYTES = 256 * 2**20
COLUMNS = ("K", "C", "R", "S", "N", "P", "Q", "k", "n", "p", "q")
"""Extents of a kept mapping, in this order, the index of its DRAM order behind them."""
_SIZES = (
    "side",
    "scratchpad_bytes",
    "scratchpad_banks",
    "accumulator_bytes",
    "element_bytes",
    "accumulator_bytes_per_word",
    "max_bytes",
    "has_row_packing",
    "has_full_width_read",
)
"""Fields of a target that decide which mappings there are and what they move."""
_PATIENCE = 30.0
_DIGEST = 16


def cache_file() -> Path:
    """Where solved layers are kept if nobody says otherwise."""
    return cache_folder() / "solved-layers.sqlite"


class SolvedLayers:
    """Mappings by space, in a file and, until the `with` block ends, in memory."""

    def __init__(self, path: Path | None, most_bytes: int = MOST_BYTES) -> None:
        """Nothing is opened yet; `most_bytes` bounds the file.  Without a path nothing is kept."""
        self.path, self.most_bytes = path, most_bytes
        self.asked = self.found = 0
        """Layers that a search wanted, and those that need not be solved."""
        self._fresh: dict[bytes, bytes] = {}
        self._file: sqlite3.Connection | None = None

    def __enter__(self) -> SolvedLayers:
        if self.path is not None:
            with suppress(OSError, sqlite3.Error):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = _opened(self.path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            with closing(self._file), suppress(sqlite3.Error):
                self._write(self._file)
            self._file = None

    @property
    def keeps(self) -> bool:
        """Whether what is added is kept."""
        return self._file is not None

    def find(self, space: LayerSpace) -> Points | None:
        """The mappings kept for `space`; None if it was not solved before."""
        self.asked += 1
        if self._file is None:
            return None
        key = key_of(space)
        content = self._fresh.get(key)
        if content is None:
            try:
                row = self._file.execute("SELECT content FROM layers WHERE key = ?", (key,)).fetchone()
            except sqlite3.Error:
                row = None
            content = row[0] if row else None
        points = None if content is None else _read(space, key, content)
        self.found += points is not None
        return points

    def add(self, points: Points) -> None:
        """Keep the mappings of one space."""
        key = key_of(points.space)
        self._fresh[key] = _written(points, key)

    def _write(self, file: sqlite3.Connection) -> None:
        """All that is new in one transaction; the oldest quarter goes where there is no more room."""
        with file:
            file.executemany("INSERT OR REPLACE INTO layers VALUES (?, ?)", list(self._fresh.items()))
            pages, free, size = (
                file.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
            if (pages - free) * size > self.most_bytes:
                file.execute(
                    "DELETE FROM layers WHERE rowid IN"
                    " (SELECT rowid FROM layers ORDER BY rowid LIMIT (SELECT count(*) / 4 + 1 FROM layers))"
                )
        self._fresh.clear()


def _opened(path: Path) -> sqlite3.Connection:
    """The file with its table; made anew if it is no database."""
    try:
        return _connected(path)
    except sqlite3.OperationalError:  # busy or not allowed: not ours to remove
        raise
    except sqlite3.DatabaseError:
        path.unlink()
        return _connected(path)


def _connected(path: Path) -> sqlite3.Connection:
    file = sqlite3.connect(path, timeout=_PATIENCE)
    try:
        file.execute("CREATE TABLE IF NOT EXISTS layers (key BLOB PRIMARY KEY, content BLOB)")
    except sqlite3.Error:
        file.close()
        raise
    return file


def key_of(space: LayerSpace) -> bytes:
    """Hash of all that the mappings of a space depend on."""
    rules = space.rules
    target = rules.target
    hardware: object = [getattr(target, name) for name in _SIZES]
    if rules.latency == "clock":
        hardware = target.model_dump(mode="json", exclude={"name"}), rules.network_weights
    settings = (rules.profile, rules.tiling, rules.row_packing, space.lanes)
    parts = repr((space.shape, space.region, space.placement, hardware, settings, space.reserved))
    return hashlib.blake2b(_source() + parts.encode(), digest_size=_DIGEST).digest()


@cache
def _source() -> bytes:
    """Hash of the code that solves layers: another version solves them again."""
    from fadiff import costmodel

    digest = hashlib.blake2b(digest_size=_DIGEST)
    for folder in (Path(__file__).parent, Path(str(costmodel.__file__)).parent):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".json"):
                digest.update(path.read_bytes())
    return digest.digest()


def _written(points: Points, key: bytes) -> bytes:
    rows = np.stack([*(points.tile[name] for name in COLUMNS), points.order]).astype("<i8").tobytes()
    return _checksum(key, rows) + rows


def _read(space: LayerSpace, key: bytes, content: bytes) -> Points | None:
    """None for what is not what was written."""
    check, rows = content[:_DIGEST], content[_DIGEST:]
    if check != _checksum(key, rows):
        return None
    *extents, order = np.frombuffer(rows, dtype="<i8").astype(np.int64).reshape(len(COLUMNS) + 1, -1)
    return Points(space, dict(zip(COLUMNS, extents, strict=True)), order)


def _checksum(key: bytes, rows: bytes) -> bytes:
    return hashlib.blake2b(key + rows, digest_size=_DIGEST).digest()
