"""How a dimension falls into (ragged) tiles, and what its sliding window touches: exact integers.

Everything is a sum over the tiles that really occur.  Dimensions are independent, so a layer's
traffic is a product of the per-dimension numbers computed (and cached) here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache, partial
from operator import floordiv
from typing import NamedTuple

from fadiff.costmodel.mapping.mapping import ceil_div
from fadiff.costmodel.mapping.numbers import Number, occurs, remembered

Interval = tuple[int, int]
"""Half-open index range of one dimension."""

Outline = tuple[tuple[Number, Number], ...]
"""Extents of a dimension with how often each occurs; in columns some may be 0 and count for nothing."""


@lru_cache(maxsize=1 << 14)
def outline(intervals: tuple[Interval, ...]) -> Outline:
    """Distinct extents of regions along one dimension, ascending."""
    return tuple(sorted(Counter(stop - start for start, stop in intervals).items()))


class Division(NamedTuple):
    """Quotients rounded down and up."""

    down: Callable[[Number, Number], Number]
    up: Callable[[Number, Number], Number]


EXACT = Division(floordiv, ceil_div)
"""Of integers and columns of them."""


def cut_by(division: Division, extents: Outline, size: Number) -> Outline:
    """The tiles of `size` of all extents, and the ragged last ones."""
    counts = [(extent, division.down(extent, size), times) for extent, times in extents]
    whole = sum(times * count for _, count, times in counts)
    pieces = ((size, whole), *((extent - count * size, times) for extent, count, times in counts))
    return tuple((extent, times) for extent, times in pieces if occurs(extent * times))


cut_into = remembered(partial(cut_by, EXACT))
"""`cut_by` of integers and columns."""


def tile_extents(extents: Outline, *sizes: Number, division: Division = EXACT) -> Outline:
    """The innermost tiles when all extents are cut by sizes[0], each piece by sizes[1], ..."""
    for size in sizes:
        extents = cut_into(extents, size) if division is EXACT else cut_by(division, extents, size)
    return extents


def tile_count(extents: Outline, *sizes: Number, division: Division = EXACT) -> Number:
    """How many `tile_extents` there are."""
    *outer, size = sizes
    pieces = tile_extents(extents, *outer, division=division)
    return sum(times * division.up(extent, size) for extent, times in pieces)


class DimCounts(NamedTuple):
    """Iterations of the loops over one dimension down to each level, over all its regions."""

    regions: Number
    l3: Number
    """Scratchpad tiles."""
    l2: Number
    """Accumulator tiles."""
    l1: Number
    """Array blocks."""
    l0: Number
    """Temporal steps: an array block takes ceil(block / spatial factor)."""
    total: Number
    """Indices computed; more than the bound when regions overlap."""


@remembered
def dim_counts(extents: Outline, l2: Number, l1: Number, l0: Number, spatial: Number) -> DimCounts:
    """Counts of one dimension whose regions have the given extents."""
    regions = sum(times for _, times in extents)
    total = sum(extent * times for extent, times in extents)
    counts: list[Number] = []
    found: Number = regions
    outer: Number = None
    for size in (l2, l1, l0, spatial):
        if size is not outer:  # else one tile in each
            if outer is not None:
                extents = cut_into(extents, outer)
            found = total if isinstance(size, int) and size == 1 else tile_count(extents, size)
            outer = size
        counts.append(found)
    n3, n2, n1, n0 = counts
    return DimCounts(regions, n3, n2, n1, n0, total)


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


def spanned_rows(window: Window, outputs: Number, taps: Number) -> Number:
    """Rows from the first that a tile reads to the last, padding included."""
    return (outputs - 1) * window.stride + (taps - 1) * window.dilation + 1


def box_rows(window: Window, outputs: Number, taps: Number) -> Number:
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
