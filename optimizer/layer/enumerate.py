"""Every mapping of one layer that can be on its energy-latency front, in columns.

Canonical form (see `orders`): three DRAM orders; the accumulator tile either covers the scratchpad
tile (class A) or is one column block by the pixels that make fewest tiles (class B).  Inside that
space the result is a superset of the front: a tile is dropped only when a larger one that fits is
at least as good in every count.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from converter.ir.dims import Dim, Dims
from costmodel.count.traffic import ALONE
from costmodel.mapping.mapping import Mapping, Order
from optimizer.layer.bias_loads import bias_loads
from optimizer.layer.footprint import Lanes, accumulator_need, scratchpad_fits, with_foot
from optimizer.layer.orders import L0_ORDER, L1_ORDER, L2_ORDER, L3_ORDERS, STATIONARY
from optimizer.layer.space import Ints, LayerSpace, tile_count

Columns = dict[str, Ints]
_CHUNK = 256
_PIXELS: tuple[Dim, ...] = ("N", "P", "Q")


@dataclass(frozen=True)
class Points:
    """Mappings of one space in columns (all arrays of one length)."""

    space: LayerSpace
    tile: Columns
    """Scratchpad-tile extents K C R S N P Q, accumulator-tile extents k n p q."""
    order: Ints
    """Index into orders.STATIONARY."""

    def __len__(self) -> int:
        return len(self.order)

    def select(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Points:
        """The chosen rows."""
        return Points(self.space, {n: c[index] for n, c in self.tile.items()}, self.order[index])

    def mapping(self, i: int) -> Mapping:
        """Row `i` as a Mapping."""
        tile = {name: int(column[i]) for name, column in self.tile.items()}
        return canonical_mapping(self.space, tile, L3_ORDERS[STATIONARY[int(self.order[i])]])


def canonical_mapping(space: LayerSpace, t: dict[str, int], order_l3: Order) -> Mapping:
    """The Mapping of scratchpad tile K C R S N P Q and accumulator tile k n p q."""
    g = space.groups_at_once
    row_c = 1 if space.shape.is_depthwise else space.block(t["C"])
    row_s = space.packed_taps(t["C"], t["S"])
    col_k = 1 if space.shape.is_depthwise else space.block(t["k"])
    return Mapping(
        tile_l2=Dims(g, t["N"], t["K"], t["C"], t["P"], t["Q"], t["R"], t["S"]),
        tile_l1=Dims(g, t["n"], t["k"], t["C"], t["p"], t["q"], t["R"], t["S"]),
        tile_l0=Dims(G=g, K=col_k, C=row_c, S=row_s),
        rows=Dims(C=row_c, S=row_s),
        cols=Dims(G=g) if space.shape.is_depthwise else Dims(K=col_k),
        order_l3=order_l3,
        order_l2=L2_ORDER,
        order_l1=L1_ORDER,
        order_l0=L0_ORDER,
    )


def enumerate_space(space: LayerSpace) -> Points:
    """All undominated canonical mappings of `space`; empty if nothing fits."""
    covering, split = _pixels(_pixels_only(space))
    blocks = [_combine(space, covering, True)]
    if split is not None and not space.output_is_in_place:
        blocks.append(_combine(space, split, False))
    tile = {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}
    order = np.repeat(np.arange(len(STATIONARY)), len(tile["K"]))
    return Points(space, {name: np.tile(c, len(STATIONARY)) for name, c in tile.items()}, order)


def _pixels_only(space: LayerSpace) -> LayerSpace:
    """`space` without what its pixel extents do not depend on: layers that differ in channels share them."""
    dims = space.shape.dims.replace({"G": 1, "K": 1, "C": 1})
    shape = space.shape._replace(dims=dims, is_depthwise=False, has_transposed_weights=False)
    placement = ALONE._replace(pooled=space.placement.pooled)
    return LayerSpace(
        shape, space.region, space.rules, placement, reserved_accumulator=space.reserved_accumulator
    )


@lru_cache(maxsize=1 << 8)
def _pixels(space: LayerSpace) -> tuple[Columns, Columns | None]:
    """Pixel extents of classes A and B; None where one accumulator row has no room for a second tile."""
    grid = _pixel_grid(space)
    has_room = space.accumulator_limit(split=True) > 0
    return _class_a(space, grid), _class_b(space, grid) if has_room else None


def _pixel_grid(space: LayerSpace) -> Columns:
    """All (R, S, N, P, Q) scratchpad extents with input volume, footprint and tiles."""
    names: tuple[Dim, ...] = ("R", "S", *_PIXELS)
    axes = [np.asarray(space.tiles(d), dtype=np.int64) for d in names]
    index = [a.ravel() for a in np.meshgrid(*(np.arange(len(x)) for x in axes), indexing="ij")]
    grid: Columns = {name: axis[i] for name, axis, i in zip(names, axes, index, strict=True)}
    grid["volume"], grid["tiles"] = (np.ones(len(index[0]), dtype=np.int64) for _ in range(2))
    for out, taps in ((3, 0), (4, 1)):
        dim: Dim = names[out]
        pairs = [(int(o), int(t)) for o in axes[out] for t in axes[taps]]
        shape = (len(axes[out]), len(axes[taps]))
        volume = np.array([space.input_positions(dim, o, t) for o, t in pairs], dtype=np.int64)
        grid["volume"] *= volume.reshape(shape)[index[out], index[taps]]
    for d in _PIXELS:
        grid["tiles"] *= tile_count(space.outline(d), grid[d])
    return with_foot(space, grid)


def _class_a(space: LayerSpace, grid: Columns) -> Columns:
    """Accumulator tile = scratchpad tile: pixel extents worth combining with K and C."""
    grid = {**grid, "n": grid["N"], "p": grid["P"], "q": grid["Q"]}
    grid["area"] = grid["N"] * grid["P"] * grid["Q"]
    able = np.flatnonzero(space.pools(grid["P"], grid["Q"]))
    grid = {name: column[able] for name, column in grid.items()}
    grid["bias"] = bias_loads(space, grid)
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
    grid["bias"] = bias_loads(space, grid)
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
        pieces *= tile_count(space.outline(d), np.full_like(column, outer), column)
    fewest = np.flatnonzero(pieces == pieces.min())
    small = {d: column[fewest] for d, column in zip("npq", columns, strict=True)}
    large = {d: np.full(len(fewest), size) for d, size in zip("NPQ", (n, p, q), strict=True)}
    best = int(np.argmin(bias_loads(space, large | small)))
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
    tile = {name: pixels[name][:, None, None] for name in ("R", "S", "N", "P", "Q", "n", "p", "q", "foot")}
    tile.update(C=c[None, :, None], K=k[None, None, :], k=(k if covers else col)[None, None, :])
    lanes = Lanes(rows=row[None, :, None], columns=col[None, None, :])
    fits = scratchpad_fits(space, tile, lanes)
    if covers:  # class B keeps to the limit by construction
        fits = fits & (accumulator_need(space, tile, lanes) <= space.accumulator_limit(split=False))

    keep = _records(fits, pass_k, axis=2) & _records(fits, pass_c, axis=1)
    if not covers:  # a larger tile may be more than the one array block of weights that stays in the array
        single = fits & space.is_one_block(tile)
        keep |= _records(single, pass_k, axis=2) & _records(single, pass_c, axis=1)
    j, ic, ik = np.nonzero(keep)
    out = {name: pixels[name][j] for name in ("R", "S", "N", "P", "Q", "n", "p", "q")}
    out["K"], out["C"] = k[ik], c[ic]
    out["k"] = k[ik] if covers else col[ik]
    return out


def _records(fits: NDArray[np.bool_], passes: Ints, axis: int) -> NDArray[np.bool_]:
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
