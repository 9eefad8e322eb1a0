"""Floors under what one layer can cost: every operand fetched once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from optimizer.enumerate import Points, best_inner
from optimizer.pricing import price, quantities
from optimizer.rtl_pricing import rtl_floor
from optimizer.space import LayerSpace


def ideal_cost(space: LayerSpace) -> tuple[float, float]:
    """Energy and latency that no mapping of the space is below: a scratchpad that holds everything."""
    b = space.bounds
    # Pieces that a max pool can take are no larger: an unpooled one is no more expensive.
    unpooled = replace(space, placement=space.placement._replace(pooled=None))
    inner = best_inner(unpooled, b.N, b.P, b.Q, space.rules.target.accumulator_rows)
    assert inner is not None
    n, p, q = inner
    tile = {"K": b.K, "C": b.C, "R": b.R, "S": b.S, "N": b.N, "P": b.P, "Q": b.Q}
    tile.update(k=space.block(b.K), n=n, p=p, q=q)
    points = Points(space, {name: np.array([x]) for name, x in tile.items()}, np.array([0]))
    work = quantities(points)
    work = work._replace(input_fills=np.minimum(work.input_fills, space.touched_inputs))
    ways = [price(points, work)]
    # A scratchpad tile of one array block keeps its weights there while accumulator tiles pass: for
    # free if one pass reduces everything, else partial sums leave the accumulator before each other pass.
    loads = work.weight_fills * (space.runs() if space.placement.weights_are_resident else 1)
    if loads < work.weight_loads:
        spills = work.updates - work.outputs
        ways.append(price(points, work._replace(weight_loads=loads, spills=spills)))
    costs = min(float(way.energy[0]) for way in ways), min(float(way.latency[0]) for way in ways)
    if space.rules.latency == "rtl":
        return costs[0], rtl_floor(points)
    return costs
