"""Energy and latency of many canonical mappings at once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fadiff.converter.ir.dims import Dims
from fadiff.costmodel.count.nest import LoopNest
from fadiff.costmodel.count.traffic import Quantities
from fadiff.costmodel.mapping.columns import MappingColumns
from fadiff.costmodel.mapping.numbers import Number
from fadiff.costmodel.schedule.batch import ColumnCosts, evaluate_columns
from fadiff.optimizer.layer.canonical import Points
from fadiff.optimizer.layer.space import Ints, LayerSpace


def price(points: Points) -> ColumnCosts:
    """Cost of every point over all runs of its space's region."""
    early = first_weight_bytes(points.space, points.tile) if points.space.prefetched else 0
    return price_columns(points.space, points.columns, early)


def price_columns(space: LayerSpace, columns: MappingColumns, early: Number = 0) -> ColumnCosts:
    """Cost of every mapping over all runs of the space's region; `early` bytes take no DRAM time."""
    rules = space.rules
    costs = evaluate_columns(
        space.shape,
        columns,
        rules.target,
        rules.profile,
        rules.latency,
        region=space.region,
        placement=space.placement,
        early=early,
        network_weights=rules.network_weights,
    )
    return ColumnCosts(costs.energy.ravel(), costs.latency.ravel(), costs.spills.ravel())


def quantities(points: Points) -> Quantities:
    """What every point makes its layer do."""
    space, rules = points.space, points.space.rules
    nest = LoopNest(space.shape, points.columns, space.region)
    return nest.quantities(rules.target, rules.profile, resident=space.placement.weights_are_resident)


def first_weight_bytes(space: LayerSpace, tile: Mapping[str, Ints] | Dims) -> Ints:
    """Bytes of the first weight tile, or of resident weights: at most what the scratchpad holds."""
    target, d, g = space.rules.target, space.shape.dims, space.groups_at_once
    elements: Number = g * tile["K"] * tile["C"] * tile["R"] * tile["S"]
    if space.placement.weights_are_resident:
        elements = d.G * d.K * d.C * d.R * d.S
    if (
        space.rules.counting.loads_zeros and space.shape.is_depthwise
    ):  # block-diagonal array tiles, zeros included
        elements = elements * g
    return np.asarray(np.minimum(elements * target.element_bytes, target.scratchpad_bytes))
