"""The cheapest ways to run one fusion group, those on the lower-left hull of energy and latency."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.schedule.schedule import FusionGroup
from fadiff.optimizer.layer.fronts import Floats, Front, minkowski
from fadiff.optimizer.layer.hull import lower_hull

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Way:
    """One way to run one group: the group as scheduled and its members' mappings."""

    group: FusionGroup
    fronts: tuple[tuple[str, Front], ...]
    vertices: tuple[int, ...]

    def mappings(self) -> dict[str, Mapping]:
        """Mapping of every tensor-core member."""
        return {
            name: front.mappings[vertex]
            for (name, front), vertex in zip(self.fronts, self.vertices, strict=True)
        }

    def renamed(self, layers: tuple[str, ...], resident_tensors: frozenset[str] = frozenset()) -> Way:
        """The same way for an identical group of other layers, with `resident_tensors` on chip."""
        names = dict(zip(self.group.layers, layers, strict=True))
        group = replace(
            self.group,
            layers=layers,
            resident_weights=frozenset(names[n] for n in self.group.resident_weights),
            resident_tensors=resident_tensors,
        )
        return Way(group, tuple((names[n], f) for n, f in self.fronts), self.vertices)


@dataclass(frozen=True)
class GroupHull:
    """Lower hull over all ways to run one group; `ways` are its vertices."""

    energy: Floats
    latency: Floats
    ways: tuple[Way, ...]

    def __len__(self) -> int:
        return len(self.ways)

    @classmethod
    def of(cls, energy: float, latency: float, way: Way) -> GroupHull:
        """Of a single way."""
        return cls(np.array([energy]), np.array([float(latency)]), (way,))

    def renamed(self, layers: tuple[str, ...], resident_tensors: frozenset[str] = frozenset()) -> GroupHull:
        """`Way.renamed` of every way."""
        ways = tuple(way.renamed(layers, resident_tensors) for way in self.ways)
        return replace(self, ways=ways)

    @property
    def costs(self) -> tuple[Floats, Floats]:
        """(energy, latency) of the vertices."""
        return self.energy, self.latency


EMPTY = GroupHull(np.zeros(0), np.zeros(0), ())


def merge(hulls: Iterable[GroupHull]) -> GroupHull:
    """Lower hull of the union."""
    parts = [h for h in hulls if len(h)]
    if not parts:
        return EMPTY
    energy = np.concatenate([h.energy for h in parts])
    latency = np.concatenate([h.latency for h in parts])
    ways = [c for h in parts for c in h.ways]
    keep = lower_hull(energy, latency)
    return GroupHull(energy[keep], latency[keep], tuple(ways[i] for i in keep))


def summed(
    group: FusionGroup, fronts: Sequence[tuple[str, Front]], host: tuple[float, float] = (0.0, 0.0)
) -> GroupHull:
    """Every member on the array at a vertex of its front, the others at `host`; empty if a front is."""
    if not all(len(front) for _, front in fronts):
        return EMPTY
    energy, latency, vertices = minkowski([(front.energy, front.latency) for _, front in fronts])
    ways = tuple(Way(group, tuple(fronts), tuple(row)) for row in vertices.tolist())
    return GroupHull(energy + host[0], latency + host[1], ways)


def above(hull: tuple[Floats, Floats], energy: Floats | float, latency: Floats | float) -> Bools:
    """Whether points can improve on `hull` for no slope."""
    e, lat = hull
    if not len(e):
        return np.zeros(np.shape(energy), dtype=np.bool_)
    return np.asarray((energy >= e[0]) & (latency >= np.interp(energy, e, lat)))
