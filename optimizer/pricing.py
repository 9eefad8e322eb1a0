"""Energy and latency of many canonical mappings at once.

What a mapping makes a layer do (costmodel.traffic.Quantities) has closed forms over columns when
its loop orders are canonical: about ten times faster than the general walk over loops.  Bytes and
prices are costmodel's own; tests/optimizer holds the result equal to `costmodel.evaluate.layer_cost`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from converter.dims import Dims
from costmodel.energy import picojoules_per_byte
from costmodel.latency import bandwidths
from costmodel.tiling import tile_extents
from costmodel.traffic import Memory, Quantities, count_moves, fusion_of
from optimizer.enumerate import Columns, Points
from optimizer.orders import STATIONARY
from optimizer.rtl_pricing import rtl_latency
from optimizer.space import Ints, LayerSpace, Outline, tile_count

Floats = NDArray[np.float64]
WS, IS, OS = (STATIONARY.index(name) for name in ("WS", "IS", "OS"))


@dataclass(frozen=True)
class Costs:
    """Columns: picojoules, cycles, and whether partial sums leave the accumulator."""

    energy: Floats
    latency: Floats
    spills: NDArray[np.bool_]


def price(points: Points, q: Quantities | None = None) -> Costs:
    """Cost of every point over all runs of its space's region, at its `quantities` or at `q`."""
    space = points.space
    target, placement = space.rules.target, space.placement
    q = quantities(points) if q is None else q
    memory: dict[Memory, Floats] = {}
    moves = count_moves(q, fusion_of(placement), target, space.rules.profile, paper=placement.is_paper)
    for move in moves:
        memory[move.memory] = memory.get(move.memory, 0.0) + np.asarray(move.bytes, dtype=np.float64)
    energy = np.asarray(q.macs * target.energy.mac + np.zeros(len(points)))
    per_byte = picojoules_per_byte(target)
    for name, moved in memory.items():
        energy = energy + moved * per_byte[name]
    lanes = space.groups_at_once if space.shape.is_depthwise else space.blocks(points.tile["k"])
    if space.rules.latency == "rtl":
        return Costs(energy, rtl_latency(points, q, _input_pixels(points)), np.asarray(q.spills > 0))
    if space.prefetched:
        memory["dram"] = memory["dram"] - first_weight_bytes(space, points.tile)
    latency = np.asarray(q.compute_cycles, dtype=np.float64)
    for name, bandwidth in bandwidths(target, 1).items():
        per_cycle = bandwidth * lanes if name == "accumulator" else bandwidth
        latency = np.maximum(latency, np.ceil(memory.get(name, 0.0) / per_cycle))
    return Costs(energy, latency, np.asarray(q.spills > 0))


def first_weight_bytes(space: LayerSpace, t: Columns | Dims) -> Ints:
    """Bytes of the first weight tile, or of resident weights: at most what the scratchpad holds."""
    target, d, g = space.rules.target, space.shape.dims, space.groups_at_once
    elements = g * t["K"] * t["C"] * t["R"] * t["S"]
    if space.placement.weights_are_resident:
        elements = np.full_like(elements, d.G * d.K * d.C * d.R * d.S)
    if space.rules.hw and space.shape.is_depthwise:  # block-diagonal array tiles, zeros included
        elements = elements * g
    return np.asarray(np.minimum(elements * target.element_bytes, target.scratchpad_bytes))


def quantities(points: Points) -> Quantities:
    """Closed forms of costmodel.nest for the three canonical orders."""
    space, t = points.space, points.tile
    shape, hw = space.shape, space.rules.hw
    d, b = shape.dims, space.bounds
    depthwise, g = shape.is_depthwise, space.groups_at_once
    col = np.ones_like(t["k"]) if depthwise else space.blocks(t["k"])
    row_c = np.ones_like(t["C"]) if depthwise else space.blocks(t["C"])
    row_s = _each_pair(t["C"], t["S"], space.packed_taps)
    ws, is_, os_ = (points.order == i for i in (WS, IS, OS))

    outlines = {name: space.outlines[name] for name in "NPQ"}
    tiles = _product(tile_count(outline, t[name]) for name, outline in outlines.items())
    l1_tiles = _product(tile_count(o, t[name], t[name.lower()]) for name, o in outlines.items())
    n_k = -(-b.K // t["K"])
    n_red = -(-b.C // t["C"]) * -(-b.R // t["R"]) * -(-b.S // t["S"])
    many_k, many_red = n_k > 1, n_red > 1
    many_pixels = (t["N"] < b.N) | (t["P"] < b.P) | (t["Q"] < b.Q)
    l2_loops = (t["k"] < t["K"]) | (t["n"] < t["N"]) | (t["p"] < t["P"]) | (t["q"] < t["Q"])

    # How often every element of an operand is fetched: irrelevant loops outside the innermost relevant one.
    fetch_w = np.where(ws | ~(many_k | many_red), space.runs(), tiles)
    fetch_i = np.where(
        is_, 1, np.where(ws, np.where(many_red | many_pixels, n_k, 1), np.where(many_red, n_k, 1))
    )
    visits = np.where(os_, 1, np.where(ws, np.where(many_pixels, n_red, 1), np.where(many_k, n_red, 1)))
    visits = np.where(l2_loops, n_red, visits)
    blocks = (t["k"] > col) | (t["C"] > row_c) | (t["R"] > 1) | (t["S"] > row_s) | (t["K"] > t["k"])
    loads = np.where(blocks, l1_tiles, fetch_w)

    ones = np.ones(len(points), dtype=np.int64)
    pixels = space.total("N") * space.total("P") * space.total("Q")
    weights = d.G * d.K * d.C * d.R * d.S
    macs, outputs = pixels * weights, d.G * d.K * pixels
    if hw and depthwise:
        full, tail = divmod(d.G, g)
        weights = (full * g * g + tail * tail) * d.R * d.S
    pass_k = tile_count(((d.K, 1),), t["K"], col)
    passes = tile_count(((d.C, 1),), t["C"], row_c) * d.R * tile_count(((d.S, 1),), t["S"], row_s)
    return Quantities(
        macs=macs * ones,
        compute_cycles=(-(-d.G // g) if depthwise else d.G) * pixels * pass_k * passes,
        outputs=outputs * ones,
        stored=d.G * d.N * d.K * d.P * d.Q,
        updates=outputs * passes,
        spills=outputs * (visits - 1),
        weight_fills=weights * (ones if space.placement.weights_are_resident else fetch_w),
        weight_loads=weights * loads,
        input_fills=d.G * d.C * space.total("N") * _input_box(points) * fetch_i,
        input_reads=macs // d.K * pass_k,
        bias_words=d.G * d.K * _bias_fills(space, t) if hw and shape.has_bias else 0 * ones,
    )


def _input_box(points: Points) -> Ints:
    """Positions of one image that one pass over all tiles fetches."""
    space, t = points.space, points.tile
    rows = _each_pair(t["P"], t["R"], lambda out, taps: space.input_positions("P", out, taps))
    return rows * _each_pair(t["Q"], t["S"], lambda out, taps: space.input_positions("Q", out, taps))


def _input_pixels(points: Points) -> Ints:
    """Input elements of one pass per channel (of a grouped product: of all groups)."""
    space, d = points.space, points.space.shape.dims
    return (d.C if space.shape.is_depthwise else d.G) * space.total("N") * _input_box(points)


def _bias_fills(space: LayerSpace, t: dict[str, Ints]) -> Ints:
    """Stride-0 mvins that initialise all accumulator tiles of one column block."""
    key = np.zeros(len(t["N"]), dtype=np.int64)
    for d, bound in zip("NPQ", (space.bounds.N, space.bounds.P, space.bounds.Q), strict=True):
        key = (key * (bound + 1) + t[d]) * (bound + 1) + t[d.lower()]
    _, at, inverse = np.unique(key, return_index=True, return_inverse=True)
    unique = np.stack([t[name][at] for name in ("N", "P", "Q", "n", "p", "q")], axis=1)
    fills = np.zeros(len(unique), dtype=np.int64)
    for row, (n2, p2, q2, n1, p1, q1) in enumerate(unique.tolist()):
        pieces = [
            _pieces(space.outline("N"), n2, n1),
            _pieces(space.outline("P"), p2, p1),
            _pieces(space.outline("Q"), q2, q1),
        ]
        fills[row] = sum(
            a * b * c * -(-n * p * q // space.side)
            for n, a in pieces[0]
            for p, b in pieces[1]
            for q, c in pieces[2]
        )
    return fills[inverse]


def _pieces(outline: Outline, outer: int, inner: int) -> list[tuple[int, int]]:
    histogram: dict[int, int] = {}
    for extent, times in outline:
        for piece, count in tile_extents(extent, (outer, inner)):
            histogram[piece] = histogram.get(piece, 0) + times * count
    return list(histogram.items())


def _product(columns: Iterable[Ints]) -> Ints:
    result: Ints | int = 1
    for column in columns:
        result = result * column
    return np.asarray(result, dtype=np.int64)


def _each_pair(first: Ints, second: Ints, function: Callable[[int, int], int]) -> Ints:
    if len(first) == 1:  # floors price one point at a time
        return np.array([function(int(first[0]), int(second[0]))], dtype=np.int64)
    width = int(second.max(initial=0)) + 1
    keys, inverse = np.unique(first * width + second, return_inverse=True)
    return np.array([function(int(key) // width, int(key) % width) for key in keys], dtype=np.int64)[inverse]
