"""Energy and latency of many canonical mappings at once.

What a mapping makes a layer do (costmodel.count.traffic.Quantities) has closed forms over columns when
its loop orders are canonical: about ten times faster than the general walk over loops.  Bytes and
prices are costmodel's own; tests/optimizer holds the result equal to `evaluate.layer_cost`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from converter.ir.dims import Dims
from costmodel.count.energy import picojoules_per_byte
from costmodel.count.traffic import Memory, Quantities, count_moves, fusion_of
from costmodel.latency.roofline import bandwidths
from optimizer.layer.bias_loads import bias_loads
from optimizer.layer.enumerate import Columns, Points
from optimizer.layer.orders import STATIONARY
from optimizer.layer.rtl_pricing import rtl_latency
from optimizer.layer.space import Ints, LayerSpace, tile_count

Floats = NDArray[np.float64]
WS, IS, OS = (STATIONARY.index(name) for name in ("WS", "IS", "OS"))


@dataclass(frozen=True)
class Costs:
    """Columns: picojoules, cycles, and whether partial sums leave the accumulator."""

    energy: Floats
    latency: Floats
    spills: NDArray[np.bool_]


def price(points: Points) -> Costs:
    """Cost of every point over all runs of its space's region."""
    space, q = points.space, quantities(points)
    lanes = space.groups_at_once if space.shape.is_depthwise else space.blocks(points.tile["k"])
    early = first_weight_bytes(space, points.tile) if space.prefetched else 0
    energy, latency = cost_columns(space, q, lanes, early)
    if space.rules.latency == "rtl":
        latency = rtl_latency(points, q, _input_pixels(points))
    return Costs(energy, latency, np.asarray(q.spills > 0))


def cost_columns(
    space: LayerSpace, q: Quantities, lanes: Ints | int, early: Ints | int = 0
) -> tuple[Floats, Floats]:
    """Picojoules and roofline cycles of columns of quantities; `lanes` array columns are in use, and `early`
    bytes of weights take no DRAM time."""
    target, placement = space.rules.target, space.placement
    memory: dict[Memory, Floats] = {}
    moves = count_moves(q, fusion_of(placement), target, space.rules.profile, paper=placement.is_paper)
    for move in moves:
        memory[move.memory] = memory.get(move.memory, 0.0) + np.asarray(move.bytes, dtype=np.float64)
    energy = np.asarray(q.macs * target.energy.mac)
    per_byte = picojoules_per_byte(target)
    for name, moved in memory.items():
        energy = energy + moved * per_byte[name]
    memory["dram"] = memory["dram"] - early
    latency = np.asarray(q.compute_cycles, dtype=np.float64)
    for name, bandwidth in bandwidths(target, 1).items():
        per_cycle = bandwidth * lanes if name == "accumulator" else bandwidth
        latency = np.maximum(latency, np.ceil(memory.get(name, 0.0) / per_cycle))
    return energy, latency


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
    """Closed forms of costmodel.count.nest for the three canonical orders."""
    space, t = points.space, points.tile
    shape, hw = space.shape, space.rules.hw
    d, b = shape.dims, space.bounds
    depthwise, g = shape.is_depthwise, space.groups_at_once
    col = np.ones_like(t["k"]) if depthwise else space.blocks(t["k"])
    row_c = np.ones_like(t["C"]) if depthwise else space.blocks(t["C"])
    row_s = space.packed(t["C"], t["S"])
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
    loads = np.where(space.is_one_block(t), fetch_w, l1_tiles)

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
        bias_words=d.G * d.K * bias_loads(space, t),
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
