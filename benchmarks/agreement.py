"""How well two columns of numbers agree, and their scatter plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.figure import figure

Pairs = Sequence[tuple[float, float]]
"""(ours, reference) of every row."""


def mean_relative_error(pairs: Pairs) -> float:
    """Mean of |ours - reference| / reference; rows with reference 0 count 0 if equal, else 1."""
    ours, reference = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    scale = np.where(reference == 0, np.maximum(np.abs(ours), 1), np.abs(reference))
    return float(np.mean(np.abs(ours - reference) / scale))


def share_within(pairs: Pairs, tolerance: float) -> float:
    """Share of rows whose relative error is at most `tolerance`."""
    ours, reference = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    return float(np.mean(np.abs(ours - reference) <= tolerance * np.abs(reference)))


def kendall_tau(pairs: Pairs) -> float:
    """Kendall's tau-b by merge sort: ties on both sides agree, n log n."""
    ours, reference = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    order = np.lexsort((ours, reference))
    x, y = reference[order], ours[order]
    n = len(x)
    all_pairs = n * (n - 1) // 2
    tied_x = _tied_pairs(x)
    tied_y = _tied_pairs(np.sort(y))
    tied_both = sum(c * (c - 1) // 2 for c in np.unique(np.stack([x, y], 1), axis=0, return_counts=True)[1])
    swaps = _inversions(np.unique(y, return_inverse=True)[1])
    concordant_minus = all_pairs - tied_x - tied_y + int(tied_both) - 2 * swaps
    scale = np.sqrt(float(all_pairs - tied_x)) * np.sqrt(float(all_pairs - tied_y))
    return float(concordant_minus / scale) if scale else 1.0


def _tied_pairs(ordered: np.ndarray) -> int:
    counts = np.unique(ordered, return_counts=True)[1]
    return int(sum(int(c) * (int(c) - 1) // 2 for c in counts))


def _inversions(ranks: np.ndarray) -> int:
    """Pairs that are out of order, counted while merging sorted halves."""
    total = 0
    width = 1
    values = ranks.copy()
    while width < len(values):
        for start in range(0, len(values), 2 * width):
            left, right = values[start : start + width], values[start + width : start + 2 * width]
            total += int(len(left) * len(right) - np.searchsorted(left, right, side="right").sum())
            values[start : start + 2 * width] = np.sort(values[start : start + 2 * width], kind="stable")
        width *= 2
    return total


def scatter(path: Path, panels: Mapping[str, Pairs], reference: str, ours: str) -> None:
    """One log-log scatter plot per panel, with the diagonal."""
    with figure(path, (4.5 * len(panels), 4.2), columns=len(panels)) as (_, (axes,)):
        for axis, (name, pairs) in zip(axes, panels.items(), strict=True):
            y, x = zip(*pairs, strict=True)
            axis.loglog(x, y, ".", markersize=3, alpha=0.5)
            ends = [min(x), max(x)]
            axis.loglog(ends, ends, linewidth=0.8, color="black")
            axis.set_xlabel(f"{reference}: {name}")
            axis.set_ylabel(f"{ours}: {name}")
    print(f"figure: {path}")
