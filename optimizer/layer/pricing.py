"""Energy and latency of many canonical mappings at once."""

from __future__ import annotations

from fadiff.costmodel.schedule.batch import ColumnCosts, evaluate_columns
from fadiff.optimizer.layer.canonical import Points


def price(points: Points) -> ColumnCosts:
    """Cost of every point over all runs of its space's region."""
    space, rules = points.space, points.space.rules
    costs = evaluate_columns(
        space.shape,
        points.columns,
        rules.target,
        rules.profile,
        region=space.region,
        placement=space.placement,
        network_weights=rules.network_weights,
    )
    return ColumnCosts(costs.energy.ravel(), costs.latency.ravel(), costs.spills.ravel())
