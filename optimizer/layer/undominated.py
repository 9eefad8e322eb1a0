"""Mappings that some prices make the best: what is left when energies and bandwidths are not known yet."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fadiff.costmodel.schedule.batch import memory_bytes
from fadiff.optimizer.layer.canonical import Points
from fadiff.optimizer.layer.pricing import quantities

Floats = NDArray[np.float64]
_CHUNK = 128


def best_at_some_prices(points: Points) -> Points:
    """Without those that another one beats whatever a byte, a cycle of the array and bandwidth cost.

    Energy and roofline latency rise with every column of `_work`, so that lower hulls stay what they are.
    """
    return points if not len(points) else points.select(np.sort(undominated(_work(points))))


def _work(points: Points) -> Floats:
    """Array cycles, bytes through every memory, and what the accumulator makes of them."""
    space, q = points.space, quantities(points)
    moved = memory_bytes(q, space.rules.target, space.rules.profile, space.placement)
    lanes = space.groups_at_once if space.shape.is_depthwise else space.blocks(points.tile["k"])
    columns = [q.compute_cycles, *moved.values(), moved.get("accumulator", 0.0) / lanes]
    return np.stack([np.broadcast_to(np.asarray(c, dtype=np.float64), len(points)) for c in columns], axis=1)


def undominated(rows: Floats) -> NDArray[np.int64]:
    """Indices of the rows [row, column] that no other row is at most as large as in all columns; of equal
    rows the first."""
    rows = rows[:, (rows != rows[:1]).any(axis=0)]
    if not rows.shape[1]:
        return np.zeros(1, dtype=np.int64)
    order = np.lexsort(rows.T[::-1])  # stable: only an earlier row can beat a later one
    kept = np.zeros(0, dtype=np.int64)
    for start in range(0, len(order), _CHUNK):
        fresh = order[start : start + _CHUNK]
        fresh = fresh[~_beaten(rows[fresh], rows[kept])]
        kept = np.concatenate([kept, fresh[~_beaten(rows[fresh], rows[fresh], own=True)]])
    return kept


def _beaten(rows: Floats, others: Floats, *, own: bool = False) -> NDArray[np.bool_]:
    """Rows that one of `others` is at most as large as; `own`: only one before it counts."""
    beats = np.ones((len(rows), len(others)), dtype=np.bool_)
    for column in range(rows.shape[1]):
        beats &= others[None, :, column] <= rows[:, None, column]
    return np.asarray((np.tril(beats, k=-1) if own else beats).any(axis=1))
