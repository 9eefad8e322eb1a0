"""How often the bias is loaded: what decides between tiles that are equal in everything else."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from costmodel.mapping.tiling import tile_extents
from optimizer.layer.space import Ints, LayerSpace, Outline


def bias_loads(space: LayerSpace, t: Mapping[str, Ints]) -> Ints:
    """Stride-0 mvins that initialise all accumulator tiles n p q of scratchpad tiles N P Q, per column block;
    0 without a bias."""
    loads = np.zeros(len(t["N"]), dtype=np.int64)
    if not (space.rules.hw and space.shape.has_bias):
        return loads
    key = loads
    for d, bound in zip("NPQ", (space.bounds.N, space.bounds.P, space.bounds.Q), strict=True):
        key = (key * (bound + 1) + t[d]) * (bound + 1) + t[d.lower()]
    _, at, inverse = np.unique(key, return_index=True, return_inverse=True)
    unique = np.stack([t[name][at] for name in ("N", "P", "Q", "n", "p", "q")], axis=1)
    loads = np.zeros(len(unique), dtype=np.int64)
    for row, (n2, p2, q2, n1, p1, q1) in enumerate(unique.tolist()):
        pieces = [
            _pieces(space.outline("N"), n2, n1),
            _pieces(space.outline("P"), p2, p1),
            _pieces(space.outline("Q"), q2, q1),
        ]
        loads[row] = sum(
            a * b * c * -(-n * p * q // space.side)
            for n, a in pieces[0]
            for p, b in pieces[1]
            for q, c in pieces[2]
        )
    return np.asarray(loads[inverse])


def _pieces(outline: Outline, outer: int, inner: int) -> list[tuple[int, int]]:
    histogram: dict[int, int] = {}
    for extent, times in outline:
        for piece, count in tile_extents(extent, (outer, inner)):
            histogram[piece] = histogram.get(piece, 0) + times * count
    return list(histogram.items())
