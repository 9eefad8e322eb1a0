"""Folders of ours: what is kept between runs, and temporary ones of which nothing stays."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def cache_folder() -> Path:
    """$FADIFF_CACHE, else `fadiff` in the user's cache folder ($XDG_CACHE_HOME, else ~/.cache)."""
    if configured := os.environ.get("FADIFF_CACHE"):
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fadiff"


_PREFIX = "fadiff-scratch-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for the `with` block.  It is locked as long as its process lives: one that nobody holds was
    left by kill -9, and goes when the next is made."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        _remove_if_left(left)
    while True:
        with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
            try:
                held = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:  # another process took it for one that was left
                continue
            try:
                fcntl.flock(held, fcntl.LOCK_EX)
                if Path(name).exists():  # else the same
                    yield Path(name)
                    return
            finally:
                os.close(held)


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(held)
