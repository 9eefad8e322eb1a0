"""Floors under what one layer can cost: every operand fetched once."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from fadiff.costmodel.count.energy import energy_breakdown
from fadiff.costmodel.count.nest import LoopNest
from fadiff.costmodel.count.traffic import Quantities, count_moves, fusion_of
from fadiff.costmodel.latency import cache
from fadiff.costmodel.latency.clock import (
    ROW_COMMAND,
    TILED_COMMAND,
    ClockCoefficients,
    LayerCounts,
    clock_of,
    layer_cycles,
    strip_cycles,
)
from fadiff.costmodel.latency.clock_work import request_bytes, streams_height
from fadiff.costmodel.latency.roofline import roofline
from fadiff.costmodel.mapping.mapping import Mapping, ceil_div
from fadiff.costmodel.mapping.numbers import Number, largest
from fadiff.costmodel.schedule.batch import Floats, cost_columns
from fadiff.optimizer.layer.accumulator_tiles import PIXELS, fewest_tiles, pixels_only
from fadiff.optimizer.layer.canonical import L3_ORDERS, STATIONARY, canonical_mapping
from fadiff.optimizer.layer.space import Ints, LayerSpace


def ideal_cost(space: LayerSpace) -> tuple[float, float]:
    """Energy and latency that no mapping of the space is below: a scratchpad that holds everything."""
    mapping, nest, work = _least_work(space)
    ways = [_cost(space, mapping, work)]
    # A scratchpad tile of one array block keeps its weights there while accumulator tiles pass: for
    # free if one pass reduces everything, else partial sums leave the accumulator before each other pass.
    loads = work.weight_fills * (space.runs() if space.placement.weights_are_resident else 1)
    if loads < work.weight_loads:
        spills = work.updates - work.outputs
        ways.append(_cost(space, mapping, work._replace(weight_loads=loads, spills=spills)))
    by_clock = space.rules.latency == "clock"
    latency = _clock_floor(space, nest) if by_clock else min(way[1] for way in ways)
    return min(way[0] for way in ways), latency


def ideal_costs(space: LayerSpace, pixels: Ints, runs: Ints, parts: Ints | int = 1) -> tuple[Floats, Floats]:
    """Energy and latency [T] that no mapping is below under T group tiles, which make the layer compute
    `pixels` (N x P x Q, halo included) in `runs` of its nest for the same weights, its output channels in so
    many `parts`, all of which need the same inputs.

    `space` has resident weights, and the region that every one of these tiles costs at least: pixels beyond
    it are products and accumulations, runs load the array's weights.
    """
    mapping, nest, work = _least_work(space)
    least = space.total("N") * space.total("P") * space.total("Q")
    pixels = np.maximum(pixels, least)
    loads = work.weight_fills * runs
    work = work._replace(
        macs=work.macs // least * pixels,
        compute_cycles=work.compute_cycles // least * pixels,
        outputs=work.outputs // least * pixels,
        updates=work.updates // least * pixels,
        input_reads=work.input_reads // least * pixels,
        weight_loads=np.maximum(work.weight_loads, loads),
        input_fills=work.input_fills * parts,
    )
    ways = (work, work._replace(weight_loads=loads, spills=work.updates - work.outputs))  # as in ideal_cost
    run = mapping.cols.product, space.rules.target, space.rules.profile, space.placement
    costs = [cost_columns(way, *run) for way in ways]
    energy, latency = (np.minimum(*both) for both in zip(*costs, strict=True))
    if space.rules.latency == "clock":
        # (As many more products, and visits of a layer, each with its fences.)
        latency = _clock_floor(space, nest, pixels / least, runs)
    return energy, latency


def _least_work(space: LayerSpace) -> tuple[Mapping, LoopNest, Quantities]:
    """What one tile of everything does, inputs and bias fetched once."""
    # Accumulator tiles that a max pool can take are no larger: without one they are no more expensive.
    plain = space.placement._replace(weights_are_resident=False, pooled=None)
    mapping, nest = _one_tile(replace(space, placement=plain))
    rules, dims = space.rules, space.shape.dims
    work = nest.quantities(rules.target, rules.profile, resident=space.placement.weights_are_resident)
    # One load of the bias fills a row of the array for each of its rows at most, however outputs are tiled.
    fills = ceil_div(space.total("N") * space.total("P") * space.total("Q"), space.side)
    work = work._replace(
        input_fills=min(work.input_fills, space.touched_inputs),
        bias_words=min(work.bias_words, dims.G * dims.K * fills),
        stored_again=0,
    )
    return mapping, nest, work


@lru_cache(maxsize=1 << 12)
def _one_tile(space: LayerSpace) -> tuple[Mapping, LoopNest]:
    """A scratchpad tile of everything, by accumulator tiles of one column block."""
    b = space.bounds
    tile = {"N": b.N, "K": b.K, "C": b.C, "P": b.P, "Q": b.Q, "R": b.R, "S": b.S}
    fits = space.rules.target.accumulator_rows >= b.N * b.P * b.Q
    tile |= {"n": b.N, "p": b.P, "q": b.Q} if fits else _fewest(pixels_only(space))
    tile["k"] = space.block(b.K)
    mapping = canonical_mapping(space, tile, L3_ORDERS[STATIONARY[0]])
    return mapping, LoopNest(space.shape, mapping, space.region)


@lru_cache(maxsize=1 << 12)
def _fewest(space: LayerSpace) -> dict[str, int]:
    """Extents n, p, q of the accumulator tiles of which a space needs the fewest."""
    whole = [np.array([space.bounds[d]]) for d in PIXELS]
    fewest = fewest_tiles(space, whole, space.rules.target.accumulator_rows)
    return {name: int(fewest[name][0]) for name in "npq"}


def _cost(space: LayerSpace, mapping: Mapping, work: Quantities) -> tuple[float, float]:
    """Picojoules and roofline cycles."""
    rules, placement = space.rules, space.placement
    fusion = fusion_of(placement)
    moves = count_moves(work, fusion, rules.target, rules.profile, paper=placement.is_paper)
    energy = sum(energy_breakdown(moves, work.macs, rules.target).values())
    return energy, roofline(moves, work.compute_cycles, mapping.cols.product, rules.target)[0]


def _clock_floor(space: LayerSpace, ideal: LoopNest, growth: Number = 1.0, visits: Number = 0) -> Number:
    """Cycles that no mapping of `space` goes below, from a nest that fetches everything once (an infinite
    scratchpad); of `growth` times its pixels in `visits` runs, if these are more.

    The formula grows with every field of the counts but `tiles`, and these have the least of each: no command
    is issued by the core, operands are loaded once in the longest requests, strips are as long as can be, and
    the first loads of a visit take no time.  Every block of weights enters the array once; lines of weights
    are missed when they are first used, as far as all weights of the network displace them, inputs never.
    """
    target = space.rules.target
    q = ideal.quantities(target, "hw", resident=True)
    inputs, weights = min(q.input_fills, space.touched_inputs), q.weight_fills
    pooled, c = space.placement.pooled, clock_of(target)
    lines = 0.0 if space.placement.weights_on_chip else math.prod(_weights(space)) * target.element_bytes
    first = cache.Reuse(lines / cache.LINE_BYTES, (), (), max(space.rules.network_weights, 1))
    loaded = (weights + inputs) * target.element_bytes
    least = LayerCounts(
        visits=largest(space.runs(), visits),
        commands=0.0,
        loops=0,
        tiles=math.inf,
        full_rows=largest(q.compute_cycles * growth * _strip(space, c), _least_blocks(space) * c.new_weights),
        blocks=0.0,
        short_strips=(),
        requests=loaded / request_bytes(target),
        copies=0.0,
        loaded_bytes=loaded,
        missed_lines=cache.misses(first, target.last_level_cache_bytes),
        stored_rows=(pooled.outputs * pooled.taps if pooled else q.outputs * growth) / target.side,
        row_commands=_least_row_commands(space) if space.placement.has_row_scale else 0.0,
    )
    return np.rint(layer_cycles(least, c))


def _strip(space: LayerSpace, c: ClockCoefficients) -> float:
    """Cycles of a row of a strip at least, which has pixels of one line of the image (of all of it: larger
    tiles than the region's have longer ones)."""
    d = space.shape.dims
    longest = min(d.P if streams_height(space.shape) else d.Q, space.side)
    return float(max(strip_cycles(longest, c) / longest, 1))


def _least_row_commands(space: LayerSpace) -> float:
    """Every row is configured once, and stored in the longest pieces, at the lower of two prices."""
    longest = space.side * space.rules.target.max_block_len
    rows = space.total("N") * space.total("P") * space.total("Q")
    channels, others = space.total("K"), space.total("G")
    if space.shape.is_depthwise:
        channels, others = others, channels
    return rows * others * (ceil_div(channels, longest) + 1) * TILED_COMMAND / ROW_COMMAND


def _weights(space: LayerSpace) -> tuple[int, ...]:
    d = space.shape.dims
    return d.G, d.K, d.C, d.R, d.S


def _least_blocks(space: LayerSpace) -> int:
    """Blocks of weights, as many taps side by side as there is room for."""
    d, side = space.shape.dims, space.side
    if space.shape.is_depthwise:
        return ceil_div(d.G, side) * d.R * d.S
    taps = max(1, min(d.S, side // d.C)) if space.packs else 1
    return d.G * ceil_div(d.K, side) * ceil_div(d.C, side) * d.R * ceil_div(d.S, taps)
