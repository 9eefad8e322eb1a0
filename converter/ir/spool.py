"""Large arrays that live in a temporary file: memory holds of them what is in use."""

from __future__ import annotations

import mmap
import tempfile
from typing import Any

import numpy as np


def spooled(shape: tuple[int, ...]) -> np.ndarray:
    """An int8 array of zeros in a file without a name: it goes with the array."""
    with tempfile.TemporaryFile() as file:
        file.truncate(int(np.prod(shape)))
        return np.memmap(file, np.int8, "r+", shape=shape)


def release(array: np.ndarray) -> None:
    """Give back the memory, not the content, of an array that is mapped from a file; others stay."""
    owner: Any = array
    while owner is not None and not isinstance(owner, mmap.mmap):
        owner = getattr(owner, "base", None)
    if owner is not None and hasattr(mmap, "MADV_DONTNEED"):
        owner.madvise(mmap.MADV_DONTNEED)
