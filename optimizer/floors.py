"""Floors under what one layer can cost: every operand fetched once."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from costmodel.energy import energy_breakdown
from costmodel.latency import roofline
from costmodel.mapping import Mapping, ceil_div
from costmodel.nest import Nest
from costmodel.traffic import Move, Quantities, count_moves, fusion_of
from optimizer.enumerate import best_inner, canonical_mapping
from optimizer.orders import L3_ORDERS, STATIONARY
from optimizer.pricing import first_weight_bytes
from optimizer.rtl_pricing import rtl_floor
from optimizer.space import LayerSpace


def ideal_cost(space: LayerSpace) -> tuple[float, float]:
    """Energy and latency that no mapping of the space is below: a scratchpad that holds everything."""
    is_resident = space.placement.weights_are_resident
    # Accumulator tiles that a max pool can take are no larger: without one they are no more expensive.
    plain = space.placement._replace(weights_are_resident=False, pooled=None)
    mapping, nest = _one_tile(replace(space, placement=plain))
    work = nest.quantities(space.rules.target, space.rules.profile, resident=is_resident)
    # One load of the bias fills a row of the array for each of its rows at most, however outputs are tiled.
    fills = ceil_div(space.total("N") * space.total("P") * space.total("Q"), space.side)
    dims = space.shape.dims
    work = work._replace(
        input_fills=min(work.input_fills, space.touched_inputs),
        bias_words=min(work.bias_words, dims.G * dims.K * fills),
    )
    ways = [_cost(space, mapping, work)]
    # A scratchpad tile of one array block keeps its weights there while accumulator tiles pass: for
    # free if one pass reduces everything, else partial sums leave the accumulator before each other pass.
    loads = work.weight_fills * (space.runs() if is_resident else 1)
    if loads < work.weight_loads:
        spills = work.updates - work.outputs
        ways.append(_cost(space, mapping, work._replace(weight_loads=loads, spills=spills)))
    latency = rtl_floor(space, nest) if space.rules.latency == "rtl" else min(way[1] for way in ways)
    return min(way[0] for way in ways), latency


@lru_cache(maxsize=1 << 12)
def _one_tile(space: LayerSpace) -> tuple[Mapping, Nest]:
    """A scratchpad tile of everything, by accumulator tiles of one column block."""
    b = space.bounds
    inner = best_inner(space, b.N, b.P, b.Q, space.rules.target.accumulator_rows)
    assert inner is not None
    n, p, q = inner
    tile = {"N": b.N, "K": b.K, "C": b.C, "P": b.P, "Q": b.Q, "R": b.R, "S": b.S}
    tile.update(n=n, k=space.block(b.K), p=p, q=q)
    mapping = canonical_mapping(space, tile, L3_ORDERS[STATIONARY[0]])
    return mapping, Nest(space.shape, mapping, space.region)


def _cost(space: LayerSpace, mapping: Mapping, work: Quantities) -> tuple[float, float]:
    """Picojoules and roofline cycles."""
    rules, placement = space.rules, space.placement
    fusion = fusion_of(placement)
    moves = count_moves(work, fusion, rules.target, rules.profile, paper=placement.is_paper)
    energy = sum(energy_breakdown(moves, work.macs, rules.target).values())
    if space.prefetched:
        moves.append(Move("L3", "W", "read", -int(first_weight_bytes(space, mapping.tile_l2)), "dram"))
    return energy, roofline(moves, work.compute_cycles, mapping.cols.product, rules.target)[0]
