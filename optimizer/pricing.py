"""Energy and latency of many canonical mappings at once.

Restates costmodel's counting (costmodel/traffic.py) as closed forms over columns, which canonical
orders allow; tests/optimizer holds the two equal on every layer and mapping they draw.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.energy import picojoules_per_byte
from costmodel.latency import bandwidths
from costmodel.tiling import tile_extents
from optimizer.enumerate import Points
from optimizer.space import Ints, LayerSpace, tile_count

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Costs:
    """Columns: picojoules, cycles (roofline), and fetches of the output tile (1: never spilled)."""

    energy: Floats
    latency: Floats
    visits: Ints


def price(points: Points) -> Costs:
    """Cost of every point over all runs of its space's region."""
    space, t, target = points.space, points.tile, points.space.rules.target
    shape, place, hw = space.shape, space.placement, space.rules.hw
    b = space.bounds
    depthwise = shape.is_depthwise
    g = space.groups_at_once
    col = np.ones_like(t["k"]) if depthwise else _each(t["k"], space.block)
    row_c = np.ones_like(t["C"]) if depthwise else _each(t["C"], space.block)
    row_s = _each_pair(t["C"], t["S"], space.packed_taps)

    tiles = _product(tile_count(space.outline(d), t[d]) for d in ("N", "P", "Q"))  # type: ignore[arg-type]
    l1_tiles = _product(
        tile_count(space.outline(d), t[d], t[d.lower()])
        for d in ("N", "P", "Q")  # type: ignore[arg-type]
    )
    n_k = -(-b.K // t["K"])
    n_red = -(-b.C // t["C"]) * -(-b.R // t["R"]) * -(-b.S // t["S"])
    many_k, many_red = n_k > 1, n_red > 1
    many_pixels = (t["N"] < b.N) | (t["P"] < b.P) | (t["Q"] < b.Q)
    l2_loops = (t["k"] < t["K"]) | (t["n"] < t["N"]) | (t["p"] < t["P"]) | (t["q"] < t["Q"])
    ws, is_, os_ = points.order == 0, points.order == 1, points.order == 2

    runs = space.runs()
    # G is outermost and relevant to all: it only decides whether a fetch is inside the nest at all.
    fetch_w = np.where(ws | ~(many_k | many_red), runs, tiles)
    fetch_i = np.where(
        is_, 1, np.where(ws, np.where(many_red | many_pixels, n_k, 1), np.where(many_red, n_k, 1))
    )
    visits = np.where(os_, 1, np.where(ws, np.where(many_pixels, n_red, 1), np.where(many_k, n_red, 1)))
    visits = np.where(l2_loops, n_red, visits)
    blocks = (t["k"] > col) | (t["C"] > row_c) | (t["R"] > 1) | (t["S"] > row_s) | (t["K"] > t["k"])
    fetch_w0 = np.where(blocks, l1_tiles, fetch_w)

    pixels = space.total("N") * space.total("P") * space.total("Q")
    d = shape.dims
    macs = pixels * d.G * d.K * d.C * d.R * d.S
    weights = d.G * d.K * d.C * d.R * d.S
    if hw and depthwise:
        full, tail = divmod(d.G, g)
        weights = (full * g * g + tail * tail) * d.R * d.S
    outputs = d.G * d.K * pixels
    pass_k = tile_count(((d.K, 1),), t["K"], col)
    pass_red = tile_count(((d.C, 1),), t["C"], row_c) * d.R * tile_count(((d.S, 1),), t["S"], row_s)
    cycles = (-(-d.G // g) if depthwise else d.G) * pixels * pass_k * pass_red

    e, word = target.element_bytes, target.accumulator_bytes_per_word
    w_fills = weights * (np.ones_like(fetch_w) if place.weights_are_resident else fetch_w)
    w_loads = weights * fetch_w0
    rows = _each_pair(t["P"], t["R"], lambda o, k: space.input_positions("P", o, k))
    columns = _each_pair(t["Q"], t["S"], lambda o, k: space.input_positions("Q", o, k))
    i_fills = d.G * space.total("N") * d.C * rows * columns * fetch_i
    i_reads = macs // d.K * pass_k
    spills = outputs * (visits - 1)
    updates = outputs * pass_red

    zero = np.zeros(len(points), dtype=np.float64)
    register = zero + e * (w_loads + macs)
    scratchpad = zero + e * (w_fills + w_loads + i_reads)
    dram = zero + e * w_fills
    buffer = zero.copy()
    if hw:
        accumulator = zero + word * (2 * (updates + spills) + 2 * outputs)
        scratchpad += e * i_fills
        if place.input_is_fused:
            buffer += e * i_fills
        else:
            dram += e * i_fills
        dram += 2 * word * spills
        if shape.has_bias:
            dram += word * d.G * d.K * _bias_fills(space, t)
        if place.output_is_fused:
            buffer += e * outputs
            if place.output_to_dram:
                dram += e * d.product // (d.C * d.R * d.S)
        else:
            dram += e * outputs
    else:
        accumulator = zero + word * (2 * updates - outputs + spills)
        dram += 2 * e * spills
        if not place.input_is_fused:
            dram += e * i_fills
            scratchpad += e * i_fills
        if place.output_is_fused:
            scratchpad += e * outputs
            if place.output_to_dram:
                accumulator += word * outputs
        if place.output_to_dram or not place.output_is_fused:
            dram += e * outputs

    pj = picojoules_per_byte(target)
    energy = (
        target.energy.mac * macs
        + pj["register"] * register
        + pj["accumulator"] * accumulator
        + pj["scratchpad"] * scratchpad
        + pj["tile-buffer"] * buffer
        + pj["dram"] * dram
    )
    lanes = np.full(len(points), g) if depthwise else col
    per_cycle = bandwidths(target, 1)
    latency = np.maximum.reduce(
        [
            cycles.astype(float),
            np.ceil(accumulator / (per_cycle["accumulator"] * lanes)),
            np.ceil(scratchpad / per_cycle["scratchpad"]),
            np.ceil(buffer / per_cycle["tile-buffer"]),
            np.ceil(dram / per_cycle["dram"]),
        ]
    )
    return Costs(energy, latency, visits)


def _bias_fills(space: LayerSpace, t: dict[str, Ints]) -> Ints:
    """Stride-0 mvins that initialise all accumulator tiles of one column block."""
    names = ("N", "P", "Q", "n", "p", "q")
    stacked = np.stack([t[name] for name in names], axis=1)
    unique, inverse = np.unique(stacked, axis=0, return_inverse=True)
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
    return fills[inverse.ravel()]


def _pieces(outline: tuple[tuple[int, int], ...], outer: int, inner: int) -> list[tuple[int, int]]:
    histogram: dict[int, int] = {}
    for extent, times in outline:
        for piece, count in tile_extents(extent, (outer, inner)):
            histogram[piece] = histogram.get(piece, 0) + times * count
    return list(histogram.items())


def _product(columns: object) -> Ints:
    result: Ints | int = 1
    for column in columns:  # type: ignore[attr-defined]
        result = result * column
    return np.asarray(result, dtype=np.int64)


def _each(column: Ints, function: object) -> Ints:
    values, inverse = np.unique(column, return_inverse=True)
    return np.array([function(int(v)) for v in values], dtype=np.int64)[inverse.ravel()]  # type: ignore[operator]


def _each_pair(first: Ints, second: Ints, function: object) -> Ints:
    pairs, inverse = np.unique(np.stack([first, second], axis=1), axis=0, return_inverse=True)
    values = np.array([function(int(a), int(b)) for a, b in pairs], dtype=np.int64)  # type: ignore[operator]
    return values[inverse.ravel()] if len(pairs) else np.zeros(0, dtype=np.int64)
