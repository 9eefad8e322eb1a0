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
from fadiff.costmodel.mapping.mapping import Issue
from fadiff.costmodel.mapping.numbers import Ints, Number
from fadiff.costmodel.mapping.shape import LayerShape, Region, whole
from fadiff.costmodel.schedule.schedule import LatencyModel, Profile
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
    latency: LatencyModel = "roofline",
    *,
    region: Region | None = None,
    placement: Placement = ALONE,
    early: Number = 0,
    network_weights: int = 0,
) -> ColumnCosts:
    """Cost of every mapping of one layer, in the shape of the columns; none is checked.

    `early` bytes of weights take no DRAM time (roofline); `network_weights` are the bytes of all weights.
    """
    nest = LoopNest(shape, columns, whole(shape.dims) if region is None else region)
    q = nest.quantities(target, profile, resident=placement.weights_are_resident)
    in_use = np.prod(np.broadcast_arrays(*columns.cols), axis=0)
    energy, cycles = cost_columns(q, in_use, target, profile, placement, early)
    if latency == "clock":
        cycles = _by_clock(nest, columns.issue, target, placement, network_weights)
    every = columns.shape
    return ColumnCosts(*(np.broadcast_to(column, every) for column in (energy, cycles, q.spills > 0)))


def cost_columns(
    q: Quantities, columns: Number, target: Target, profile: Profile, placement: Placement, early: Number = 0
) -> tuple[Floats, Floats]:
    """Picojoules and roofline cycles of columns of quantities, with `columns` of the array in use."""
    memory = memory_bytes(q, target, profile, placement)
    energy = picojoules(memory, q.macs, target)
    memory["dram"] = memory["dram"] - early
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


def clock_columns(
    shape: LayerShape,
    columns: MappingColumns,
    target: Target,
    region: Region,
    placement: Placement,
    network_weights: int,
) -> Floats:
    """What mappings of a layer (profile hw) cost as they are issued: rows of (picojoules, cycles by the
    clock, DRAM bytes), [mappings, 3].

    Args:
        shape: The layer's.
        columns: Mappings, all issued alike; none is checked.
        target: On what it runs.
        region: What its group makes it compute.
        placement: Where its operands live.
        network_weights: Bytes of all weights of the network.
    """
    nest = LoopNest(shape, columns, region)
    q = nest.quantities(target, "hw", resident=placement.weights_are_resident)
    memory = memory_bytes(q, target, "hw", placement)
    cycles = _by_clock(nest, columns.issue, target, placement, network_weights)
    energy = picojoules(memory, q.macs, target)
    every = np.broadcast_arrays(energy, cycles, memory["dram"], np.zeros(columns.shape))
    return np.stack([np.atleast_1d(column) for column in every[:3]], axis=-1)
