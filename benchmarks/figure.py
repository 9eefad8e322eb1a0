"""Figures as PNG files, without a display."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure


@contextmanager
def figure(
    path: Path, size: tuple[float, float], rows: int = 1, columns: int = 1
) -> Iterator[tuple[Figure, np.ndarray]]:
    """A figure of `size` inches and its axes [rows, columns], saved when the block ends well."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False)
    try:
        yield drawn, axes
        drawn.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn.savefig(path, dpi=150)
    finally:
        pyplot.close(drawn)
