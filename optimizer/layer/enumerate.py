"""Every mapping of one layer that can be on its energy-latency front, in columns.

Canonical form (see `canonical`): three DRAM orders; the accumulator tile either covers the scratchpad
tile (class A) or is one column block by any shape of pixels (class B, see `accumulator_tiles`).  Inside
that space the result is a superset of the front: a tile is dropped only when a larger one that fits is
at least as good in every count.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fadiff.converter.ir.loops import Dim
from fadiff.costmodel.mapping.tiling import tile_count
from fadiff.optimizer.layer.accumulator_tiles import (
    PIXELS,
    Columns,
    bias_loads,
    pixels_only,
    spread,
    undominated_tiles,
)
from fadiff.optimizer.layer.canonical import STATIONARY, Points, canonical_columns
from fadiff.optimizer.layer.footprint import Footprint
from fadiff.optimizer.layer.space import Bools, Ints, LayerSpace

_CHUNK = 256


def enumerate_space(space: LayerSpace) -> Points:
    """All undominated canonical mappings of `space`; empty if nothing fits."""
    covering, split = _pixels(pixels_only(space))
    blocks = [_combine(space, covering, True)]
    if split is not None:
        blocks.append(_combine(space, split, False))
    tile = {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}
    return Points(space, tile, np.arange(len(STATIONARY))[:, None])


@lru_cache(maxsize=1 << 8)
def _pixels(space: LayerSpace) -> tuple[Columns, Columns | None]:
    """Pixel extents of classes A and B; None where one accumulator row has no room for a second tile."""
    grid = _pixel_grid(space)
    has_room = space.accumulator_limit(split=True) > 0
    return _class_a(space, grid), _class_b(space, grid) if has_room else None


def _pixel_grid(space: LayerSpace) -> Columns:
    """All (R, S, N, P, Q) scratchpad extents with input volume, box on chip and tiles."""
    names: tuple[Dim, ...] = ("R", "S", *PIXELS)
    axes = [np.asarray(space.tiles(d), dtype=np.int64) for d in names]
    index = [a.ravel() for a in np.meshgrid(*(np.arange(len(x)) for x in axes), indexing="ij")]
    grid: Columns = {name: axis[i] for name, axis, i in zip(names, axes, index, strict=True)}
    grid["volume"], grid["tiles"] = (np.ones(len(index[0]), dtype=np.int64) for _ in range(2))
    for out, taps in ((3, 0), (4, 1)):
        dim: Dim = names[out]
        volume = space.input_positions(dim, axes[out][:, None], axes[taps])
        volume = np.broadcast_to(volume, (len(axes[out]), len(axes[taps])))
        grid["volume"] *= volume[index[out], index[taps]]
    for d in PIXELS:
        grid["tiles"] *= tile_count(space.outline(d), grid[d])
    grid["foot"] = grid["N"] * space.box("P", grid["P"], grid["R"]) * space.box("Q", grid["Q"], grid["S"])
    return grid


def _class_a(space: LayerSpace, grid: Columns) -> Columns:
    """Accumulator tile = scratchpad tile: pixel extents worth combining with K and C."""
    grid = {**grid, "n": grid["N"], "p": grid["P"], "q": grid["Q"]}
    grid["area"] = grid["N"] * grid["P"] * grid["Q"]
    able = np.flatnonzero(space.pools(grid["P"], grid["Q"]))
    grid = {name: column[able] for name, column in grid.items()}
    grid["bias"] = np.broadcast_to(bias_loads(space, [grid[d] for d in PIXELS]), len(able))
    keep = _undominated(grid, ("foot", "tiles", "volume", "area", "bias"))
    return {name: column[keep] for name, column in grid.items()}


def _class_b(space: LayerSpace, grid: Columns) -> Columns:
    """One column block by every undominated shape of its pixels."""
    b = space.bounds
    shape = (grid["N"] * (b.P + 1) + grid["P"]) * (b.Q + 1) + grid["Q"]
    _, first, inverse = np.unique(shape, return_index=True, return_inverse=True)
    limit = space.accumulator_limit(split=True)
    inner = undominated_tiles(space, [grid[d][first] for d in PIXELS], limit)
    at = inner.pop("at")
    count = np.bincount(at, minlength=len(first))
    row, member = spread((np.cumsum(count) - count)[inverse], count[inverse])
    pick = np.argsort(at, kind="stable")[member]
    grid = {name: column[row] for name, column in grid.items()}
    grid |= {name: column[pick] for name, column in inner.items()}
    keep = _undominated(grid, ("foot", "tiles", "volume", "l1_tiles", "bias"))
    return {name: column[keep] for name, column in grid.items()}


def _combine(space: LayerSpace, pixels: Columns, covers: bool) -> Columns:
    """Cross pixel extents with K and C extents; keep what fits and no larger tile beats.

    `covers`: the accumulator tile covers the scratchpad tile (class A).
    """
    bounds = space.bounds
    k = np.array(space.tiles("K")[::-1], dtype=np.int64)
    c = np.array(space.tiles("C")[::-1], dtype=np.int64)
    col = space.blocks(k)
    row = space.blocks(c)
    pass_k = tile_count(((bounds.K, 1),), k, col)
    pass_c = tile_count(((bounds.C, 1),), c, row)

    # Axes: [pixels, C, K].
    tile = {name: pixels[name][:, None, None] for name in ("R", "S", "N", "P", "Q", "n", "p", "q")}
    tile.update(C=c[None, :, None], K=k[None, None, :], k=(k if covers else col)[None, None, :])
    footprint = Footprint(space, canonical_columns(space, tile))
    fits = footprint.fits_scratchpad()
    if covers:  # class B keeps to the limit by construction
        fits = fits & (footprint.accumulator_need() <= space.accumulator_limit(split=False))
    fits = np.broadcast_to(fits, (len(pixels["P"]), len(c), len(k)))

    keep = _records(fits, pass_k, axis=2) & _records(fits, pass_c, axis=1)
    if not covers:  # a larger tile may be more than the one array block of weights that stays in the array
        single = fits & space.is_one_block(tile)
        keep |= _records(single, pass_k, axis=2) & _records(single, pass_c, axis=1)
    j, ic, ik = np.nonzero(keep)
    out = {name: pixels[name][j] for name in ("R", "S", "N", "P", "Q", "n", "p", "q")}
    out["K"], out["C"] = k[ik], c[ic]
    out["k"] = k[ik] if covers else col[ik]
    return out


def _records(fits: Bools, passes: Ints, axis: int) -> Bools:
    """Along `axis` (extents descending): fitting entries unless the next larger extent with no more passes
    fits as well."""
    count = len(passes)
    no_more = np.tril(passes[None, :] <= passes[:, None], k=-1)
    larger = count - 1 - np.argmax(no_more[:, ::-1], axis=1)
    shape = [1, 1, 1]
    shape[axis] = count
    beaten = np.take(fits, larger, axis=axis) & no_more.any(axis=1).reshape(shape)
    return np.asarray(fits & ~beaten)


def _undominated(grid: Columns, features: tuple[str, ...]) -> Ints:
    """Rows whose features no other row of the same (R, S) is at least as good in all of."""
    if not len(grid["R"]):
        return np.zeros(0, dtype=np.int64)
    kept: list[Ints] = []
    taps = grid["R"] * (grid["S"].max() + 1) + grid["S"]
    for tap in np.unique(taps):
        rows = np.flatnonzero(taps == tap)
        values = np.stack([grid[f][rows] for f in features], axis=1)
        order = np.lexsort(values.T[::-1])
        rows, values = rows[order], values[order]
        # In lexical order only an earlier row can beat a later one.
        alive = np.ones(len(rows), dtype=bool)
        for start in range(0, len(rows), _CHUNK):
            chunk = values[start : start + _CHUNK]
            ahead = values[: start + len(chunk)][alive[: start + len(chunk)]]
            index = np.flatnonzero(alive[: start + len(chunk)])
            beaten = np.ones((len(chunk), len(ahead)), dtype=bool)
            for f in range(values.shape[1]):
                beaten &= ahead[None, :, f] <= chunk[:, None, f]
            beaten &= index[None, :] < np.arange(start, start + len(chunk))[:, None]
            alive[start : start + len(chunk)] = ~beaten.any(axis=1)
        kept.append(rows[alive])
    return np.concatenate(kept)
