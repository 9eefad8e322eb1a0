"""On-chip space of canonical mappings in columns: the rules of costmodel.legality over arrays.

Arrays may have any shapes that broadcast together.  `tile` has scratchpad extents K C R S N P Q,
accumulator extents k n p q, and `foot`: input positions of the scratchpad tile (N x box).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimizer.space import Ints, LayerSpace


class Lanes(NamedTuple):
    """Spatial factors: C channels on the rows, K (not of depthwise layers) on the columns."""

    rows: Ints
    columns: Ints


def scratchpad_need(space: LayerSpace, tile: dict[str, Ints], lanes: Lanes) -> Ints:
    """Rows (profile dosa: bytes) of W and I tiles, double-buffered where refetched, plus what is reserved."""
    b, g = space.bounds, space.groups_at_once
    taps = tile["R"] * tile["S"]
    if space.rules.hw:
        diagonal = g if space.shape.is_depthwise else 1
        if space.shape.has_transposed_weights:
            w = taps * tile["K"] * -(-tile["C"] // lanes.rows)
        else:
            w = diagonal * taps * tile["C"] * -(-tile["K"] // lanes.columns)
        i = tile["foot"] * -(-tile["C"] // lanes.rows)
        several = (tile["R"] < b.R) | (tile["S"] < b.S) | (tile["C"] < b.C) | (g < b.G)
        i = i * (1 + (several | splits_pixels(space, tile)))
        w = w * (1 + (several | (tile["K"] < b.K)))
    else:
        e = space.rules.target.element_bytes
        w = e * g * taps * tile["C"] * tile["K"]
        i = e * g * tile["foot"] * tile["C"]
    need = np.zeros(np.broadcast_shapes(w.shape, i.shape), dtype=np.int64) + space.reserved
    if not space.placement.weights_are_resident:
        need = need + w
    held = space.placement.input_is_fused and not space.placement.is_paper
    if space.rules.hw or not held:
        need = need + i
    return need


def accumulator_need(space: LayerSpace, tile: dict[str, Ints], lanes: Lanes) -> Ints:
    """Rows (profile dosa: words per column) of O tiles, twice where there are several of them."""
    b = space.bounds
    area = tile["n"] * tile["p"] * tile["q"] * -(-tile["k"] // lanes.columns)
    if not space.rules.hw:
        return np.asarray(area)
    covers = (tile["n"] >= b.N) & (tile["p"] >= b.P) & (tile["q"] >= b.Q) & (tile["k"] >= b.K)
    return np.asarray(area * np.where(covers & (space.groups_at_once >= b.G), 1, 2))


def splits_pixels(space: LayerSpace, tile: dict[str, Ints]) -> NDArray[np.bool_]:
    """Whether the scratchpad tile covers less than all pixels of a run."""
    b = space.bounds
    return np.asarray((tile["N"] < b.N) | (tile["P"] < b.P) | (tile["Q"] < b.Q))
