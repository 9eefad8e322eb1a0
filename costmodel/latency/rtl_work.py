"""What a mapping makes Gemmini do, for the latency model `rtl`: exact counts from a loop nest."""

from __future__ import annotations

import math
from collections.abc import Iterator

from converter.ir.dims import DIMS, REDUCTION, RELEVANT, C, G, K, N, P, Q, R, S
from costmodel.count.nest import LoopNest
from costmodel.count.traffic import ALONE, Placement
from costmodel.latency.rtl import (
    LINE_BYTES,
    OPERANDS,
    CacheUse,
    Loop,
    Reuse,
    Stream,
    Walk,
    Work,
    cache_use,
    pitch_lines,
)
from costmodel.mapping.counting import Profile
from costmodel.mapping.numbers import Number, largest, occurs, smallest, tabulate
from costmodel.mapping.shape import LayerShape
from costmodel.mapping.tiling import tile_count, tile_extents
from costmodel.target.target import Target

NOTHING = Reuse(0, (), (), 1)


def is_matmul(shape: LayerShape) -> bool:
    """A matrix product: no kernel, and an image that is one row or one column."""
    d = shape.dims
    return d.R == d.S == 1 and min(d.P, d.Q) == 1


def request_bytes(target: Target) -> int:
    """Most bytes of one row that one DMA request loads."""
    return max(target.max_bytes, target.side * target.element_bytes)


def short_strip(side: int) -> float:
    """Cycles of a strip of fewer pixels than this (measured: 4.0, 4.4, 7.6, 28 on side 4, 8, 16, 64)."""
    return max(4, side / 2)


def segments(shape: LayerShape) -> tuple[int, int, int]:
    """The dimension along which W, I and O are contiguous in DRAM; -1: one array block (depthwise W)."""
    if shape.is_depthwise:
        return -1, G, G
    return C if shape.has_transposed_weights else K, C, K


def walks(d: int, contiguous: tuple[int, int, int]) -> tuple[Walk, Walk, Walk]:
    """How a DRAM loop over `d` moves W, I and O (kernel taps mostly meet the same input pixels)."""

    def walk(operand: str, segment: int) -> Walk:
        if d == segment:
            return "segment"
        if DIMS[d] not in RELEVANT[operand] or (operand == "I" and d in (R, S)):
            return "stay"
        return "rows"

    w, i, o = (walk(operand, segment) for operand, segment in zip(OPERANDS, contiguous, strict=True))
    return w, i, o


def layer_work(
    nest: LoopNest,
    target: Target,
    profile: Profile = "hw",
    placement: Placement = ALONE,
    *,
    reload: bool = False,
) -> Work:
    """Work of one layer (of a group: over all its tiles) as the emitted program does it.

    All mappings of `nest` have the same loop orders.

    `reload` counts as Gemmini's tiled_conv and tiled_matmul do: every tile loads both operands, and
    outputs are stored once.
    """
    shape, counts = nest.shape, nest.counts
    side, e = target.side, target.element_bytes
    along, in_channel, out_channel = segments(shape)
    total = [c.total for c in counts]
    resident = placement.weights_are_resident
    q = nest.quantities(target, profile, resident=resident)
    pixels = total[G] * total[N] * total[C] * nest.input_positions(profile) / total[in_channel]
    if reload:
        w_times = 1 if resident else nest.fetch("W", 1)[0]
        i_times = nest.fetch("I", 1)[0]
        times = math.prod([counts[d].l3 for d in (N, P, Q)])
        weight_fills, input_fills = q.weight_fills // w_times * times, q.input_fills // i_times * counts[K].l3
        spilled = 0
    else:
        weight_fills, input_fills = q.weight_fills, q.input_fills
        spilled = q.spills * target.accumulator_bytes_per_word
    longest = request_bytes(target)
    if along < 0:
        requests = weight_fills / nest.l0[G]
    else:
        requests = weight_fills / total[along] * _pieces(nest, along, longest // e)
    requests += input_fills / total[in_channel] * _pieces(nest, in_channel, longest // e)
    leaving = q.outputs if placement.pooled is None else placement.pooled.outputs * placement.pooled.taps
    stored = leaving / total[out_channel] * _pieces(nest, out_channel, side, inner=True)
    use = _cache_use(nest, pixels, e, reload=reload)
    weights = use.weights._replace(again=(), touched=()) if resident else use.weights
    to_dram = placement.output_to_dram or not placement.output_is_fused
    return Work(
        is_matmul=int(is_matmul(shape)),
        side=side,
        tiles=math.prod([c.l2 for c in counts]),
        array_cycles=_array_cycles(nest, side),
        requests=requests + spilled / longest,
        loaded_bytes=(weight_fills + input_fills) * e + spilled,
        stored_rows=stored + spilled / longest,
        weights=NOTHING if placement.weights_on_chip else weights,
        inputs=NOTHING if placement.input_is_fused else use.inputs,
        outputs=use.outputs if to_dram else NOTHING,
    )


def _pieces(nest: LoopNest, d: int, size: int, *, inner: bool = False) -> Number:
    """Pieces of at most `size` indices into which the scratchpad (inner: accumulator) tiles of d fall."""
    return tile_count(nest.pieces(d, 2 if inner else 1), size)


def streams_height(shape: LayerShape) -> bool:
    """Whether pixels below each other stream together: a one-column image, else those of one row do."""
    return shape.dims.Q == shape.dims.S == 1


def strips(nest: LoopNest, side: int) -> Iterator[tuple[Number, Number]]:
    """(rows, how many) of the strips of at most `side` pixels that stream through blocks of weights.

    A strip has pixels of one row of an accumulator tile; every array block sees all of them.
    """
    streamed, other = (P, Q) if streams_height(nest.shape) else (Q, P)
    repeats = math.prod([nest.counts[d].l0 for d in (G, K, C, R, S)])
    repeats *= nest.counts[other].total * nest.counts[N].total
    for rows, times in tile_extents(nest.pieces(streamed), side):
        yield rows, times * repeats * (rows > 0)


def _array_cycles(nest: LoopNest, side: int) -> Number:
    """A short strip takes as long as one of `short_strip`."""
    short = short_strip(side)
    return sum(
        times * (rows if isinstance(rows, int) and rows == side else largest(short, rows))
        for rows, times in strips(nest, side)
    )


def _cache_use(nest: LoopNest, pixels: Number, element: int, *, reload: bool) -> CacheUse:
    """`pixels` are those of one pass over all input tiles and groups."""
    counts, bounds = nest.counts, list(nest.shape.dims)
    tile = list(map(smallest, nest.l2, nest.bounds))
    boxes = math.prod([counts[d].l3 for d in (N, P, Q, R, S)])

    def stream(rows: Number, segment: Number, whole: Number) -> Stream:
        width = whole * element
        pitch = tabulate(pitch_lines, width)
        return Stream(rows, segment * element, width, smallest(LINE_BYTES, width), pitch)

    contiguous = along, in_channel, out_channel = segments(nest.shape)
    weights = tile[G] * tile[K] * tile[C] * tile[R] * tile[S]
    positions, images = pixels / boxes, tile[N] * tile[P] * tile[Q]
    if along < 0:
        held = stream(weights, nest.l0[G], nest.l0[G])
    else:
        held = stream(weights / tile[along], tile[along], bounds[along])
        positions, images = positions * tile[G] / counts[G].total, images * tile[G]
    streams = (
        held,
        stream(positions, tile[in_channel], bounds[in_channel]),
        stream(images, tile[out_channel], bounds[out_channel]),
    )
    # The regions of a group are the outermost loops.
    trips = [(d, counts[d].l3 / counts[d].regions) for d in nest.orders[0][0]]
    trips += [(d, counts[d].regions) for d in (Q, P, N)]
    loops = [
        Loop(times, walks(d, contiguous), DIMS[d] in REDUCTION) for d, times in trips if occurs(times - 1)
    ]
    return cache_use(streams, loops, largest, reload=reload)
