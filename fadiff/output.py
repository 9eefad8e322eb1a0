"""Output folders appear complete or not at all, and nothing is written over without --force."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fadiff.errors import InputError
from fadiff.folder import obstacle_to_deleting


def check_new(path: Path, *, force: bool) -> None:
    """Refuse early to write over a file, or where nothing can be written.

    Raises:
        InputError: it exists (without force), or its folder does not, or cannot be written.
    """
    parent = path.absolute().parent
    if not parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}: make it, or choose another name")
    if not os.access(path if path.exists() else parent, os.W_OK):
        raise InputError(f"{path}: cannot write there: choose another name")
    if path.exists() and not force:
        raise InputError(f"{path}: already exists: choose another name, or replace it with --force")


def check_free(target: Path, *, force: bool | None) -> None:
    """Refuse early what `replacing_folder` could not do at the end; no `force` where nothing is replaced.

    Raises:
        InputError: the folder exists (without force), is not one of ours, or its parent cannot be written.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise InputError(f"{target}: exists and is not a folder: choose another --out")
    if target.exists() and any(target.iterdir()):
        if not force:
            remedy = "choose another --out" + (", or replace it with --force" if force is not None else "")
            raise InputError(f"{target}: already exists: {remedy}")
        if obstacle := obstacle_to_deleting(target):
            raise InputError(
                f"{target}: is not an output folder of fadiff ({obstacle}): --force will not delete it"
            )
    parent = target.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{target}: cannot write in {parent}: choose another --out")


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Give errors of the system that name no file, as that of a full disk, the name of what is written."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replacing_folder(target: Path, *, force: bool | None) -> Iterator[Path]:
    """A sibling of `target` that becomes `target` when the block ends well.

    On any exception, a keyboard interrupt included, the sibling and any parent folders made for it
    are removed and `target` is as it was.  What a killed process left is removed by the next one.

    Raises:
        InputError: as `check_free`, or another process is making this folder.
    """
    check_free(target, force=force)
    target = target.absolute()
    made = [p for p in (target.parent, *target.parent.parents) if not p.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    work, old = (target.with_name(f".{target.name}.{what}") for what in ("fadiff", "fadiff-old"))
    held = _claimed(work, target)
    try:
        _recover(old, target)
        check_free(target, force=force)
        with naming_file(target):
            yield work
        _swap(work, target, old)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        for parent in made:
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()
        raise
    finally:
        os.close(held)


def _claimed(work: Path, target: Path) -> int:
    """Make the folder, or empty the one that a killed process left; a descriptor that holds it for us."""
    busy = InputError(f"{target}: another fadiff is making this folder: wait, or choose another --out")
    work.mkdir(exist_ok=True)
    held = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not work.exists() or not os.path.samestat(os.fstat(held), work.stat()):
            raise busy  # it was finished, and renamed, a moment ago
    except BaseException as error:
        os.close(held)
        raise busy from (error if isinstance(error, OSError) else None)
    for entry in work.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    return held


def _swap(work: Path, target: Path, old: Path) -> None:
    if not target.exists():
        work.rename(target)
        return
    target.rename(old)
    try:
        work.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _recover(old: Path, target: Path) -> None:
    """Undo or end a swap in the middle of which a process was killed."""
    if old.is_dir() and not target.exists():
        old.rename(target)
    shutil.rmtree(old, ignore_errors=True)
