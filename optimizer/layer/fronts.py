"""Energy-latency fronts of single layers, each distinct layer solved once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fadiff.costmodel.mapping.columns import MappingColumns
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.optimizer.layer.enumerate import enumerate_space
from fadiff.optimizer.layer.footprint import Footprint
from fadiff.optimizer.layer.hull import lower_hull
from fadiff.optimizer.layer.loop_points import loop_points
from fadiff.optimizer.layer.loop_space import LoopSite
from fadiff.optimizer.layer.pricing import price
from fadiff.optimizer.layer.space import LayerSpace

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Front:
    """Vertices of one space's lower hull, by ascending energy: pJ, cycles, and how to get there."""

    energy: Floats
    latency: Floats
    mappings: tuple[Mapping, ...]

    def __len__(self) -> int:
        return len(self.energy)


NO_FRONT = Front(np.zeros(0), np.zeros(0), ())


class FrontCache:
    """Fronts by space."""

    def __init__(self) -> None:
        self._fronts: dict[LayerSpace, Front] = {}
        self._enumerated = 0

    def front(self, space: LayerSpace) -> Front:
        """The front of `space`, empty if no mapping fits."""
        found = self._fronts.get(space)
        if found is None:
            found = self._fronts[space] = self._find(space)
        return found

    def _find(self, space: LayerSpace) -> Front:
        if space.site is not None:
            self._enumerated += 1
            found = front_on_loops(space, space.site)
            stays = space.site.setting.pinned is not None
            if (len(found) and space.site.units != ("core_ws",)) or stays:
                return found
            return _union([found, self.front(replace(space, site=None))])
        parts = space.by_lanes()
        if len(parts) > 1:
            return _union([self.front(part) for part in parts])
        if space.reserved:
            # Less room rules mappings out and adds none: a front that leaves the room is the same.
            found = self.front(replace(space, reserved=0))
            if not len(found) or Footprint(space, MappingColumns.of(found.mappings)).fits_scratchpad().all():
                return found
        self._enumerated += 1
        return _hull(space)

    def __len__(self) -> int:
        """Spaces that had to be enumerated."""
        return self._enumerated


def front_on_loops(space: LayerSpace, site: LoopSite) -> Front:
    """The front of what loop units can run; empty if that is nothing."""
    points = loop_points(space)
    if points is None:
        return NO_FRONT
    may = np.ones(len(points.energy), dtype=np.bool_)
    seen: dict[int, Mapping] = {}
    while may.any():
        at = np.flatnonzero(may)
        hull = at[lower_hull(points.energy[at], points.latency[at])]
        for i in hull.tolist():
            if i not in seen:
                seen[i] = points.mapping(i)
                may[i] = site.runs(seen[i])
        if may[hull].all():
            mappings = tuple(seen[i] for i in hull.tolist())
            return Front(points.energy[hull], points.latency[hull], mappings)
    return NO_FRONT


def _union(fronts: list[Front]) -> Front:
    """Lower hull of several fronts."""
    energy = np.concatenate([front.energy for front in fronts])
    latency = np.concatenate([front.latency for front in fronts])
    mappings = [mapping for front in fronts for mapping in front.mappings]
    hull = lower_hull(energy, latency)
    return Front(energy[hull], latency[hull], tuple(mappings[i] for i in hull))


def _hull(space: LayerSpace) -> Front:
    """Of all mappings that the space may use."""
    points = enumerate_space(space)
    costs = price(points)
    allowed = np.flatnonzero(~costs.spills) if space.must_finish else np.arange(len(points))
    hull = allowed[lower_hull(costs.energy[allowed], costs.latency[allowed])]
    return Front(costs.energy[hull], costs.latency[hull], tuple(points.mapping(int(i)) for i in hull))


def minkowski(fronts: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Lower hull of the sums of one vertex per front, and which vertex of each: [vertex, front]."""
    at = np.zeros(len(fronts), dtype=np.int64)
    edges = []
    for i, (energy, latency) in enumerate(fronts):
        for j in range(len(energy) - 1):
            edges.append(((latency[j] - latency[j + 1]) / (energy[j + 1] - energy[j]), i))
    edges.sort(key=lambda edge: -edge[0])
    energies = [sum(float(e[0]) for e, _ in fronts)]
    latencies = [sum(float(lat[0]) for _, lat in fronts)]
    choices = [at.copy()]
    for _, i in edges:
        energy, latency = fronts[i]
        j = int(at[i])
        at[i] += 1
        energies.append(energies[-1] + float(energy[j + 1] - energy[j]))
        latencies.append(latencies[-1] + float(latency[j + 1] - latency[j]))
        choices.append(at.copy())
    return np.array(energies), np.array(latencies), np.stack(choices)
