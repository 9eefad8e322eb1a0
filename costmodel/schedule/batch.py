"""Exact cost of many mappings of one layer at once: the numbers of `evaluate`, in columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fadiff.costmodel.count.energy import picojoules
from fadiff.costmodel.count.nest import LoopNest
from fadiff.costmodel.count.traffic import ALONE, Memory, Placement, Quantities, count_moves, fusion_of
from fadiff.costmodel.latency.clock import clock_of, layer_cycles
from fadiff.costmodel.latency.clock_work import nest_counts
from fadiff.costmodel.latency.roofline import bandwidths, bytes_per_memory
from fadiff.costmodel.mapping.columns import MappingColumns
from fadiff.costmodel.mapping.counting import COUNTING
from fadiff.costmodel.mapping.mapping import Issue
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
    nest = LoopNest(shape, columns, whole(shape.dims) if region is None else region)
    q = nest.quantities(target, profile, resident=placement.weights_are_resident)
    in_use = np.prod(np.broadcast_arrays(*columns.cols), axis=0)
    energy, cycles = cost_columns(q, in_use, target, profile, placement)
    if COUNTING[profile].latency_model(paper=placement.is_paper) == "clock":
        cycles = _by_clock(nest, columns.issue, target, placement, network_weights)
    every = columns.shape
    return ColumnCosts(*(np.broadcast_to(column, every) for column in (energy, cycles, q.spills > 0)))


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


def _by_clock(
    nest: LoopNest, issue: Issue, target: Target, placement: Placement, network_weights: int
) -> Floats:
    """Cycles of every mapping as it is issued."""
    cycles: Floats = np.zeros(1)
    for index, alike in nest.by_order():
        counts = nest_counts(alike, target, placement, network_weights).issued_as(issue)
        cycles = np.where(nest.order == index, layer_cycles(counts, clock_of(target)), cycles)
    return np.rint(cycles)
