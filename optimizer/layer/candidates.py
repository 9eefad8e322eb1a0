"""Tile extents worth trying for one dimension.

A tile of extent T cuts a dimension D into ceil(D / T) tiles.  Of all extents that give the same
number of tiles the smallest, ceil(D / n), needs the least memory; there are about 2 sqrt(D) of
them.  `divisor` tiling keeps those that divide D (Timeloop's perfect factors).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal

from fadiff.costmodel.mapping.mapping import ceil_div

Tiling = Literal["ragged", "divisor"]


@cache
def ragged(size: int) -> tuple[int, ...]:
    """All distinct ceil(size / n), ascending: O(sqrt(size)) values."""
    extents = []
    n = 1
    while True:
        extent = ceil_div(size, n)
        extents.append(extent)
        if extent == 1:
            break
        n = ceil_div(size, extent - 1)
    return tuple(reversed(extents))


@cache
def divisors(size: int) -> tuple[int, ...]:
    """All divisors of `size`, ascending."""
    small = [d for d in range(1, int(size**0.5) + 1) if size % d == 0]
    return tuple(sorted({*small, *(size // d for d in small)}))


def extents(size: int, tiling: Tiling) -> tuple[int, ...]:
    """Candidate extents of a dimension of `size`, ascending, `size` included."""
    return divisors(size) if tiling == "divisor" else ragged(size)


def halved(size: int, extents: Sequence[int]) -> list[int]:
    """Of `extents` those nearest to `size`, its half, quarter, ..., descending."""
    shares = (size / 2**i for i in range(size.bit_length()))
    return sorted({min(extents, key=lambda e: abs(e - share)) for share in shares}, reverse=True)


@cache
def blocked_extents(size: int, block: int, tiling: Tiling) -> tuple[int, ...]:
    """Candidates of a dimension that is unrolled `block` wide on the array.

    Ragged extents are joined by the same extents rounded up to whole blocks: they fill every
    array pass and, in row-granular memories, cost nothing.
    """
    plain = extents(size, tiling)
    if tiling == "divisor" or block <= 1:
        return plain
    rounded = {min(size, ceil_div(extent, block) * block) for extent in plain}
    return tuple(sorted({*plain, *rounded}))
