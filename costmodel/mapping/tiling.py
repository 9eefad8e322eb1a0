"""How a dimension falls into (ragged) tiles, and what its sliding window touches: exact integers.

Everything is a sum over the tiles that really occur.  Dimensions are independent, so a layer's
traffic is a product of the per-dimension numbers computed (and cached) here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.mapping.mapping import ceil_div

Interval = tuple[int, int]
"""Half-open index range of one dimension."""
Extents = TypeVar("Extents", int, NDArray[np.int64])
"""One extent, or a column of them."""


@lru_cache(maxsize=1 << 16)
def tile_extents(extent: int, sizes: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(extent, how many) of the innermost tiles: `extent` cut by sizes[0], each piece by sizes[1], ..."""
    if not sizes:
        return ((extent, 1),)
    size, inner = sizes[0], sizes[1:]
    histogram: dict[int, int] = {}
    whole, rest = divmod(extent, size)
    for piece, count in ((size, whole), (rest, 1)):
        if piece and count:
            for leaf, times in tile_extents(piece, inner):
                histogram[leaf] = histogram.get(leaf, 0) + count * times
    return tuple(histogram.items())


class DimCounts(NamedTuple):
    """Iterations of the loops over one dimension down to each level, over all its regions."""

    regions: int
    l3: int
    """Scratchpad tiles."""
    l2: int
    """Accumulator tiles."""
    l1: int
    """Array blocks."""
    l0: int
    """Temporal steps: an array block takes ceil(block / spatial factor)."""
    total: int
    """Indices computed; more than the bound when regions overlap."""


@lru_cache(maxsize=1 << 16)
def dim_counts(extents: tuple[int, ...], l2: int, l1: int, l0: int, spatial: int) -> DimCounts:
    """Counts of one dimension whose regions have the given extents."""
    n3 = n2 = n1 = n0 = 0
    for extent in extents:
        n3 += ceil_div(extent, l2)
        n2 += sum(count for _, count in tile_extents(extent, (l2, l1)))
        for block, count in tile_extents(extent, (l2, l1, l0)):
            n1 += count
            n0 += count * ceil_div(block, spatial)
    return DimCounts(len(extents), n3, n2, n1, n0, sum(extents))


class Window(NamedTuple):
    """One image axis of a convolution: how output index p and kernel tap r address the input.

    input index = p * stride + r * dilation - pad, inside the image when in [0, size).
    """

    kernel: int
    stride: int
    dilation: int
    pad: int
    size: int


def touched_rows(window: Window, outputs: Interval, taps: Interval) -> int:
    """Rows of the image that one fetched box reads: clipped to the image, padding costs nothing.

    Along an axis whose kernel is 1 only the touched rows, otherwise the bounding box.
    """
    first = outputs[0] * window.stride + taps[0] * window.dilation - window.pad
    last = (outputs[1] - 1) * window.stride + (taps[1] - 1) * window.dilation - window.pad
    if window.kernel > 1:
        return max(0, min(last, window.size - 1) - max(first, 0) + 1)
    low = max(outputs[0], ceil_div(window.pad, window.stride))
    high = min(outputs[1] - 1, (window.size - 1 + window.pad) // window.stride)
    return max(0, high - low + 1)


def spanned_rows(window: Window, outputs: Extents, taps: Extents) -> Extents:
    """Rows from the first that a tile reads to the last, padding included."""
    return (outputs - 1) * window.stride + (taps - 1) * window.dilation + 1


def box_rows(window: Window, outputs: Extents, taps: Extents) -> Extents:
    """Rows one tile occupies on chip, padding included (kernel 1: only the touched ones)."""
    return outputs if window.kernel == 1 else spanned_rows(window, outputs, taps)


@lru_cache(maxsize=1 << 16)
def fetched_rows(window: Window, regions: tuple[Interval, ...], tile: int, taps: int) -> int:
    """Sum of `touched_rows` over the scratchpad tiles of all regions and all kernel tiles."""
    if window.kernel == 1:
        # Tiles share no row: only the touched ones move.
        return sum(touched_rows(window, region, (0, 1)) for region in regions)
    rows = 0
    for start, stop in regions:
        whole, tail = divmod(stop - start, tile)
        for r in range(0, window.kernel, taps):
            end = min(r + taps, window.kernel)
            rows += _touched_by_whole_tiles(window, start, tile, whole, (r, end))
            if tail:
                rows += touched_rows(window, (stop - tail, stop), (r, end))
    return rows


def _touched_by_whole_tiles(window: Window, start: int, tile: int, count: int, taps: Interval) -> int:
    """Sum of `touched_rows` over `count` whole tiles from output `start` on; no loop: images can be long.

    A tile touches [low, high) clipped to [0, size): clip(high) - clip(low), and both ends go up by
    the same step from tile to tile.
    """
    step = tile * window.stride
    low = start * window.stride + taps[0] * window.dilation - window.pad
    high = (start + tile - 1) * window.stride + (taps[1] - 1) * window.dilation - window.pad + 1

    def clipped_sum(first: int) -> int:
        negative = min(max(ceil_div(-first, step), 0), count)
        inside = min(max(ceil_div(window.size - first, step), 0), count)
        between = inside - negative
        return (
            between * first + step * (negative + inside - 1) * between // 2 + (count - inside) * window.size
        )

    return clipped_sum(high) - clipped_sum(low)


@lru_cache(maxsize=1 << 16)
def unclipped_rows(window: Window, extents: tuple[int, ...], tile: int, taps: int) -> int:
    """Like `fetched_rows` by Timeloop's rule: the bounding box, padding is part of the input."""
    rows = 0
    n_taps = ceil_div(window.kernel, taps)
    for extent in extents:
        n = ceil_div(extent, tile)
        rows += n_taps * window.stride * (extent - n) + n * window.dilation * (window.kernel - n_taps)
        rows += n * n_taps
    return rows
