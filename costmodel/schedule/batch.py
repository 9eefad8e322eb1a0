"""Exact cost of many mappings of one layer at once: the numbers of `evaluate`, in columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fadiff.costmodel.count.energy import picojoules
from fadiff.costmodel.count.nest import LoopNest
from fadiff.costmodel.count.traffic import ALONE, Memory, Placement, Quantities, count_moves, fusion_of
from fadiff.costmodel.latency.clock import clock_of, layer_cycles
from fadiff.costmodel.latency.clock_work import NestWork
from fadiff.costmodel.latency.roofline import bandwidths, bytes_per_memory
from fadiff.costmodel.mapping.columns import MappingColumns
from fadiff.costmodel.mapping.counting import COUNTING
from fadiff.costmodel.mapping.numbers import Ints, Number
from fadiff.costmodel.mapping.shape import LayerShape, Region, whole
from fadiff.costmodel.schedule.schedule import Profile
from fadiff.costmodel.target.target import Target

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class ColumnCosts:
    """Columns: picojoules, cycles, and whether partial sums leave the accumulator."""

    energy: Floats
    latency: Floats
    spills: Bools

    def select(self, index: Ints) -> ColumnCosts:
        """Those of the chosen mappings."""
        return ColumnCosts(self.energy[index], self.latency[index], self.spills[index])


def evaluate_columns(
    shape: LayerShape,
    columns: MappingColumns,
    target: Target,
    profile: Profile = "hw",
    *,
    region: Region | None = None,
    placement: Placement = ALONE,
    network_weights: int = 0,
) -> ColumnCosts:
    """Cost of every mapping of one layer, in the shape of the columns; none is checked.

    `network_weights` are the bytes of all weights (profile hw).
    """
    region = whole(shape.dims) if region is None else region
    if COUNTING[profile].latency_model(paper=placement.is_paper) == "clock":
        return ColumnWork(shape, columns, target, region, network_weights).costs(placement)
    nest = LoopNest(shape, columns, region)
    q = nest.quantities(target, profile, resident=placement.weights_are_resident)
    in_use = np.prod(np.broadcast_arrays(*columns.cols), axis=0)
    costs = (*cost_columns(q, in_use, target, profile, placement), q.spills > 0)
    return ColumnCosts(*(np.broadcast_to(column, columns.shape) for column in costs))


class ColumnWork:
    """Mappings of one layer of a program (profile hw), to be priced wherever its operands are."""

    def __init__(
        self,
        shape: LayerShape,
        columns: MappingColumns,
        target: Target,
        region: Region,
        network_weights: int,
    ) -> None:
        self.columns, self.target = columns, target
        nest = LoopNest(shape, columns, region)
        self._by_order = [
            (index, NestWork(alike, target, network_weights)) for index, alike in nest.by_order()
        ]

    def costs(self, placement: Placement) -> ColumnCosts:
        """Cost of every mapping as it is issued, its operands there."""
        found, c = None, clock_of(self.target)
        for index, work in self._by_order:
            q = work.quantities(resident=placement.weights_are_resident)
            energy = picojoules(memory_bytes(q, self.target, "hw", placement), q.macs, self.target)
            cycles = np.rint(layer_cycles(work.counts(placement, self.columns.issue), c))
            costs = energy, cycles, q.spills > 0
            if found is not None:
                here = self.columns.order == index
                costs = tuple(np.where(here, *both) for both in zip(costs, found, strict=True))
            found = costs
        assert found is not None
        return ColumnCosts(*(np.broadcast_to(column, self.columns.shape) for column in found))


def cost_columns(
    q: Quantities, columns: Number, target: Target, profile: Profile, placement: Placement
) -> tuple[Floats, Floats]:
    """Picojoules and roofline cycles of columns of quantities, with `columns` of the array in use."""
    memory = memory_bytes(q, target, profile, placement)
    energy = picojoules(memory, q.macs, target)
    latency = np.asarray(q.compute_cycles, dtype=np.float64)
    for name, bandwidth in bandwidths(target, columns).items():
        latency = np.maximum(latency, np.ceil(memory.get(name, 0) / bandwidth))
    return energy, latency


def memory_bytes(
    q: Quantities, target: Target, profile: Profile, placement: Placement
) -> dict[Memory, Number]:
    """Bytes of one layer through each memory."""
    return bytes_per_memory(count_moves(q, fusion_of(placement), target, profile, paper=placement.is_paper))
