"""Latency model `clock` of a relaxed mapping: costmodel.latency.clock_work in tensors [B, L], differentiable.

Counts of pieces are exact in the forward pass and have the gradient of the plain ratio.  Cache
behaviour is [B, L, O] (O loop orders) and mixed by order weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fadiff.converter.ir.loops import DIMS, REDUCTION, C, G, K, N, P, Q, R, S
from fadiff.costmodel.count.traffic import Fusion, Quantities
from fadiff.costmodel.latency.cache import LINE_BYTES, CacheUse, Loop, Reuse, Stream, cache_use, misses
from fadiff.costmodel.latency.clock import (
    ClockCoefficients,
    LayerCounts,
    clock_of,
    layer_cycles,
    preload_cycles,
    strip_cycles,
)
from fadiff.costmodel.latency.clock_work import request_bytes, walks
from fadiff.costmodel.mapping.numbers import Number
from fadiff.costmodel.relaxed.straight_through import ceil, exact, floor
from fadiff.costmodel.relaxed.terms import Terms


def clock_cycles(terms: Terms, q: Quantities, fusion: Fusion) -> Tensor:
    """Cycles by the clock [B, L], as if a loop unit ran every tile."""
    m, p = terms.model, terms.point
    c, side, longest, dw = clock_of(m.target), m.target.side, request_bytes(m.target), m.depthwise
    spilled = q.spills * m.target.accumulator_bytes_per_word
    along_k, along_c = (_requests(terms, d) / m.bounds[:, d] for d in (K, C))
    per_weight = dw / p.l0[..., G] + (1 - dw) * ((1 - m.transposed) * along_k + m.transposed * along_c)
    in_channels, in_requests = _by_channel(terms, C, lambda d: _requests(terms, d))
    out_channels, out_pieces = _by_channel(terms, K, lambda d: _row_pieces(terms, d, side))
    inputs, runs = q.input_fills / in_channels * in_requests, visits(terms)
    tiles = torch.maximum(terms.n3.prod(dim=-1), runs)
    counts = LayerCounts(
        visits=runs[..., None],
        commands=0.0,
        loops=tiles[..., None],
        tiles=tiles[..., None],
        # (An addition, which is counted elsewhere, does nothing here: the root of nothing has no slope.)
        full_rows=(_array_cycles(terms, q, c) + m.adds)[..., None],
        blocks=0.0,
        short_strips=(),
        requests=(q.weight_fills * per_weight + inputs + spilled / longest)[..., None],
        copies=(inputs * (p.l0[..., S] - 1) * (1 - dw))[..., None],
        loaded_bytes=((q.weight_fills + q.input_fills) * m.target.element_bytes + spilled)[..., None],
        missed_lines=_missed_lines(terms, q.input_fills / terms.fetch_i / in_channels, fusion),
        stored_rows=(q.outputs / out_channels * out_pieces + spilled / longest)[..., None],
    )
    cycles: Tensor = (layer_cycles(counts, c) * p.order).sum(dim=-1)
    return cycles


def visits(terms: Terms) -> Tensor:
    """Runs of every layer's nest, one per group tile [B, L]."""
    return torch.ones_like(terms.fetch_w) if terms.runs is None else torch.stack(terms.runs).prod(dim=0)


def _missed_lines(terms: Terms, pixels: Tensor, fusion: Fusion) -> Tensor:
    """Cache lines that the last-level cache lacks, [B, L, O]; `pixels` are those of one pass."""
    m, use = terms.model, _cache_use(terms, pixels)
    between = use.weights.footprint.clamp(min=m.network_weights)
    into = torch.as_tensor(fusion.into, dtype=m.dtype)[..., None]
    loaded = use.weights._replace(footprint=between), use.inputs._replace(lines=use.inputs.lines * (1 - into))
    return torch.stack([misses(reuse, m.target.last_level_cache_bytes) for reuse in loaded]).sum(dim=0)


def _largest(a: Number, b: Number) -> Tensor:
    return torch.maximum(torch.as_tensor(a), torch.as_tensor(b))


def _requests(terms: Terms, d: int) -> Tensor:
    """Aligned DMA requests of one pass along a contiguous dimension."""
    m, e, longest = terms.model, terms.model.target.element_bytes, request_bytes(terms.model.target)
    bound, tile = m.bounds[:, d], terms.point.l2[..., d]
    step = m.clock.alignment[d]
    whole = (2 * longest - step) / longest

    def of(extent: Tensor) -> Tensor:
        full = floor(extent * e / longest)
        rest = extent * e - full * longest
        aligned = (ceil(rest / step) * step + longest - step) / longest
        return full * whole + torch.where(rest > 1e-3, aligned, torch.zeros_like(aligned))

    with torch.no_grad():
        tiles = terms.n3[..., d]
        found = (tiles - 1) * of(tile) + of(bound - (tiles - 1) * tile)
    return exact(found, torch.maximum(bound / tile, bound * e / longest))


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


def _array_cycles(terms: Terms, q: Quantities, c: ClockCoefficients) -> Tensor:
    """Temporal steps, longer by how much short strips are longer than their pixels, and new weights."""
    m, count = terms.model, terms.count1
    height, width = (_strips(terms, d, c) for d in (P, Q))
    cycles = torch.where(m.clock.streams_height, height[0], width[0])
    strips = torch.where(m.clock.streams_height, height[1], width[1])
    blocks = count[G] * count[K] * count[C] * count[R] * count[S] * terms.fetch_w0
    array: Tensor = q.compute_cycles * cycles + blocks * preload_cycles(cycles / strips, c)
    return array


def _strips(terms: Terms, d: int, c: ClockCoefficients) -> tuple[Tensor, Tensor]:
    """Cycles and strips per pixel along the streamed axis."""
    side, tile = terms.model.target.side, terms.point.l1[..., d]
    with torch.no_grad():
        pixels, times = terms.pieces(d)
        full = floor(pixels / side)
        rest = pixels - full * side
        ragged = rest > 1e-3
        missing = torch.where(ragged, strip_cycles(rest, c) - rest, torch.zeros_like(rest))
        streamed = (times * pixels).sum(dim=-1)
        cycles = 1 + (times * missing).sum(dim=-1) / streamed
        strips = (times * (full + ragged)).sum(dim=-1) / streamed
    strip = tile.clamp(max=side)
    return exact(cycles, strip_cycles(strip, c) / strip), exact(strips, 1 / strip)


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
    wholes = (block * e + (1 - dw) * m.clock.whole[0], m.clock.whole[1], m.clock.whole[2])
    parts = []
    for kind, layers in m.clock.layers.items():
        streams = [
            Stream(
                rows[at][:, layers],
                spans[at][:, layers] * e,
                wholes[at][..., layers],
                wholes[at][..., layers].clamp(max=LINE_BYTES),
                m.clock.pitch[at][layers],
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
            for order in m.clock.loops
        ]
        parts.append(_join(uses, lambda tensors: torch.stack(tensors, dim=-1)))
    return _join(parts, lambda tensors: torch.cat(tensors, dim=1)[:, m.clock.place])


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
