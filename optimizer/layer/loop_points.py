"""All mappings of a layer's loop units with their costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fadiff.converter.ir.dims import DIMS, Dim
from fadiff.costmodel.mapping.columns import MappingColumns
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.optimizer.layer.loop_space import LoopSite, loop_mappings
from fadiff.optimizer.layer.pricing import price_columns
from fadiff.optimizer.layer.space import Ints, LayerSpace

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LoopPoints:
    """Mappings for one unit after the other, with picojoules and cycles of each."""

    columns: tuple[MappingColumns, ...]
    energy: Floats
    latency: Floats

    def mapping(self, index: int) -> Mapping:
        """One of them."""
        for columns in self.columns:
            if index < columns.shape[0]:
                return columns.mapping(index)
            index -= columns.shape[0]
        raise IndexError(index)

    def nearest(self, site: LoopSite, extents: Ints, dims: tuple[Dim, ...]) -> Ints:
        """Of each row of scratchpad extents [B, dims] the mapping whose tile is most like it, by the sum of
        the ratios' logarithms, among those that can run at `site`."""
        places = [DIMS.index(d) for d in dims]
        known = np.concatenate(
            [
                np.stack([np.broadcast_to(columns.l2[at], columns.shape) for at in places], axis=1)
                for columns in self.columns
            ]
        )
        known, wanted, runs = np.log(known), np.log(extents), dict[int, bool]()
        found = []
        for row in wanted:
            for at in np.argsort(np.abs(known - row).sum(axis=1), kind="stable").tolist():
                if at not in runs:
                    runs[at] = site.runs(self.mapping(at))
                if runs[at]:
                    found.append(at)
                    break
            else:
                found.append(-1)
        return np.array(found, dtype=np.int64)


@lru_cache(maxsize=1 << 8)
def loop_points(space: LayerSpace) -> LoopPoints | None:
    """What the units can run where `space` is; None if that is nothing."""
    site, packing = space.site, space.rules.row_packing
    if site is None:
        return None
    columns = tuple(
        found
        for unit in site.units
        if (found := loop_mappings(site, unit, space.lanes_to_try, row_packing=packing))
    )
    if not columns:
        return None
    costs = [price_columns(space, each) for each in columns]
    return LoopPoints(
        columns, np.concatenate([c.energy for c in costs]), np.concatenate([c.latency for c in costs])
    )
