"""Energy and latency of many canonical mappings at once."""

from __future__ import annotations

from fadiff.costmodel.mapping.columns import MappingColumns
from fadiff.costmodel.schedule.batch import ColumnCosts, evaluate_columns
from fadiff.optimizer.layer.canonical import Points
from fadiff.optimizer.layer.space import LayerSpace


def price(points: Points) -> ColumnCosts:
    """Cost of every point over all runs of its space's region."""
    return price_columns(points.space, points.columns)


def price_columns(space: LayerSpace, columns: MappingColumns) -> ColumnCosts:
    """Cost of every mapping over all runs of the space's region."""
    rules = space.rules
    costs = evaluate_columns(
        space.shape,
        columns,
        rules.target,
        rules.profile,
        region=space.region,
        placement=space.placement,
        network_weights=rules.network_weights,
    )
    return ColumnCosts(costs.energy.ravel(), costs.latency.ravel(), costs.spills.ravel())
