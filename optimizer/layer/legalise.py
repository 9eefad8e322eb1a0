"""Mappings made legal: extents snapped to candidates and shrunk until their tiles fit."""

from __future__ import annotations

import numpy as np

from fadiff.costmodel.mapping.numbers import Number
from fadiff.costmodel.mapping.tiling import tile_count
from fadiff.optimizer.layer.candidates import divisors
from fadiff.optimizer.layer.canonical import Points, canonical_columns
from fadiff.optimizer.layer.footprint import Footprint
from fadiff.optimizer.layer.space import Bools, Ints, LayerSpace

SHRINK = 0.6
MOST_PASSES = 1.05
"""Array passes of K and C extents that fill the array, over the fewest."""
Tile = dict[str, Ints]


def legalise(space: LayerSpace, tile: Tile, order: Ints) -> tuple[Points, Bools]:
    """Snap extents to candidates that nest and shrink the largest until the tiles fit.

    Returns the points and which of them fit now (all, unless a single element is too much).
    """
    t = {name: column.copy() for name, column in tile.items()}
    steps = {d: np.array(space.tiles(d), dtype=np.int64) for d in ("N", "K", "C", "P", "Q", "R", "S")}
    for d, options in steps.items():
        t[d] = _snap(options, t[d])
    for d in ("K", "C"):
        steps[d] = steps[d][fills_array(space, d, steps[d]) | (steps[d] < space.side)]
    outer = ("P", "Q", "K", "C", "N", "R", "S")
    while _shrink(t, ~_footprint(space, t).fits_scratchpad(), outer, steps):
        pass
    columns = 1 if space.shape.is_depthwise else space.blocks(t["K"])
    for small in "npqk":
        t[small] = np.minimum(t[small], t[small.upper()])
    _whole_blocks(space, t, columns)
    limit = space.rules.target.accumulator_rows
    t["k"] = np.where(_footprint(space, t).accumulator_need() > limit, columns, t["k"])
    while _shrink(t, _footprint(space, t).accumulator_need() > limit, ("p", "q", "n"), None):
        if space.rules.tiling == "divisor":
            for small in "npq":
                t[small] = _divisor_below(t[small], t[small.upper()])
    footprint = _footprint(space, t)
    return Points(space, t, order), footprint.fits_scratchpad() & (footprint.accumulator_need() <= limit)


def fills_array(space: LayerSpace, dim: str, extents: Ints) -> Bools:
    """Whether tiles along K or C take hardly more array passes than tiles of whole blocks."""
    if space.shape.is_depthwise:
        return np.ones(len(extents), dtype=np.bool_)
    bound = space.bounds.K if dim == "K" else space.bounds.C
    passes = tile_count(((bound, 1),), extents, space.blocks(extents))
    return np.asarray(passes <= MOST_PASSES * passes.min())


def _snap(options: Ints, values: Ints) -> Ints:
    """The largest candidate that is not larger."""
    return np.asarray(options[np.maximum(np.searchsorted(options, values, side="right") - 1, 0)])


def _shrink(t: Tile, bad: Bools, names: tuple[str, ...], steps: dict[str, Ints] | None) -> bool:
    """Reduce the largest extent of every bad row; False when nothing is bad or can shrink."""
    least = {name: 1 if steps is None else int(steps[name][0]) for name in names}
    stacked = np.stack([np.where(t[name] > least[name], t[name], 0) for name in names])
    largest = stacked.argmax(axis=0)
    movable = bad & (stacked.max(axis=0) > 0)
    for i, name in enumerate(names):
        rows = movable & (largest == i)
        if rows.any():
            smaller = np.maximum((t[name][rows] * SHRINK).astype(np.int64), 1)
            t[name][rows] = smaller if steps is None else _snap(steps[name], smaller)
    return bool(movable.any())


def _whole_blocks(space: LayerSpace, t: Tile, columns: Number) -> None:
    """Accumulator tiles of whole column blocks (a narrower one saves nothing); divisors if asked."""
    blocks = np.maximum(t["k"] // columns, 1)
    if space.rules.tiling == "divisor":
        blocks = _divisor_below(blocks, t["K"] // columns)
        for small in "npq":
            t[small] = _divisor_below(t[small], t[small.upper()])
    t["k"] = np.where(t["k"] >= t["K"], t["K"], np.minimum(blocks * columns, t["K"]))


def _divisor_below(values: Ints, of: Ints) -> Ints:
    """The largest divisors of `of` that are at most `values`."""
    found = [max(d for d in divisors(int(n)) if d <= v) for v, n in zip(values, of, strict=True)]
    return np.array(found, dtype=np.int64)


def _footprint(space: LayerSpace, t: Tile) -> Footprint:
    return Footprint(space, canonical_columns(space, t))
