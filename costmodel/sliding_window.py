"""Input words that Timeloop moves into the scratchpad: a sliding window keeps what tiles share.

Gemmini reloads whole tiles, so `layer_traffic` counts whole tiles.  Timeloop keeps the overlap of
consecutive input tiles as long as they move in one direction; this is its count, for comparison.
"""

from __future__ import annotations

import math

from converter.dims import Dim, Dims
from costmodel.mapping import Mapping, ceil_div
from costmodel.shape import LayerShape

Movement = tuple[int, ...]
"""How far an input tile moves along G, N, C, height and width."""


def sliding_input_words(shape: LayerShape, mapping: Mapping) -> int:
    """Words of I entering the scratchpad, for tiles that divide the layer.

    Timeloop steps every loop once and lets that step stand for all others, so when an outer loop
    steps, the loops inside it jump back by one: if the tile then stays where it was nothing is
    fetched, if it moves as the innermost moving loop does the overlap is kept, and otherwise the
    whole tile is fetched.
    """
    tile = mapping.tile_l2
    height, width = shape.height, shape.width
    extents = (
        tile.G,
        tile.N,
        tile.C,
        (tile.P - 1) * height.stride + (tile.R - 1) * height.dilation + 1,
        (tile.Q - 1) * width.stride + (tile.S - 1) * width.dilation + 1,
    )
    words = total = math.prod(extents)
    jumped: Movement = (0, 0, 0, 0, 0)
    first: Movement | None = None
    kept = 0
    for d in reversed(mapping.order_l3):
        trips = ceil_div(shape.dims[d], tile[d])
        if trips == 1:
            continue
        step = _step(d, tile, shape)
        moved = tuple(a - b for a, b in zip(step, jumped, strict=True))
        if any(moved) and first is None:
            first = step
            kept = math.prod(max(0, extent - by) for extent, by in zip(extents, step, strict=True))
        stays = words if not any(moved) else kept if moved == first else 0
        total = trips * total - (trips - 1) * stays
        jumped = tuple(a + b for a, b in zip(jumped, step, strict=True))
    return total


def _step(d: Dim, tile: Dims, shape: LayerShape) -> Movement:
    """Movement of the input tile when the loop over `d` steps."""
    by = tile[d]
    return (
        by if d == "G" else 0,
        by if d == "N" else 0,
        by if d == "C" else 0,
        by * shape.height.stride if d == "P" else by * shape.height.dilation if d == "R" else 0,
        by * shape.width.stride if d == "Q" else by * shape.width.dilation if d == "S" else 0,
    )
