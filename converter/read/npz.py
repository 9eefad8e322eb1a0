"""Arrays of .npz files, read one by one: only those that are asked for, none of objects, none without end."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from fadiff.converter.errors import ModelError
from fadiff.converter.printable import printable

MOST_BYTES = 2**32
_SUFFIX = ".npy"
_WRITE = "write it with numpy.savez(file, NAME=array)"


def read_arrays(
    path: Path, what: str, names: Collection[str]
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Those of the named arrays that the file has, and the names of all that it has.

    Args:
        path: the .npz file.
        what: what it holds, for messages ("calibration data").
        names: the arrays wanted.

    Raises:
        ModelError: the file cannot be read, is no .npz file, or a wanted array is none of numbers, damaged,
            or larger than 4 GB.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            found = tuple(n.removesuffix(_SUFFIX) for n in archive.namelist() if n.endswith(_SUFFIX))
            arrays = {}
            for name in (name for name in names if name in found):
                with archive.open(f"{name}{_SUFFIX}") as member:
                    obstacle = _obstacle(member)
                if obstacle:
                    raise ModelError(f"{path}: {printable(name)} {obstacle}; {_WRITE}")
                with archive.open(f"{name}{_SUFFIX}") as member:
                    arrays[name] = np.asarray(npy.read_array(member, allow_pickle=False))
            return arrays, found
    except ModelError:
        raise
    except OSError as error:
        reason = error.strerror or f"damaged; {_WRITE}"
        raise ModelError(f"{path}: cannot read {what}: {reason}") from error
    except Exception as error:  # zipfile, zlib and numpy have ten kinds of errors for what is damaged
        if _is_array(path):
            raise ModelError(
                f"{path}: a single array (.npy), not an .npz file; save {what} with "
                "numpy.savez(file, NAME=array)"
            ) from error
        raise ModelError(f"{path}: cannot read {what}: not an .npz file; {_WRITE}") from error


def _obstacle(member: IO[bytes]) -> str:
    """Why an array is not read, by its header; nothing if it can be."""
    version = npy.read_magic(member)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    header: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(member)
    shape, _, dtype = header
    if dtype.hasobject:
        return "is an array of Python objects, not of numbers"
    nbytes = math.prod(shape) * dtype.itemsize
    return f"has {nbytes:,} bytes, more than {MOST_BYTES:,}" if nbytes > MOST_BYTES else ""


def _is_array(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX
