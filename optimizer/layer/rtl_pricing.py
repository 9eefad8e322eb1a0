"""Latency model `rtl` of many canonical mappings at once: costmodel.latency.rtl_work in columns.

The formula is costmodel.latency.rtl's own; only the counts of a mapping have closed forms here.  A loop of
one trip changes nothing, so all mappings of one DRAM order share its loops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converter.ir.dims import DIMS, REDUCTION, Dim
from costmodel.count.nest import LoopNest
from costmodel.count.traffic import Quantities
from costmodel.latency import rtl
from costmodel.latency.rtl_work import (
    NOTHING,
    is_matmul,
    layer_work,
    request_bytes,
    segments,
    short_strip,
    streams_height,
    walks,
)
from costmodel.mapping.mapping import ceil_div
from costmodel.mapping.tiling import tile_extents
from optimizer.layer.enumerate import Points
from optimizer.layer.orders import L3_ORDERS, STATIONARY
from optimizer.layer.space import Ints, LayerSpace, tile_count

Floats = NDArray[np.float64]
PIXELS: tuple[Dim, ...] = ("N", "P", "Q")


def rtl_latency(points: Points, q: Quantities, input_pixels: Ints) -> Floats:
    """Cycles of every point; `input_pixels` are those fetched by one pass over all its input tiles."""
    coefficients, _ = rtl.calibration()
    latency = np.zeros(len(points))
    for order in range(len(STATIONARY)):
        rows = np.flatnonzero(points.order == order)
        if len(rows):
            chosen = Quantities(*(np.broadcast_to(column, len(points))[rows] for column in q))
            work = _work(points.select(rows), chosen, input_pixels[rows], order)
            latency[rows] = np.ceil(rtl.cycles(work, coefficients))
    return latency


def rtl_floor(space: LayerSpace, ideal: LoopNest) -> float:
    """Cycles that no mapping of `space` goes below, from a nest that fetches everything once (an infinite
    scratchpad).

    The formula grows with every field of Work, and this one has the least of each: operands loaded once in
    the longest requests, full strips, and each cache line missed only when it is first used.
    """
    target = space.rules.target
    q = ideal.quantities(target, space.rules.profile, resident=True)
    work = layer_work(ideal, target, space.rules.profile, space.placement)
    inputs = min(q.input_fills, space.touched_inputs)
    weights = q.weight_fills
    if space.prefetched:  # as many as the scratchpad holds
        weights -= min(weights, target.scratchpad_bytes // target.element_bytes)
    pooled = space.placement.pooled
    loaded = (weights + inputs) * target.element_bytes

    def once(reuse: rtl.Reuse) -> rtl.Reuse:
        return reuse._replace(again=(), touched=())

    least = work._replace(
        tiles=1,
        array_cycles=q.compute_cycles,
        requests=loaded / request_bytes(target),
        loaded_bytes=loaded,
        stored_rows=(pooled.outputs * pooled.taps if pooled else q.outputs) / target.side,
        weights=once(work.weights)._replace(lines=work.weights.lines * weights / q.weight_fills),
        inputs=once(work.inputs)._replace(lines=work.inputs.lines * inputs / max(1, q.input_fills)),
        outputs=once(work.outputs),
    )
    return float(rtl.cycles(least, rtl.calibration()[0]))


def _work(points: Points, q: Quantities, input_pixels: Ints, order: int) -> rtl.Work:
    """costmodel.latency.rtl_work.layer_work of points that share a DRAM order."""
    space, t = points.space, points.tile
    shape, placement, target = space.shape, space.placement, space.rules.target
    side, e, longest = target.side, target.element_bytes, request_bytes(target)
    along, in_channel, out_channel = (DIMS[d] if d >= 0 else None for d in segments(shape))
    assert in_channel is not None and out_channel is not None
    spilled = q.spills * (target.accumulator_bytes_per_word)
    if along is None:
        requests = q.weight_fills / space.groups_at_once
    else:
        requests = q.weight_fills / shape.dims[along] * _channel_pieces(points, along, longest // e)
    requests = requests + q.input_fills / shape.dims[in_channel] * _channel_pieces(
        points, in_channel, longest // e
    )
    leaving = q.outputs if placement.pooled is None else placement.pooled.outputs * placement.pooled.taps
    stored = leaving / shape.dims[out_channel] * _channel_pieces(points, out_channel, side, inner=True)
    use = _cache_use(points, input_pixels, order)
    weights = use.weights._replace(again=(), touched=()) if placement.weights_are_resident else use.weights
    to_dram = placement.output_to_dram or not placement.output_is_fused
    tiles: Any = -(-shape.dims.G // space.groups_at_once) * tile_count(((shape.dims.K, 1),), t["K"], t["k"])
    for d in PIXELS:
        tiles = tiles * tile_count(space.outline(d), t[d], t[d.lower()])
    for d in ("C", "R", "S"):
        tiles = tiles * -(-shape.dims[d] // t[d])
    return rtl.Work(
        is_matmul=int(is_matmul(shape)),
        side=side,
        tiles=tiles,
        array_cycles=_array_cycles(points, q),
        requests=requests + spilled / longest,
        loaded_bytes=(q.weight_fills + q.input_fills) * e + spilled,
        stored_rows=stored + spilled / longest,
        weights=NOTHING if placement.weights_on_chip else weights,
        inputs=NOTHING if placement.input_is_fused else use.inputs,
        outputs=use.outputs if to_dram else NOTHING,
    )


def _channel_pieces(points: Points, d: Dim, size: int, *, inner: bool = False) -> Ints:
    """Pieces of at most `size` channels into which the scratchpad (inner: accumulator) tiles fall."""
    extent = points.space.shape.dims[d]
    if d == "G":
        g = points.space.groups_at_once
        return np.array(sum(ceil_div(n, size) * times for n, times in tile_extents(extent, (g,))))
    outer = points.tile[d]

    def pieces(l2: int, l1: int) -> int:
        sizes = (l2, l1) if inner else (l2,)
        return sum(ceil_div(n, size) * times for n, times in tile_extents(extent, sizes))

    return _each_pair(outer, points.tile["k"] if inner and d == "K" else outer, pieces)


def _array_cycles(points: Points, q: Quantities) -> Floats:
    """Strips of the rows of every accumulator tile, for every array block of weights."""
    space = points.space
    streamed: Dim = "P" if streams_height(space.shape) else "Q"
    side = space.side
    pixels = space.total("N") * space.total("P") * space.total("Q")

    def strips(l2: int, l1: int) -> float:
        total = 0.0
        for extent, regions in space.outline(streamed):
            for n, times in tile_extents(extent, (l2, l1)):
                full, rest = divmod(n, side)
                total += regions * times * (full * side + (max(short_strip(side), rest) if rest else 0))
        return total

    found = _each_pair(points.tile[streamed], points.tile[streamed.lower()], strips)
    return np.asarray(found * (q.compute_cycles / pixels) * (pixels // space.total(streamed)))


def _cache_use(points: Points, input_pixels: Ints, order: int) -> rtl.CacheUse:
    space = points.space
    dims, e = space.shape.dims, space.rules.target.element_bytes
    contiguous = segments(space.shape)
    regions = {"N": len(space.region.N), "P": len(space.region.P), "Q": len(space.region.Q)}
    tile: dict[str, Any] = {d: np.minimum(points.tile[d], space.bounds[d]) for d in DIMS if d != "G"}
    tile["G"] = space.groups_at_once
    trips: dict[str, Any] = {d: -(-dims[d] // tile[d]) for d in ("G", "K", "C", "R", "S")}
    trips |= {d: tile_count(space.outline(d), points.tile[d]) / regions[d] for d in PIXELS}
    boxes: Any = 1
    for d in (*PIXELS, "R", "S"):
        boxes = boxes * trips[d] * regions.get(d, 1)
    weights = tile["G"] * tile["K"] * tile["C"] * tile["R"] * tile["S"]
    positions, images = input_pixels / boxes, tile["N"] * tile["P"] * tile["Q"]

    def stream(rows: Any, segment: Any, whole: int) -> rtl.Stream:
        width = whole * e
        return rtl.Stream(rows, segment * e, width, min(rtl.LINE_BYTES, width), rtl.pitch_lines(width))

    along, in_channel, out_channel = (DIMS[d] for d in contiguous)
    if contiguous[0] < 0:
        held = stream(weights, tile["G"], tile["G"])
    else:
        held = stream(weights / tile[along], tile[along], dims[along])
        positions, images = positions * tile["G"] / dims.G, images * tile["G"]
    streams = (
        held,
        stream(positions, tile[in_channel], dims[in_channel]),
        stream(images, tile[out_channel], dims[out_channel]),
    )
    nest: list[tuple[str, Any]] = [(d, trips[d]) for d in reversed(L3_ORDERS[STATIONARY[order]])]
    nest += [(d, regions[d]) for d in ("Q", "P", "N")]
    loops = [rtl.Loop(times, walks(DIMS.index(d), contiguous), d in REDUCTION) for d, times in nest]
    return rtl.cache_use(streams, loops, np.maximum)


def _each_pair(first: Ints, second: Ints, function: Callable[[int, int], float]) -> NDArray[Any]:
    width = int(second.max(initial=0)) + 1
    keys, inverse = np.unique(first * width + second, return_inverse=True)
    return np.array([function(int(key) // width, int(key) % width) for key in keys])[inverse]
