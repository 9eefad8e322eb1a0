"""Mappings of one layer that Gemmini's loop units may run, in one place: the cheapest of those that they can.

Most are priced for nothing: which of them a unit can run is asked of the cheapest first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fadiff.converter.ir.dims import RELEVANT
from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.costmodel.group.issue import obstacle_to_issue
from fadiff.costmodel.group.loop_products import is_product
from fadiff.costmodel.group.loop_setting import LoopSetting
from fadiff.costmodel.mapping.mapping import LOOPS, Issue
from fadiff.costmodel.mapping.mapping import Mapping as LayerMapping
from fadiff.costmodel.schedule.legality import has_room
from fadiff.optimizer.cut.partition import Objective

SHORTEST_FIRST: tuple[Issue, ...] = ("tiled_matmul", "loop_ws", "tiled_conv", "loop_conv_ws")
_UNIT: dict[Issue, Issue] = {"tiled_matmul": "loop_ws", "tiled_conv": "loop_conv_ws"}
"""Of each call of gemmini.h."""


class Prices(NamedTuple):
    """What a search pays for a pJ, a cycle and a DRAM byte."""

    energy: float
    cycle: float
    byte: float

    @classmethod
    def of(cls, objective: Objective, energy: float, cycles: float, byte: float = 0.0) -> Prices:
        """What the objective pays where it stands; for a byte, `byte` pJ beside those that it takes."""
        weights = {"edp": (cycles, energy), "energy": (1.0, 1e-6), "latency": (1e-6, 1.0)}[objective]
        return cls(*weights, byte * weights[0])


class Priced(NamedTuple):
    """A mapping on one unit, or issued by the core, and what it costs: (pJ, cycles, DRAM bytes)."""

    mapping: LayerMapping
    issue: Issue
    cost: NDArray[np.float64]


@dataclass(frozen=True)
class LayerOptions:
    """What a layer may be in its setting."""

    setting: LoopSetting
    priced: tuple[Priced, ...]
    as_is: bool
    """Whether it may stay as it is, issued by the core; where a loop unit can run it, no other is."""
    _checked: dict[LayerMapping, LayerMapping | None] = field(default_factory=dict)

    @property
    def on_loops(self) -> bool:
        """Whether a loop unit can run it at all."""
        return any(self._issued(priced) for priced in self.priced if priced.issue != "instructions")

    def best(self, prices: Prices) -> tuple[float, LayerMapping]:
        """The cheapest, the first of equals."""
        costs = np.array([priced.cost for priced in self.priced])
        worth = (costs * prices).sum(axis=1)
        for at in np.argsort(worth, kind="stable"):
            mapping = self._issued(self.priced[at])
            if mapping is not None:
                return float(worth[at]), mapping
        raise AssertionError(f"{self.setting.layer.name}: no unit runs it")  # asked of `on_loops` before

    def _issued(self, priced: Priced) -> LayerMapping | None:
        """The mapping as it is issued; None if its unit cannot run it, or another does it first."""
        mapping = priced.mapping
        if priced.issue == "instructions":
            return mapping
        if mapping not in self._checked:
            can = _keeps_weights(self.setting, mapping)
            self._checked[mapping] = next(issued(self.setting, mapping), None) if can else None
        found = self._checked[mapping]
        return found if found and _UNIT.get(found.issue, found.issue) == priced.issue else None


def units(layer: TensorCoreLayer) -> list[Issue]:
    """The loop units that a layer is something for."""
    fits = is_product(layer), layer.op in ("conv", "depthwise")
    return [unit for unit, fit in zip(LOOPS, fits, strict=True) if fit]


def issued(setting: LoopSetting, mapping: LayerMapping) -> Iterator[LayerMapping]:
    """A mapping in all ways in which units can run it, the shortest program first."""
    for issue in SHORTEST_FIRST if len(setting.group.layers) == 1 else LOOPS:
        now = replace(mapping, issue=issue)
        if not obstacle_to_issue(replace(setting, mapping=now)) and has_room(replace(setting, mapping=now)):
            yield now


def _keeps_weights(setting: LoopSetting, mapping: LayerMapping) -> bool:
    """Whether as many weight tiles stay as must."""
    wanted = setting.pinned and setting.pinned.tiles.get(setting.layer.name)
    if not wanted:
        return True
    trips = mapping.trips("L3", setting.bounds)
    return bool(np.prod([trips[x] for x in RELEVANT["W"]]) == wanted)
