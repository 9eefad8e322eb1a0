"""What a mapping makes Gemmini do, for the latency model `rtl`: exact counts from a loop nest."""

from __future__ import annotations

from converter.dims import DIMS, REDUCTION, RELEVANT
from costmodel.mapping import ceil_div
from costmodel.nest import C, G, K, N, Nest, P, Q, R, S, product
from costmodel.rtl import (
    LINE_BYTES,
    OPERANDS,
    Loop,
    Number,
    Reuse,
    Stream,
    Work,
    pitch_lines,
    reuse_in_caches,
)
from costmodel.schedule import Profile
from costmodel.shape import LayerShape, extents
from costmodel.target import Target
from costmodel.tiling import Interval, Window, fetched_rows, tile_extents, unclipped_rows
from costmodel.traffic import ALONE, Placement


def is_matmul(shape: LayerShape) -> bool:
    """A matrix product: no kernel, and an image that is one row or one column."""
    d = shape.dims
    return d.R == d.S == 1 and min(d.P, d.Q) == 1


def layer_work(
    nest: Nest,
    target: Target,
    profile: Profile = "hw",
    placement: Placement = ALONE,
    *,
    reload: bool = False,
) -> Work:
    """Exact work of one layer (of a group: over all its tiles) as the emitted program does it.

    `reload` counts as Gemmini's tiled_conv and tiled_matmul do: every tile loads both operands.
    """
    shape, counts = nest.shape, nest.counts
    total = [c.total for c in counts]
    trips = [c.l3 for c in counts]
    e, side = target.element_bytes, target.side
    request = max(target.max_bytes, side * e)
    depthwise = shape.is_depthwise
    in_channel, out_channel = (G, G) if depthwise else (C, K)

    rows_of = fetched_rows if profile == "hw" else _box_rows
    image_rows = rows_of(shape.height, nest.region.P, nest.l2[P], nest.l2[R])
    image_columns = rows_of(shape.width, nest.region.Q, nest.l2[Q], nest.l2[S])
    pixels = total[N] * image_rows * image_columns
    groups = 1 if depthwise else total[G]
    weight_rows = total[G] * total[C] * total[R] * total[S]
    weight_columns = nest.l0[G] if depthwise else total[K]

    visits = {"W": product([trips[d] for d in (N, P, Q)]), "I": trips[K]}
    if not reload:
        visits = {operand: nest.fetch(operand, 1)[0] for operand in visits}
    if placement.weights_are_resident:
        visits["W"] = 1
    weight_requests = weight_rows * visits["W"]
    weight_requests *= 1 if depthwise else _pieces(nest, K, request // e)
    input_requests = pixels * groups * visits["I"] * _pieces(nest, in_channel, request // e)
    stored_rows = total[N] * total[P] * total[Q] * groups * _pieces(nest, out_channel, side, inner=True)
    loaded = (
        weight_rows * weight_columns * visits["W"] + pixels * groups * total[in_channel] * visits["I"]
    ) * e
    spilled = (nest.fetch("O", 2)[0] - 1) * total[G] * total[N] * total[K] * total[P] * total[Q]
    spilled_bytes = 0 if reload else spilled * target.accumulator_bytes_per_word

    reuse, footprint = _reuse(nest, pixels, depthwise=depthwise, element=e, reload=reload)
    nothing = Reuse(0, ())
    return Work(
        is_matmul=int(is_matmul(shape)),
        tiles=product([c.l2 for c in counts]),
        array_cycles=_array_cycles(nest, side),
        requests=weight_requests + input_requests + spilled_bytes / request,
        loaded_bytes=loaded * e + spilled_bytes,
        stored_rows=stored_rows + spilled_bytes / request,
        weights=reuse[0],
        inputs=nothing if placement.input_is_fused else reuse[1],
        outputs=reuse[2] if placement.output_to_dram or not placement.output_is_fused else nothing,
        footprint=footprint,
    )


def _box_rows(window: Window, intervals: tuple[Interval, ...], tile: int, taps: int) -> int:
    """Rows of bounding boxes, also along an axis whose kernel is 1."""
    return unclipped_rows(window, extents(intervals), tile, taps)


def _pieces(nest: Nest, d: int, size: int, *, inner: bool = False) -> int:
    """Pieces of at most `size` indices into which the scratchpad (inner: accumulator) tiles of d fall."""
    tiles = (nest.l2[d], nest.l1[d]) if inner else (nest.l2[d],)
    return sum(ceil_div(extent, size) * times for extent, times in tile_extents(nest.extents[d][0], tiles))


def short_strip(side: int) -> float:
    """Cycles of a strip of fewer pixels than this (measured: 4.0, 4.4, 7.6, 28 on side 4, 8, 16, 64)."""
    return max(4, side / 2)


def _array_cycles(nest: Nest, side: int) -> float:
    """Strips of the rows of every accumulator tile, for every array block of weights."""
    dims = nest.shape.dims
    streamed, other = (Q, P) if dims.Q > 1 else (P, Q)
    strips = 0.0
    for extent in nest.extents[streamed]:
        for pixels, times in tile_extents(extent, (nest.l2[streamed], nest.l1[streamed])):
            full, rest = divmod(pixels, side)
            strips += times * (full * side + (max(short_strip(side), rest) if rest else 0))
    blocks = product([nest.counts[d].l0 for d in (G, K, C, R, S)])
    return strips * blocks * nest.counts[other].total * nest.counts[N].total


def _reuse(
    nest: Nest, pixels: int, *, depthwise: bool, element: int, reload: bool
) -> tuple[list[Reuse], Number]:
    """Cache behaviour of W, I and O under the DRAM loops; the regions of a group are the outermost loops."""
    counts, dims = nest.counts, nest.shape.dims
    bounds, full = list(dims), [max(extent) for extent in nest.extents]
    tile = [min(a, b) for a, b in zip(nest.l2, full, strict=True)]
    boxes = product([counts[d].l3 for d in (N, P, Q, R, S)])
    in_channel, out_channel = (G, G) if depthwise else (C, K)
    groups = 1 if depthwise else tile[G]

    def stream(rows: Number, segment: int, whole: int) -> Stream:
        return Stream(
            rows,
            segment * element,
            whole * element,
            min(LINE_BYTES, whole * element),
            pitch_lines(whole * element),
        )

    columns = nest.l0[G] if depthwise else 0
    streams = (
        stream(tile[G] * tile[C] * tile[R] * tile[S], columns or tile[K], columns or bounds[K]),
        stream(groups * pixels / boxes, tile[in_channel], bounds[in_channel]),
        stream(groups * tile[N] * tile[P] * tile[Q], tile[out_channel], bounds[out_channel]),
    )
    segments = (K if not depthwise else -1, in_channel, out_channel)
    order = [(d, counts[d].l3 / counts[d].regions) for d in reversed(nest.orders[0])]
    order += [(d, counts[d].regions) for d in (Q, P, N)]
    loops = []
    for d, trips in order:
        if trips > 1:
            in_segment = tuple(int(d == segment) for segment in segments)
            in_rows = tuple(
                int(DIMS[d] in RELEVANT[operand] and d != segment and not (operand == "I" and d in (R, S)))
                for operand, segment in zip(OPERANDS, segments, strict=True)
            )
            loops.append(Loop(trips, in_rows, in_segment, int(DIMS[d] in REDUCTION)))
    return reuse_in_caches(streams, loops, max, reload=reload)
