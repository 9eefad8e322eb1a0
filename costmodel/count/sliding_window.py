"""Input words that Timeloop moves into the scratchpad: a sliding window keeps what tiles share.

Gemmini reloads whole tiles, so `layer_traffic` counts whole tiles unless asked otherwise.  Timeloop
keeps the overlap of consecutive input tiles as long as they move in one direction.
"""

from __future__ import annotations

from fadiff.converter.ir.loops import Dim, Dims
from fadiff.costmodel.count.timeloop_counts import Loop, words_entering
from fadiff.costmodel.mapping.mapping import Mapping, ceil_div
from fadiff.costmodel.mapping.shape import LayerShape
from fadiff.costmodel.mapping.tiling import spanned_rows


def sliding_input_words(shape: LayerShape, mapping: Mapping, *, forgets_direction: bool = False) -> int:
    """Words of I entering the scratchpad, for tiles that divide the layer (see `words_entering`)."""
    tile = mapping.tile_l2
    height, width = spanned_rows(shape.height, tile.P, tile.R), spanned_rows(shape.width, tile.Q, tile.S)
    loops = (
        Loop(ceil_div(shape.dims[d], tile[d]), _step(d, tile, shape)) for d in reversed(mapping.order_l3)
    )
    return words_entering((tile.G, tile.N, tile.C, height, width), loops, forgets_direction=forgets_direction)


def _step(d: Dim, tile: Dims, shape: LayerShape) -> tuple[int, ...]:
    """Movement of the input tile along G, N, C, height and width when the loop over `d` steps."""
    by = tile[d]
    return (
        by if d == "G" else 0,
        by if d == "N" else 0,
        by if d == "C" else 0,
        by * shape.height.stride if d == "P" else by * shape.height.dilation if d == "R" else 0,
        by * shape.width.stride if d == "Q" else by * shape.width.dilation if d == "S" else 0,
    )
