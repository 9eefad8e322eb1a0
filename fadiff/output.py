"""Output folders appear complete or not at all, and nothing is written over without --force."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fadiff.errors import InputError
from fadiff.folder import SCHEDULE


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


def check_free(target: Path, *, force: bool) -> None:
    """Refuse early what `replacing_folder` could not do at the end.

    Raises:
        InputError: the folder exists (without force), is not one of ours, or its parent cannot be written.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise InputError(f"{target}: exists and is not a folder: choose another --out")
    if target.exists() and any(target.iterdir()):
        if not force:
            raise InputError(f"{target}: already exists: choose another --out, or replace it with --force")
        if not (target / SCHEDULE).is_file():  # every folder we write has one
            raise InputError(
                f"{target}: is not an output folder of fadiff (no {SCHEDULE}): --force will not delete it"
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
def replacing_folder(target: Path, *, force: bool) -> Iterator[Path]:
    """A temporary sibling of `target` that becomes `target` when the block ends well.

    On any exception, a keyboard interrupt included, the sibling and any parent folders made for it
    are removed and `target` is as it was.
    """
    check_free(target, force=force)
    target = target.absolute()
    made = [p for p in (target.parent, *target.parent.parents) if not p.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    work.chmod(0o777 & ~_umask())
    try:
        yield work
        _swap(work, target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        for parent in made:
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()
        raise


def _swap(work: Path, target: Path) -> None:
    if not target.exists():
        work.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    target.rename(old / target.name)
    try:
        work.rename(target)
    except BaseException:
        (old / target.name).rename(target)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
