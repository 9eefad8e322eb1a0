"""Latency model `rtl` of a relaxed mapping: costmodel.latency.rtl_work with tensors [B, L], differentiable.

Counts of pieces are exact in the forward pass and have the gradient of the plain ratio.  Cache
behaviour is [B, L, O] (O loop orders) and mixed by order weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from converter.ir.dims import DIMS, REDUCTION, C, G, K, N, P, Q, R, S
from costmodel.count.traffic import Fusion, Quantities
from costmodel.latency.rtl import (
    LINE_BYTES,
    CacheUse,
    Loop,
    Number,
    Reuse,
    Stream,
    Work,
    cache_use,
    calibration,
    cycles,
)
from costmodel.latency.rtl_work import request_bytes, short_strip, walks
from costmodel.relaxed.straight_through import ceil, exact, floor
from costmodel.relaxed.terms import Terms


def rtl_cycles(terms: Terms, q: Quantities, fusion: Fusion) -> Tensor:
    """Predicted RTL cycles [B, L]."""
    m, p = terms.model, terms.point
    constants = m.rtl
    e, side, longest = m.target.element_bytes, m.target.side, request_bytes(m.target)
    dw = m.depthwise
    along_k, along_c = (_tile_pieces(terms, d, longest // e) / m.bounds[:, d] for d in (K, C))
    per_weight = dw / p.l0[..., G] + (1 - dw) * ((1 - m.transposed) * along_k + m.transposed * along_c)
    in_channels, in_pieces = _by_channel(terms, C, lambda d: _tile_pieces(terms, d, longest // e))
    out_channels, out_pieces = _by_channel(terms, K, lambda d: _row_pieces(terms, d, side))
    requests = q.weight_fills * per_weight + q.input_fills / in_channels * in_pieces
    spilled = q.spills * m.target.accumulator_bytes_per_word
    stored = q.outputs / out_channels * out_pieces + spilled / longest
    pixels = q.input_fills / terms.fetch_i / in_channels
    use = _cache_use(terms, pixels)
    into, written = (torch.as_tensor(x, dtype=m.dtype)[..., None] for x in (fusion.into, fusion.written))
    repeats = terms.n2
    work = Work(
        is_matmul=constants.is_matmul[:, None],
        side=side,
        tiles=repeats.prod(dim=-1)[..., None],
        array_cycles=_array_cycles(terms, q, side)[..., None],
        requests=(requests + spilled / longest)[..., None],
        loaded_bytes=((q.weight_fills + q.input_fills) * e + spilled)[..., None],
        stored_rows=stored[..., None],
        weights=use.weights,
        inputs=use.inputs._replace(lines=use.inputs.lines * (1 - into)),
        outputs=use.outputs._replace(lines=use.outputs.lines * written),
    )
    predicted: Tensor = cycles(work, calibration()[0])
    return (predicted * p.order).sum(dim=-1)


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
    tile, short = terms.point.l1[..., d], short_strip(side)
    with torch.no_grad():
        pixels, times = terms.pieces(d)
        rest = pixels - floor(pixels / side) * side
        missing = torch.where(rest > 1e-3, (short - rest).clamp(min=0), torch.zeros_like(rest))
        cycles_per_pixel = 1 + (times * missing).sum(dim=-1) / (times * pixels).sum(dim=-1)
    return exact(cycles_per_pixel, torch.clamp(short / tile, min=1))


def _cache_use(terms: Terms, pixels: Tensor) -> CacheUse:
    """`cache_use` under every loop order, [B, L, O]; `pixels` are those of one pass."""
    m, l2 = terms.model, terms.point.l2
    e, dw = m.target.element_bytes, m.depthwise
    boxes = terms.n3[..., [N, P, Q, R, S]].prod(dim=-1)
    trips = terms.own_trips()
    # The tiles of a group are the outermost loops.
    runs = [] if terms.runs is None else list(zip((Q, P, N), reversed(terms.runs), strict=True))
    groups = dw + (1 - dw) * l2[..., G]
    block = dw * terms.point.l0[..., G]
    along = m.transposed * l2[..., C] + (1 - m.transposed) * l2[..., K]
    weights = l2[..., G] * l2[..., K] * l2[..., C] * l2[..., R] * l2[..., S]
    rows = (
        weights / (dw + (1 - dw) * along),
        pixels / boxes * groups / (dw + (1 - dw) * m.bounds[:, G]),
        groups * l2[..., N] * l2[..., P] * l2[..., Q],
    )
    spans = (
        block + (1 - dw) * along,
        dw * l2[..., G] + (1 - dw) * l2[..., C],
        dw * l2[..., G] + (1 - dw) * l2[..., K],
    )
    wholes = (block * e + (1 - dw) * m.rtl.whole[0], m.rtl.whole[1], m.rtl.whole[2])
    parts = []
    for kind, layers in m.rtl.layers.items():
        streams = [
            Stream(
                rows[at][:, layers],
                spans[at][:, layers] * e,
                wholes[at][..., layers],
                wholes[at][..., layers].clamp(max=LINE_BYTES),
                m.rtl.pitch[at][layers],
            )
            for at in range(3)
        ]
        uses = [
            cache_use(
                streams,
                [
                    *(Loop(trips[:, layers, d], walks(d, kind), DIMS[d] in REDUCTION) for d in order),
                    *(Loop(times[:, layers], walks(d, kind), False) for d, times in runs),
                ],
                _largest,
            )
            for order in m.rtl.loops
        ]
        parts.append(_join(uses, lambda tensors: torch.stack(tensors, dim=-1)))
    return _join(parts, lambda tensors: torch.cat(tensors, dim=1)[:, m.rtl.place])


def _join(parts: list[CacheUse], join: Callable[[list[Tensor]], Tensor]) -> CacheUse:
    """Put orders beside each other, or layers."""

    def tensors(values: Sequence[Number]) -> Tensor:
        shapes = [part.weights.footprint for part in parts]
        return join(
            [
                torch.as_tensor(v, dtype=like.dtype).expand_as(like)
                for v, like in zip(values, shapes, strict=True)
            ]
        )

    def reuse(values: Sequence[Reuse]) -> Reuse:
        return Reuse(
            tensors([v.lines for v in values]),
            [tensors(place) for place in zip(*(v.again for v in values), strict=True)],
            [tensors(place) for place in zip(*(v.touched for v in values), strict=True)],
            tensors([v.footprint for v in values]),
        )

    return CacheUse._make(reuse(operand) for operand in zip(*parts, strict=True))
