"""How tiles lie in Gemmini's row-granular memories (profile hw), for one mapping or columns of them.

Legality and search ask these functions, so that what is legal here, is searched there and is emitted is one
set (docs/execution-contract.md section 2).  Extents of tiles and spatial factors of the array's rows and
columns are sequences in the order of fadiff.converter.ir.loops.DIMS.  `blocks` divides and rounds up; the
relaxed model's has a gradient.
"""

from __future__ import annotations

from collections.abc import Callable

from fadiff.converter.ir.loops import C, Dim, G, K, N, P, Q, R, S
from fadiff.costmodel.mapping.columns import Extents
from fadiff.costmodel.mapping.mapping import ceil_div
from fadiff.costmodel.mapping.numbers import Number
from fadiff.costmodel.mapping.shape import LayerShape

Divide = Callable[[Number, Number], Number]


def weight_rows(
    tile: Extents, rows: Extents, cols: Extents, *, transposed: bool, blocks: Divide = ceil_div
) -> Number:
    """Scratchpad rows of one W tile: a row holds a block of K (`transposed`, stored along C: of C)."""
    inside, across = (K, blocks(tile[C], rows[C])) if transposed else (C, blocks(tile[K], cols[K]))
    return tile[G] * tile[R] * tile[S] * tile[inside] * across


def input_rows(tile: Extents, rows: Extents, cols: Extents, box: Number, blocks: Divide = ceil_div) -> Number:
    """Scratchpad rows of one I tile: a row holds a block of C (depthwise: of G) of one pixel of the `box`."""
    return tile[N] * box * blocks(tile[G], cols[G]) * blocks(tile[C], rows[C])


def output_rows(tile: Extents, cols: Extents, blocks: Divide = ceil_div) -> Number:
    """Accumulator rows of one O tile: a row holds a block of K (depthwise: of G) of one pixel.

    The first column has a word in every row, so it is also what Timeloop must find in one accumulator
    slice (profile dosa), however few columns the last block fills.
    """
    return tile[N] * tile[P] * tile[Q] * blocks(tile[G], cols[G]) * blocks(tile[K], cols[K])


def splits_block(inner: Number, outer: Number, block: Number) -> Number:
    """Whether tiles of `inner` indices cut `outer` indices within a block of the array.

    A block's rows lie together, so that only a tile that starts with a block can be addressed.
    """
    return (inner % block != 0) & (inner < outer)


def resident_dim(shape: LayerShape) -> Dim:
    """The dimension whose array blocks follow one another in a resident weight tensor."""
    if shape.is_depthwise:
        return "G"
    return "C" if shape.has_transposed_weights else "K"


def packed_inputs_fit(
    input_rows: Number, twice: Number, weights: Number, room: Number, rows: int, taps: Number
) -> Number:
    """Whether row-packed input tiles can avoid the middle of the scratchpad.

    The pixel repeater (pixel_repeats of mvin) stops at the middle, so every input tile lies in one
    half; it also writes up to taps - 1 rows before a tile, which must not be weights.

    Args:
        input_rows: Rows of one input tile.
        twice: Whether it is double-buffered.
        weights: Rows of all weight tiles that move; 0 for resident weights.
        room: Scratchpad rows that resident weights, which lie at the top, leave free.
        rows: Scratchpad rows.
        taps: Pixels in one row (rows.S).
    """
    middle = rows // 2
    together = (1 + twice) * input_rows
    below = (together <= middle) & (together + weights <= room)
    # One tile in each half: the weights between them or beside one of them.
    beside = (
        (weights <= room - together - (taps - 1))
        | (weights <= room - middle - input_rows)
        | (weights <= middle - input_rows)
    )
    apart = twice & (input_rows <= middle) & (middle <= room - input_rows) & beside
    return below | apart
