"""Exact cost of a schedule: integer traffic, energy and latency per layer, per group and in total.

No torch, no search.  Layers that are identical (same shape, mapping, regions and placement) are
computed once and remembered across calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping as MappingABC
from collections.abc import Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from fadiff.converter.ir.graph import Graph, HostLayer, TensorCoreLayer
from fadiff.costmodel.count.energy import energy_breakdown
from fadiff.costmodel.count.nest import LoopNest, layer_traffic
from fadiff.costmodel.count.traffic import ALONE, Move, Placement
from fadiff.costmodel.group.copies import copy_counts
from fadiff.costmodel.group.fusion import Member, paper_plan, plan_group, stored_as
from fadiff.costmodel.group.host import copy_moves, host_moves
from fadiff.costmodel.group.placement import placement_of
from fadiff.costmodel.latency.clock import BOUND_NAME, clock_of, engine_cycles, layer_cycles
from fadiff.costmodel.latency.clock_work import nest_counts
from fadiff.costmodel.latency.roofline import roofline
from fadiff.costmodel.mapping.counting import COUNTING
from fadiff.costmodel.mapping.mapping import AdditionIssue, Mapping
from fadiff.costmodel.mapping.shape import LayerShape, Region, shape_of, whole
from fadiff.costmodel.schedule.clock import HostCounts, group_counts, host_counts
from fadiff.costmodel.schedule.schedule import FusionGroup, Profile, Schedule
from fadiff.costmodel.target.target import Target

CACHE_LIMIT = 1 << 16


@dataclass(frozen=True)
class LayerCost:
    """Cost of one layer: picojoules, cycles, what binds (compute, L1, L2, L3, tile-buffer, issue, host)."""

    name: str
    energy_pj: float
    latency_cycles: int
    bound: str
    moves: tuple[tuple[str, Move], ...] = field(repr=False)
    """(tensor name, bytes moved)."""
    energy_breakdown: MappingABC[str, float] = field(repr=False)
    """Picojoules per memory; `mac` is the array."""
    compute_cycles: int = 0
    """Cycles the array is busy; 0 for host layers."""

    def bytes_in(self, memory: str) -> dict[str, tuple[int, int]]:
        """{tensor: (bytes read, bytes written)} of one memory.

        Spilled partial sums of tensor T go to a scratch area and are reported as `T.psum`.
        """
        totals: dict[str, tuple[int, int]] = {}
        for tensor, move in self.moves:
            if move.memory == memory:
                read, written = totals.get(tensor, (0, 0))
                if move.direction == "read":
                    read += move.bytes
                else:
                    written += move.bytes
                totals[tensor] = (read, written)
        return totals

    def total_bytes(self, memory: str) -> int:
        """Read from and written to one memory."""
        return sum(move.bytes for _, move in self.moves if move.memory == memory)


@dataclass(frozen=True)
class GroupCost:
    """Cost of one fusion group: members run one after the other."""

    layers: tuple[str, ...]
    energy_pj: float
    latency_cycles: int


@dataclass(frozen=True)
class NetworkCost:
    """Cost of a whole schedule.  Energy in pJ, latency in cycles, EDP in uJ x cycles."""

    layers: tuple[LayerCost, ...]
    groups: tuple[GroupCost, ...]
    energy_pj: float
    latency_cycles: int

    @property
    def edp_uj_cycles(self) -> float:
        """Energy-delay product of the network."""
        return self.energy_pj * self.latency_cycles * 1e-6

    @property
    def dram_bytes(self) -> int:
        """That Gemmini's DMA moves to and from DRAM."""
        return sum(layer.total_bytes("dram") for layer in self.layers)

    @cached_property
    def by_name(self) -> MappingABC[str, LayerCost]:
        """Cost of each layer."""
        return {layer.name: layer for layer in self.layers}


def evaluate(schedule: Schedule, *, sliding_window: bool = False) -> NetworkCost:
    """Exact cost of `schedule` under its own profile and fusion model.

    Cycles are those of the emitted program where there is one (profile hw, fusion model sound), else of the
    roofline.

    `sliding_window` counts input halos as Timeloop does (see fadiff.costmodel.count.nest.layer_traffic).
    """
    layers: dict[str, LayerCost] = {}
    groups = []
    paper = schedule.fusion_model == "paper"
    for group in schedule.groups:
        costs = group_cost(
            schedule.graph,
            group,
            schedule.mappings,
            schedule.target,
            schedule.profile,
            paper=paper,
            sliding_window=sliding_window,
            additions=schedule.additions,
            copies=schedule.copies,
        )
        energy = math.fsum(cost.energy_pj for cost in costs)
        groups.append(GroupCost(group.layers, energy, sum(cost.latency_cycles for cost in costs)))
        layers.update((cost.name, cost) for cost in costs)
    return NetworkCost(
        tuple(layers[layer.name] for layer in schedule.graph.layers),
        tuple(groups),
        math.fsum(group.energy_pj for group in groups),
        sum(group.latency_cycles for group in groups),
    )


def group_cost(
    graph: Graph,
    group: FusionGroup,
    mappings: MappingABC[str, Mapping],
    target: Target,
    profile: Profile = "hw",
    *,
    paper: bool = False,
    sliding_window: bool = False,
    additions: MappingABC[str, AdditionIssue] | None = None,
    copies: Set[str] = frozenset(),
) -> tuple[LayerCost, ...]:
    """Cost of the members of one group, in graph order; legality of mappings is not checked.

    `additions` says how residual additions are issued (None: as is quickest), `copies` which Gemmini makes.

    Raises:
        ScheduleError: the group has no executable plan (see fadiff.costmodel.group.fusion.plan_group).
    """
    placed = replace(group, resident_tensors=frozenset()) if paper else group
    plan = paper_plan(graph, group) if paper else plan_group(graph, group)
    costs = []
    overlapping = {}
    by_clock = COUNTING[profile].latency_model(paper=paper) == "clock"
    if (group.pipelined or group.side_by_side) and by_clock:
        overlapping = group_counts(graph, group, mappings, target, additions)
    for name in group.layers:
        layer = graph.by_name[name]
        if isinstance(layer, HostLayer):
            issue = None if additions is None else additions.get(name, "instructions")
            run = graph, placed, plan, layer, target, profile, issue
            cost = host_cost(*run, copied=name in copies, paper=paper)
            counts = overlapping.get(name)
            if isinstance(counts, HostCounts):
                cost = replace(cost, latency_cycles=round(counts.cycles(clock_of(target), target.core)))
            costs.append(cost)
            continue
        output = graph.by_name[stored_as(plan, name).name].outputs[0]
        numbers = layer_cost(
            shape_of(layer),
            mappings[name],
            target,
            profile,
            region=plan[name].computed,
            placement=placement_of(graph, group, plan, layer, paper=paper),
            sliding_window=sliding_window,
            network_weights=graph.weight_bytes,
        )
        costs.append(_named(layer, numbers, output))
    return tuple(costs)


class LayerNumbers(NamedTuple):
    """Cost of a tensor-core layer without its names: what identical layers share."""

    energy_pj: float
    latency_cycles: int
    bound: str
    moves: tuple[Move, ...]
    breakdown: dict[str, float]
    compute_cycles: int


_cache: dict[tuple[object, ...], LayerNumbers] = {}


def clear_cache() -> None:
    """Forget remembered layers (for measurements)."""
    _cache.clear()


def layer_cost(
    shape: LayerShape,
    mapping: Mapping,
    target: Target,
    profile: Profile = "hw",
    *,
    region: Region | None = None,
    placement: Placement = ALONE,
    sliding_window: bool = False,
    network_weights: int = 0,
) -> LayerNumbers:
    """Cost of one tensor-core layer (of a group: over all group tiles), remembered.

    `network_weights`: bytes of all weights of the network (profile hw).
    """
    computed = whole(shape.dims) if region is None else region
    by_clock = COUNTING[profile].latency_model(paper=placement.is_paper) == "clock"
    run = network_weights if by_clock else None
    key = (shape, mapping, target, profile, run, computed, placement, sliding_window)
    numbers = _cache.get(key)
    if numbers is None:
        if len(_cache) >= CACHE_LIMIT:
            _cache.clear()
        traffic = layer_traffic(
            shape, mapping, computed, target, profile, placement, sliding_window=sliding_window
        )
        breakdown = energy_breakdown(traffic.moves, traffic.macs, target)
        if by_clock:
            nest = LoopNest(shape, mapping, computed)
            counts = nest_counts(nest, target, placement, network_weights, mapping.issue)
            busy = engine_cycles(counts, clock_of(target))._asdict()
            cycles = round(layer_cycles(counts, clock_of(target)))
            bound = BOUND_NAME[max(busy, key=lambda engine: busy[engine])]
        else:
            cycles, bound = roofline(traffic.moves, traffic.compute_cycles, traffic.columns, target)
        energy = sum(breakdown.values())
        numbers = LayerNumbers(energy, cycles, bound, traffic.moves, breakdown, traffic.compute_cycles)
        _cache[key] = numbers
    return numbers


def _named(layer: TensorCoreLayer, numbers: LayerNumbers, out: str) -> LayerCost:
    """Attach the layer's tensor names; `out` is what its stores write."""
    tensor = {
        "W": layer.weight.tensor,
        "I": layer.input.tensor,
        "O": out,
        "bias": layer.bias or out,
        "psum": out + ".psum",
    }
    return LayerCost(
        layer.name,
        numbers.energy_pj,
        numbers.latency_cycles,
        numbers.bound,
        tuple((tensor[move.role], move) for move in numbers.moves),
        numbers.breakdown,
        numbers.compute_cycles,
    )


def host_cost(
    graph: Graph,
    group: FusionGroup,
    plan: dict[str, Member],
    layer: HostLayer,
    target: Target,
    profile: Profile,
    issue: AdditionIssue | None = None,
    *,
    copied: bool = False,
    paper: bool = False,
) -> LayerCost:
    """Adds run through Gemmini's accumulator, a copy that is `copied` by Gemmini through its scratchpad,
    other host operators through the core; free in `dosa`, and so are max pools that the stores of the
    convolution before do: their bytes are that layer's.

    `issue` is an addition's; None: the quickest.
    """
    member = plan[layer.name]
    if not COUNTING[profile].charges_operators or (layer.op == "max_pool" and member.fused_inputs):
        return LayerCost(layer.name, 0.0, 0, "host", (), {})
    named = host_moves(graph, layer, member, target, group.resident_tensors)
    moves = tuple(move for _, move in named)
    breakdown = energy_breakdown(moves, 0, target)
    cycles, bound = roofline(moves, 0, target.side, target)
    by_clock = COUNTING[profile].latency_model(paper=paper) == "clock"
    if copied:  # energy stays the core's, which the search and its bound know
        named, bound = copy_moves(layer, target, group.resident_tensors), "L3"
    if by_clock and copied:
        cycles = round(layer_cycles(copy_counts(graph, layer, target), clock_of(target)))
    elif by_clock:
        counts = host_counts(graph, group, plan, layer, target, issue)
        cycles = round(counts.cycles(clock_of(target), target.core))
    return LayerCost(layer.name, sum(breakdown.values()), cycles, bound, named, breakdown)
