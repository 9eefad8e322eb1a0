"""Energy-latency fronts and the network EDP (sum E)(sum L) that they can reach.

EDP is quasi-concave on the positive quadrant, so over a finite set of (E, L) sums its minimum lies
on the lower-left hull: it minimises E + slope * L for some slope.  For a fixed slope the sum
decouples into independent choices.  Every solved slope k also proves E + slope_k L >= m_k for all
schedules; the vertices of that polygon bound EDP from below (an anytime certificate).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Argmin = TypeVar("Argmin")


def pareto_front(energy: NDArray[np.float64], latency: NDArray[np.float64]) -> NDArray[np.int64]:
    """Indices of the points no other point beats in both, by ascending energy."""
    order = np.lexsort((latency, energy))
    best = np.minimum.accumulate(latency[order])
    keep = np.ones(len(order), dtype=bool)
    keep[1:] = latency[order][1:] < best[:-1]
    return order[keep]


def lower_hull(energy: NDArray[np.float64], latency: NDArray[np.float64]) -> NDArray[np.int64]:
    """Indices of the points that minimise energy + slope * latency for some slope >= 0."""
    front = pareto_front(energy, latency)
    hull: list[int] = []
    for i in front:
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            cross = (energy[b] - energy[a]) * (latency[i] - latency[a]) - (latency[b] - latency[a]) * (
                energy[i] - energy[a]
            )
            if cross > 0:
                break
            hull.pop()
        hull.append(int(i))
    return np.array(hull, dtype=np.int64)


@dataclass(frozen=True)
class Solution(Generic[Argmin]):
    """One optimum of the weighted sum: its totals and whatever realises them."""

    energy: float
    latency: float
    argmin: Argmin


@dataclass(frozen=True)
class HullResult(Generic[Argmin]):
    """The best vertex found, and a lower bound on EDP that holds for every argument."""

    best: Solution[Argmin]
    lower_bound: float


def minimise_edp(solve: Callable[[float, float], Solution[Argmin]], limit: int = 200) -> HullResult[Argmin]:
    """Minimise (sum E)(sum L) by recursive slope queries.

    Args:
        solve: solve(a, b) minimises a * E + b * L exactly (a, b >= 0, not both zero).
        limit: most calls of `solve`; stopping early only loosens `lower_bound`.

    The bound is the least EDP over the polygon {a_k E + b_k L >= m_k}: its minimum is at a vertex,
    where two neighbouring half-planes meet.
    """
    least_energy, least_latency = solve(1.0, 1e-12), solve(1e-12, 1.0)
    best = min(least_energy, least_latency, key=lambda s: s.energy * s.latency)
    solves = 2
    # Segments between neighbouring known vertices, each with the corner its half-planes leave open.
    open_corner = (least_energy.energy, least_latency.latency)
    segments = [(least_energy, least_latency, open_corner)]
    while segments and solves < limit:
        segments.sort(key=lambda s: -s[2][0] * s[2][1])
        left, right, corner = segments.pop()
        if corner[0] * corner[1] >= best.energy * best.latency * (1 - 1e-12):
            continue
        a, b = left.latency - right.latency, right.energy - left.energy
        if a <= 0 or b <= 0:
            continue
        scale = a * left.energy + b * left.latency
        found = solve(a / scale, b / scale)
        solves += 1
        value = (a * found.energy + b * found.latency) / scale
        if value >= 1 - 1e-12:
            continue  # left-right is an edge of the hull: its end points are the optima here
        if found.energy * found.latency < best.energy * best.latency:
            best = found
        segments.append((left, found, _meet(corner, left, a, b, found)))
        segments.append((found, right, _meet(corner, right, a, b, found)))
    bound = min([best.energy * best.latency, *(energy * latency for _, _, (energy, latency) in segments)])
    return HullResult(best, bound)


def _meet(
    corner: tuple[float, float], end: Solution[Argmin], a: float, b: float, on: Solution[Argmin]
) -> tuple[float, float]:
    """Where the known half-plane through `end` and `corner` meets a E + b L = value at `on`."""
    dx, dy = corner[0] - end.energy, corner[1] - end.latency
    denominator = a * dx + b * dy
    if denominator == 0:
        return corner
    t = (a * (on.energy - end.energy) + b * (on.latency - end.latency)) / denominator
    return end.energy + t * dx, end.latency + t * dy
