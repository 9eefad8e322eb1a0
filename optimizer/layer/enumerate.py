"""Every mapping of one layer that can be on its energy-latency front, in columns.

Canonical form (see `canonical`): three DRAM orders; the accumulator tile either covers the scratchpad
tile (class A) or is one column block by the pixels that make fewest tiles (class B).  Inside that
space the result is a superset of the front: a tile is dropped only when a larger one that fits is
at least as good in every count.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from converter.ir.dims import Dim
from costmodel.count.nest import bias_fills
from costmodel.count.traffic import ALONE
from costmodel.mapping.tiling import tile_count, tile_extents
from optimizer.layer.canonical import STATIONARY, Points, canonical_columns
from optimizer.layer.footprint import Footprint
from optimizer.layer.space import Bools, Ints, LayerSpace

Columns = dict[str, Ints]
_CHUNK = 256
_PIXELS: tuple[Dim, ...] = ("N", "P", "Q")


def enumerate_space(space: LayerSpace) -> Points:
    """All undominated canonical mappings of `space`; empty if nothing fits."""
    covering, split = _pixels(_pixels_only(space))
    blocks = [_combine(space, covering, True)]
    if split is not None and not space.output_is_in_place:
        blocks.append(_combine(space, split, False))
    tile = {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}
    return Points(space, tile, np.arange(len(STATIONARY))[:, None])


def _pixels_only(space: LayerSpace) -> LayerSpace:
    """`space` without what its pixel extents do not depend on: layers that differ in channels share them."""
    dims = space.shape.dims.replace({"G": 1, "K": 1, "C": 1})
    shape = space.shape._replace(dims=dims, is_depthwise=False, has_transposed_weights=False)
    placement = ALONE._replace(pooled=space.placement.pooled)
    region = space.region._replace(G=((0, 1),))
    return LayerSpace(shape, region, space.rules, placement, reserved_accumulator=space.reserved_accumulator)


@lru_cache(maxsize=1 << 8)
def _pixels(space: LayerSpace) -> tuple[Columns, Columns | None]:
    """Pixel extents of classes A and B; None where one accumulator row has no room for a second tile."""
    grid = _pixel_grid(space)
    has_room = space.accumulator_limit(split=True) > 0
    return _class_a(space, grid), _class_b(space, grid) if has_room else None


def _pixel_grid(space: LayerSpace) -> Columns:
    """All (R, S, N, P, Q) scratchpad extents with input volume, box on chip and tiles."""
    names: tuple[Dim, ...] = ("R", "S", *_PIXELS)
    axes = [np.asarray(space.tiles(d), dtype=np.int64) for d in names]
    index = [a.ravel() for a in np.meshgrid(*(np.arange(len(x)) for x in axes), indexing="ij")]
    grid: Columns = {name: axis[i] for name, axis, i in zip(names, axes, index, strict=True)}
    grid["volume"], grid["tiles"] = (np.ones(len(index[0]), dtype=np.int64) for _ in range(2))
    for out, taps in ((3, 0), (4, 1)):
        dim: Dim = names[out]
        volume = space.input_positions(dim, axes[out][:, None], axes[taps])
        volume = np.broadcast_to(volume, (len(axes[out]), len(axes[taps])))
        grid["volume"] *= volume[index[out], index[taps]]
    for d in _PIXELS:
        grid["tiles"] *= tile_count(space.outline(d), grid[d])
    grid["foot"] = grid["N"] * space.box("P", grid["P"], grid["R"]) * space.box("Q", grid["Q"], grid["S"])
    return grid


def _bias_loads(space: LayerSpace, tile: Mapping[str, Ints | int]) -> Ints:
    """Mvins that initialise all accumulator tiles n p q of scratchpad tiles N P Q, where they count."""
    loads = np.zeros(np.shape(tile["n"]), dtype=np.int64)
    if space.rules.counting.moves_accumulator and space.shape.has_bias:
        pieces = [tile_extents(space.outline(d), tile[d], tile[d.lower()]) for d in _PIXELS]
        loads = loads + bias_fills(pieces, space.side)
    return loads


def _class_a(space: LayerSpace, grid: Columns) -> Columns:
    """Accumulator tile = scratchpad tile: pixel extents worth combining with K and C."""
    grid = {**grid, "n": grid["N"], "p": grid["P"], "q": grid["Q"]}
    grid["area"] = grid["N"] * grid["P"] * grid["Q"]
    able = np.flatnonzero(space.pools(grid["P"], grid["Q"]))
    grid = {name: column[able] for name, column in grid.items()}
    grid["bias"] = _bias_loads(space, grid)
    keep = _undominated(grid, ("foot", "tiles", "volume", "area", "bias"))
    return {name: column[keep] for name, column in grid.items()}


def _class_b(space: LayerSpace, grid: Columns) -> Columns:
    """One column block by the pixels that make the fewest accumulator tiles."""
    grid = dict(grid)
    b = space.bounds
    shape = (grid["N"] * (b.P + 1) + grid["P"]) * (b.Q + 1) + grid["Q"]
    _, first, inverse = np.unique(shape, return_index=True, return_inverse=True)
    limit = space.accumulator_limit(split=True)
    tiles = zip(*(grid[d][first].tolist() for d in _PIXELS), strict=True)
    found = [best_inner(space, n, p, q, limit) or (0, 0, 0) for n, p, q in tiles]
    inner = np.array(found, dtype=np.int64)
    for name, column in zip("npq", inner[inverse].T, strict=True):
        grid[name] = column
    able = np.flatnonzero(grid["n"])
    grid = {name: column[able] for name, column in grid.items()}
    grid["l1_tiles"] = np.ones(len(able), dtype=np.int64)
    for d in _PIXELS:
        grid["l1_tiles"] *= tile_count(space.outline(d), grid[d], grid[d.lower()])
    grid["bias"] = _bias_loads(space, grid)
    keep = _undominated(grid, ("foot", "tiles", "volume", "l1_tiles", "bias"))
    return {name: column[keep] for name, column in grid.items()}


def best_inner(space: LayerSpace, n: int, p: int, q: int, limit: int) -> tuple[int, int, int] | None:
    """Accumulator extents of one column block that cut n x p x q tiles into the fewest pieces; of several
    those with the fewest loads of the bias.

    `limit`: accumulator rows of one piece.  None if no piece that a max pool can take fits.
    """
    pools = space.placement.pooled is not None
    if n * p * q <= limit and (not pools or space.pools(np.array([p]), np.array([q]))[0]):
        return n, p, q
    tiles = (space.pixel_tiles(d, size) for d, size in zip(_PIXELS, (n, p, q), strict=True))
    options = [np.array(extents, dtype=np.int64) for extents in tiles]
    columns = [a.ravel() for a in np.meshgrid(*options, indexing="ij")]
    fits = np.flatnonzero(
        (columns[0] * columns[1] * columns[2] <= limit) & space.pools(columns[1], columns[2])
    )
    if not len(fits):
        return None
    columns = [c[fits] for c in columns]
    pieces = np.ones(len(fits), dtype=np.int64)
    for d, outer, column in zip(_PIXELS, (n, p, q), columns, strict=True):
        pieces *= tile_count(space.outline(d), outer, column)
    fewest = np.flatnonzero(pieces == pieces.min())
    small = {d: column[fewest] for d, column in zip("npq", columns, strict=True)}
    best = int(np.argmin(_bias_loads(space, {"N": n, "P": p, "Q": q, **small})))
    return int(small["n"][best]), int(small["p"][best]), int(small["q"][best])


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
