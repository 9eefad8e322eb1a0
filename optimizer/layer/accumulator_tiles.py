"""Accumulator tiles of one column block in given scratchpad tiles: every shape that can be optimal.

More columns at once take more room and save nothing.  Of the pixels two numbers matter: how many
accumulator tiles there are, since weights enter the array for each of them, and how many loads of the bias
initialise them, up to a row of the array at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fadiff.converter.ir.loops import Dim
from fadiff.costmodel.count.nest import bias_fills
from fadiff.costmodel.count.traffic import ALONE
from fadiff.costmodel.mapping.tiling import Outline, tile_extents
from fadiff.optimizer.layer.space import Ints, LayerSpace

Columns = dict[str, Ints]
PIXELS: tuple[Dim, ...] = ("N", "P", "Q")
_BATCH = 64
"""Scratchpad tiles whose shapes are compared at once, so that they take megabytes."""


def pixels_only(space: LayerSpace) -> LayerSpace:
    """`space` without what its pixel extents do not depend on: layers that differ in channels share them."""
    dims = space.shape.dims.replace({"G": 1, "K": 1, "C": 1})
    shape = space.shape._replace(dims=dims, is_depthwise=False, has_transposed_weights=False)
    placement = ALONE._replace(pooled=space.placement.pooled)
    region = space.region._replace(G=((0, 1),), K=((0, 1),))
    return LayerSpace(shape, region, space.rules, placement)


def fewest_tiles(space: LayerSpace, outer: Sequence[Ints], limit: int) -> Columns:
    """The shape of at most `limit` rows that cuts each scratchpad tile into the fewest accumulator tiles.

    Args:
        space: Of the layer.
        outer: Extents of the scratchpad tiles along N, P and Q, one column each.
        limit: Accumulator rows of one tile.

    Returns:
        Columns `at` (which scratchpad tile; those of which no shape fits are missing), n, p, q, l1_tiles (in
        all of the layer) and bias (loads per column block; 0 where none count).
    """
    return _fewest(space, _axes(space, outer, limit), limit)


def undominated_tiles(space: LayerSpace, outer: Sequence[Ints], limit: int) -> Columns:
    """As `fewest_tiles`, but all shapes that no other one has both as few tiles and as few loads as."""
    axes = _axes(space, outer, limit)
    fewest = _fewest(space, axes, limit)
    # Whole scratchpad tiles take the fewest loads: more cuts, more rows of the array that are not full.
    more = fewest["bias"] > bias_loads(space, [column[fewest["at"]] for column in outer])
    found = [_select(fewest, np.flatnonzero(~more))]
    for start in range(0, int(more.sum()), _BATCH):
        every = _shapes(space, axes, fewest["at"][more][start : start + _BATCH], limit)
        found.append(_select(every, _falling(every)))
    return {name: np.concatenate([part[name] for part in found]) for name in fewest}


def bias_loads(space: LayerSpace, outer: Sequence[Ints]) -> Ints:
    """Loads of the bias, where they count, if accumulator tiles cover scratchpad tiles N, P, Q."""
    return _bias(
        space, [tile_extents(space.outline(d), column) for d, column in zip(PIXELS, outer, strict=True)]
    )


def spread(begin: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """Of every range that starts at `begin` all members: which range, member."""
    row = np.repeat(np.arange(len(sizes)), sizes)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes - begin, sizes)


@dataclass(frozen=True)
class _Axis:
    """Accumulator extents along one dimension in distinct scratchpad extents: all pairs, ascending."""

    place: Ints
    """Of every scratchpad tile: that of its extent among the distinct ones."""
    of: Ints
    """Of every pair: place of its scratchpad extent."""
    extent: Ints
    tiles: Ints
    pieces: Outline

    def only(self, index: Ints) -> _Axis:
        """Some of the pairs."""
        pieces = tuple((extent[index], times[index]) for extent, times in self.pieces)
        return _Axis(self.place, self.of[index], self.extent[index], self.tiles[index], pieces)

    def fewest(self) -> _Axis:
        """The least extent for each number of tiles."""
        first = (np.diff(self.of, prepend=-1) > 0) | (np.diff(self.tiles, prepend=0) != 0)
        return self.only(np.flatnonzero(first))

    def pairs(self, at: Ints, most: Ints) -> tuple[Ints, Ints]:
        """All pairs of scratchpad tiles `at` with extents up to `most`: index into `at`, pair."""
        span = int(self.extent.max()) + 1
        keys = self.of * span + self.extent
        low = self.place[at] * span
        begin = np.searchsorted(keys, low)
        sizes = np.searchsorted(keys, low + np.minimum(most, span - 1), side="right") - begin
        return spread(begin, sizes)


def _axes(space: LayerSpace, outer: Sequence[Ints], limit: int) -> list[_Axis]:
    axes = []
    for dim, column in zip(PIXELS, outer, strict=True):
        distinct, place = np.unique(column, return_inverse=True)
        inner = [space.accumulator_extents(dim, int(extent), limit) for extent in distinct]
        of = np.repeat(np.arange(len(distinct)), [len(extents) for extents in inner])
        extent = np.concatenate(inner)
        found = tile_extents(space.outline(dim), distinct[of], extent)
        pieces = tuple((e, np.broadcast_to(times, len(of))) for e, times in found)
        axes.append(_Axis(place, of, extent, np.asarray(sum(times * (e > 0) for e, times in pieces)), pieces))
    return axes


def _fewest(space: LayerSpace, axes: Sequence[_Axis], limit: int) -> Columns:
    fewest = _shapes(space, [axis.fewest() for axis in axes], np.arange(len(axes[0].place)), limit)
    order = np.lexsort((fewest["bias"], fewest["l1_tiles"], fewest["at"]))
    return _select(fewest, order[np.flatnonzero(np.diff(fewest["at"][order], prepend=-1))])


def _shapes(space: LayerSpace, axes: Sequence[_Axis], at: Ints, limit: int) -> Columns:
    """Every shape that fits and that a max pool can take, of scratchpad tiles `at`."""
    chosen: list[Ints] = []
    area = np.ones(len(at), dtype=np.int64)
    for axis in axes:
        row, pair = axis.pairs(at, limit // area)
        at, area = at[row], area[row] * axis.extent[pair]
        chosen = [*(earlier[row] for earlier in chosen), pair]
    found = {name: axis.extent[pair] for name, axis, pair in zip("npq", axes, chosen, strict=True)}
    able = np.flatnonzero(space.pools(found["p"], found["q"]))
    used = [axis.only(pair[able]) for axis, pair in zip(axes, chosen, strict=True)]
    found = _select({"at": at, **found}, able)
    found["l1_tiles"] = np.multiply.reduce([axis.tiles for axis in used])
    found["bias"] = np.broadcast_to(_bias(space, [axis.pieces for axis in used]), len(able))
    return found


def _bias(space: LayerSpace, pieces: Sequence[Outline]) -> Ints:
    """Where the clock counts there are as many strips of pixels, with a bias or without."""
    rules = space.rules
    counts = rules.counting.moves_accumulator and (space.shape.has_bias or rules.latency == "clock")
    return np.asarray(bias_fills(pieces, space.side) if counts else 0, dtype=np.int64)


def _falling(shapes: Columns) -> Ints:
    """Shapes with fewer loads of the bias than all with as few tiles of the same scratchpad tile."""
    order = np.lexsort((shapes["bias"], shapes["l1_tiles"], shapes["at"]))
    # Further down from one scratchpad tile to the next, so that each has a minimum of its own.
    loads = (shapes["bias"] - shapes["at"] * (shapes["bias"].max(initial=0) + 1))[order]
    return order[np.flatnonzero(np.diff(np.minimum.accumulate(loads), prepend=loads[:1] + 1) < 0)]


def _select(columns: Columns, index: Ints) -> Columns:
    return {name: column[index] for name, column in columns.items()}
