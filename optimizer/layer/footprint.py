"""On-chip space of canonical mappings in columns: the rules of costmodel.group.legality over arrays.

Arrays may have any shapes that broadcast together.  `tile` has scratchpad extents K C R S N P Q,
accumulator extents k n p q, and `foot`: input positions of the scratchpad tile (N x box).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.count.row_layout import packed_inputs_fit
from optimizer.layer.space import Ints, LayerSpace


class Lanes(NamedTuple):
    """Spatial factors: C channels on the rows, K (not of depthwise layers) on the columns."""

    rows: Ints
    columns: Ints


def scratchpad_fits(space: LayerSpace, tile: dict[str, Ints], lanes: Lanes) -> NDArray[np.bool_]:
    """Whether W and I tiles, double-buffered where refetched, fit beside what is reserved."""
    weights, inputs, twice = _scratchpad_tiles(space, tile, lanes)
    if space.placement.weights_are_resident:
        weights = np.zeros_like(weights)
    room = space.scratchpad_limit - space.reserved
    if space.holds_input:
        return np.asarray(weights <= room + 0 * inputs)
    fits = np.asarray(weights + inputs * (1 + twice) <= room)
    taps = space.packed(tile["C"], tile["S"])
    if not space.rules.hw or taps.max(initial=1) == 1:
        return fits
    around = packed_inputs_fit(inputs, twice, weights, room, space.scratchpad_limit, taps)
    return np.asarray(fits & ((taps == 1) | around))


def with_foot(space: LayerSpace, tile: dict[str, Ints]) -> dict[str, Ints]:
    """`tile` with its `foot`."""
    foot = tile["N"] * space.box("P", tile["P"], tile["R"]) * space.box("Q", tile["Q"], tile["S"])
    return {**tile, "foot": foot}


def _scratchpad_tiles(
    space: LayerSpace, tile: dict[str, Ints], lanes: Lanes
) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Rows (profile dosa: bytes) of all W tiles and of one I tile, and whether that is double-buffered."""
    b, g = space.bounds, space.groups_at_once
    taps = tile["R"] * tile["S"]
    if not space.rules.hw:
        e = space.rules.target.element_bytes
        w, i = e * g * taps * tile["C"] * tile["K"], e * g * tile["foot"] * tile["C"]
        return w, i, np.zeros(1, dtype=bool)
    diagonal = g if space.shape.is_depthwise else 1
    if space.shape.has_transposed_weights:
        w = taps * tile["K"] * -(-tile["C"] // lanes.rows)
    else:
        w = diagonal * taps * tile["C"] * -(-tile["K"] // lanes.columns)
    i = tile["foot"] * -(-tile["C"] // lanes.rows)
    several = (tile["R"] < b.R) | (tile["S"] < b.S) | (tile["C"] < b.C) | (g < b.G)
    w = w * (1 + (several | (tile["K"] < b.K)))
    return w, i, np.asarray(several | splits_pixels(space, tile))


def accumulator_need(space: LayerSpace, tile: dict[str, Ints], lanes: Lanes) -> Ints:
    """Rows (profile dosa: words of the fullest column) of O tiles, twice where there are several of them."""
    b = space.bounds
    area = tile["n"] * tile["p"] * tile["q"] * -(-tile["k"] // lanes.columns)
    if not space.rules.hw:
        return np.asarray(area)
    covers = (tile["n"] >= b.N) & (tile["p"] >= b.P) & (tile["q"] >= b.Q) & (tile["k"] >= b.K)
    if space.output_is_in_place:  # the rows are reserved already, for one tile
        return np.where(covers & (space.groups_at_once >= b.G), 0 * area, space.accumulator_limit(False) + 1)
    return np.asarray(area * np.where(covers & (space.groups_at_once >= b.G), 1, 2))


def splits_pixels(space: LayerSpace, tile: dict[str, Ints]) -> NDArray[np.bool_]:
    """Whether the scratchpad tile covers less than all pixels of a run."""
    b = space.bounds
    return np.asarray((tile["N"] < b.N) | (tile["P"] < b.P) | (tile["Q"] < b.Q))
