"""Latency model `rtl` of a relaxed mapping: costmodel.rtl_work with tensors [B, L], differentiable.

Counts of pieces are exact in the forward pass and have the gradient of the plain ratio.  Cache
behaviour is [B, L, O] (O loop orders, those of fused layers included) and mixed by order weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from converter.dims import DIMS, REDUCTION
from costmodel.rtl import (
    LINE_BYTES,
    OPERANDS,
    Loop,
    Number,
    Reuse,
    Stream,
    Work,
    calibration,
    cycles,
    pitch_lines,
    reuse_in_caches,
)
from costmodel.rtl_work import is_matmul, moves_rows, request_bytes, short_strip, streams_height
from costmodel.shape import LayerShape
from costmodel.straight_through import ceil, exact
from costmodel.traffic import Fusion, Quantities

if TYPE_CHECKING:
    from costmodel.relaxed_terms import Terms

G, N, K, C, P, Q, R, S = range(8)


class RtlConstants:
    """What the latency needs of the layers and the loop orders, once per network."""

    def __init__(
        self, shapes: Sequence[LayerShape], l3_loops: Tensor, element: int, dtype: torch.dtype
    ) -> None:
        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(list(values), dtype=dtype)

        self.is_matmul = column([is_matmul(shape) for shape in shapes])
        self.streams_height = torch.tensor([streams_height(shape) for shape in shapes])
        dims = [shape.dims for shape in shapes]
        # A depthwise weight row is one array block, as wide as the mapping says: whole[0] is not used.
        widths = (
            [1 if shape.is_depthwise else shape.dims.K for shape in shapes],
            [d.C if not shape.is_depthwise else d.G for shape, d in zip(shapes, dims, strict=True)],
            [d.K if not shape.is_depthwise else d.G for shape, d in zip(shapes, dims, strict=True)],
        )
        #: [operand][L]: bytes of all channels of a row, and its pitch in lines.
        self.whole = [column([width * element for width in row]) for row in widths]
        self.pitch = [column([pitch_lines(width * element) for width in row]) for row in widths]
        #: [operand][position][L, O]: does the loop at this place (innermost first) move rows, the segment.
        self.rows: list[list[Tensor]] = []
        self.segment: list[list[Tensor]] = []
        for operand in OPERANDS:
            segment_dim = [self._segment(shape, operand) for shape in shapes]
            moves = [[moves_rows(d, operand) for d in range(8)]] * len(shapes)
            in_segment = torch.tensor([[d == s for d in range(8)] for s in segment_dim], dtype=dtype)
            in_rows = torch.tensor(moves, dtype=dtype) * (1 - in_segment)
            self.rows.append([in_rows[:, l3_loops[:, i]] for i in range(8)])
            self.segment.append([in_segment[:, l3_loops[:, i]] for i in range(8)])
        reduces = torch.tensor([d in REDUCTION for d in DIMS], dtype=dtype)
        self.reduces = [reduces[l3_loops[:, i]] for i in range(8)]
        self.l3_loops = l3_loops

    @staticmethod
    def _segment(shape: LayerShape, operand: str) -> int:
        if shape.is_depthwise:
            return -1 if operand == "W" else G
        return C if operand == "I" else K


def rtl_cycles(terms: Terms, q: Quantities, fusion: Fusion) -> Tensor:
    """Predicted RTL cycles [B, L]."""
    m, p = terms.model, terms.point
    constants = m.rtl
    e, side, longest = m.target.element_bytes, m.target.side, request_bytes(m.target)
    dw = m.depthwise
    weight_columns = dw * p.l0[..., G] + (1 - dw) * m.bounds[:, K]
    weight_pieces = dw + (1 - dw) * _tile_pieces(terms, K, longest // e)
    in_channels, in_pieces = _by_channel(terms, C, lambda d: _tile_pieces(terms, d, longest // e))
    out_channels, out_pieces = _by_channel(terms, K, lambda d: _row_pieces(terms, d, side))
    requests = q.weight_fills / weight_columns * weight_pieces + q.input_fills / in_channels * in_pieces
    spilled = q.spills * m.target.accumulator_bytes_per_word
    stored = q.outputs / out_channels * out_pieces + spilled / longest
    pixels = q.input_fills / terms.fetch_i / in_channels
    (weights, inputs, outputs), footprint = _reuse(terms, pixels)
    into, written = (torch.as_tensor(x, dtype=m.dtype)[..., None] for x in (fusion.into, fusion.written))
    repeats = terms.n2 / terms.n3 * terms.outer_trips()
    work = Work(
        is_matmul=constants.is_matmul[:, None],
        tiles=repeats.prod(dim=-1)[..., None],
        array_cycles=_array_cycles(terms, q, side)[..., None],
        requests=(requests + spilled / longest)[..., None],
        loaded_bytes=((q.weight_fills + q.input_fills) * e + spilled)[..., None],
        stored_rows=stored[..., None],
        weights=weights,
        inputs=Reuse(inputs.lines * (1 - into), inputs.again),
        outputs=Reuse(outputs.lines * written, outputs.again),
        footprint=footprint,
    )
    predicted: Tensor = cycles(work, calibration()[0])
    return (predicted * terms.order_weights()).sum(dim=-1)


def _largest(a: Number, b: Number) -> Tensor:
    return torch.maximum(torch.as_tensor(a), torch.as_tensor(b))


def _tile_pieces(terms: Terms, d: int, size: int) -> Tensor:
    """Pieces of at most `size` indices of the scratchpad tiles along d."""
    bound, tile = terms.model.bounds[:, d], terms.point.l2[..., d]
    with torch.no_grad():
        tiles = terms.n3[..., d]
        pieces = (tiles - 1) * ceil(tile / size) + ceil((bound - (tiles - 1) * tile) / size)
    return exact(pieces, torch.maximum(bound / tile, bound / size))


def _row_pieces(terms: Terms, d: int, size: int) -> Tensor:
    """Pieces of at most `size` indices of the accumulator tiles along d."""
    bound, tile = terms.model.bounds[:, d], terms.point.l1[..., d]
    with torch.no_grad():
        extent, times = terms.pieces(d)
        pieces = (times * ceil(extent / size)).sum(dim=-1)
    return exact(pieces, torch.maximum(bound / tile, bound / size))


def _by_channel(terms: Terms, d: int, pieces: Callable[[int], Tensor]) -> tuple[Tensor, Tensor]:
    """Channels and their pieces: along d, along G in a depthwise layer."""
    m = terms.model
    channels = m.depthwise * m.bounds[:, G] + (1 - m.depthwise) * m.bounds[:, d]
    return channels, m.depthwise * pieces(G) + (1 - m.depthwise) * pieces(d)


def _array_cycles(terms: Terms, q: Quantities, side: int) -> Tensor:
    """Temporal steps, longer by how much its short strips are longer than their pixels."""
    m = terms.model
    height, width = _stretch(terms, P, side), _stretch(terms, Q, side)
    steps: Tensor = q.compute_cycles
    return steps * torch.where(m.rtl.streams_height, height, width)


def _stretch(terms: Terms, d: int, side: int) -> Tensor:
    """Cycles per pixel along the streamed axis."""
    bound, tile, short = terms.model.bounds[:, d], terms.point.l1[..., d], short_strip(side)
    with torch.no_grad():
        pixels, times = terms.pieces(d)
        rest = pixels - torch.floor(pixels / side + 1e-4) * side
        missing = torch.where(rest > 1e-3, (short - rest).clamp(min=0), torch.zeros_like(rest))
        cycles_per_pixel = 1 + (times * missing).sum(dim=-1) / bound
    return exact(cycles_per_pixel, torch.clamp(short / tile, min=1))


def _reuse(terms: Terms, pixels: Tensor) -> tuple[list[Reuse], Number]:
    """Cache behaviour of W, I and O under every loop order; `pixels` are those of one pass."""
    m, l2 = terms.model, terms.point.l2
    e, dw = m.target.element_bytes, m.depthwise
    trips = terms.outer_trips()
    boxes = trips[..., [N, P, Q, R, S]].prod(dim=-1)
    image = l2[..., N] * l2[..., P] * l2[..., Q]
    groups = dw + (1 - dw) * l2[..., G]
    block = dw * terms.point.l0[..., G]
    rows = (
        l2[..., G] * l2[..., C] * l2[..., R] * l2[..., S],
        pixels / boxes * groups / (dw + (1 - dw) * m.bounds[:, G]),
        groups * image,
    )
    segments = (
        block + (1 - dw) * l2[..., K],
        dw * l2[..., G] + (1 - dw) * l2[..., C],
        dw * l2[..., G] + (1 - dw) * l2[..., K],
    )
    wholes = ((block + (1 - dw) * m.bounds[:, K]) * e, m.rtl.whole[1], m.rtl.whole[2])
    streams = [
        Stream(
            rows[at][..., None],
            (segments[at] * e)[..., None],
            wholes[at][..., None],
            torch.clamp(wholes[at], max=LINE_BYTES)[..., None],
            m.rtl.pitch[at][:, None],
        )
        for at in range(3)
    ]
    loops = [
        Loop(
            trips[..., m.rtl.l3_loops[:, place]],
            [moved[place] for moved in m.rtl.rows],
            [moved[place] for moved in m.rtl.segment],
            m.rtl.reduces[place],
        )
        for place in range(8)
    ]
    return reuse_in_caches(streams, loops, _largest, reload=False)
