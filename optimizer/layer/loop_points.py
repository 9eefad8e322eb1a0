"""All mappings of a layer's loop units with their costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fadiff.converter.ir.loops import DIMS, Dim
from fadiff.costmodel.count.traffic import ALONE
from fadiff.costmodel.mapping.columns import MappingColumns
from fadiff.costmodel.mapping.mapping import Issue, Mapping
from fadiff.costmodel.schedule.batch import ColumnWork
from fadiff.optimizer.layer.loop_space import LoopSite, loop_mappings, with_pins
from fadiff.optimizer.layer.space import Ints, LayerSpace

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LoopPoints:
    """Mappings for one unit after the other, with picojoules and cycles of each."""

    columns: tuple[MappingColumns, ...]
    rows: Ints
    """Which of the columns' rows, counted through all of them."""
    energy: Floats
    latency: Floats

    def select(self, keep: Ints) -> LoopPoints:
        """Some of them."""
        return LoopPoints(self.columns, self.rows[keep], self.energy[keep], self.latency[keep])

    def mapping(self, index: int) -> Mapping:
        """One of them."""
        row = int(self.rows[index])
        for columns in self.columns:
            if row < columns.shape[0]:
                return columns.mapping(row)
            row -= columns.shape[0]
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
        )[self.rows]
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


def loop_points(space: LayerSpace) -> LoopPoints | None:
    """What the units can run where `space` is; None if that is nothing."""
    site = space.site
    if site is None:
        return None
    every = _points(replace(space, site=site.without_pins), site.units)
    if every is None or site.setting.pinned is None:
        return every
    kept, before = [], 0
    for columns in every.columns:
        kept.append(before + with_pins(site.setting, columns))
        before += columns.shape[0]
    keep = np.concatenate(kept)
    return every.select(keep) if len(keep) else None


@lru_cache(maxsize=1 << 8)
def _points(space: LayerSpace, units: tuple[Issue, ...]) -> LoopPoints | None:
    """Without weights that stay."""
    works = _works(replace(space, placement=ALONE), units)
    if not works:
        return None
    costs = [work.costs(space.placement) for work in works]
    energy, latency = (
        np.concatenate(column) for column in zip(*((c.energy, c.latency) for c in costs), strict=True)
    )
    return LoopPoints(tuple(work.columns for work in works), np.arange(len(energy)), energy, latency)


@lru_cache(maxsize=1 << 7)
def _works(space: LayerSpace, units: tuple[Issue, ...]) -> list[ColumnWork]:
    """What does not depend on where operands are, which many groups have alike."""
    site, rules = space.site, space.rules
    assert site is not None
    return [
        ColumnWork(space.shape, columns, rules.target, space.region, rules.network_weights)
        for unit in units
        for columns in loop_mappings(site, unit, space.lanes_to_try, row_packing=rules.row_packing)
    ]
