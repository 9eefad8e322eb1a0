"""Weights of the next group load while the group before computes (docs/execution-contract.md section 6).

A group with `prefetch_during` finds the first weights of its first layer in the scratchpad: the first
weight tile, or all weights if they are resident.  They are loaded while one layer of the group before
runs (layers between the two groups use no scratchpad), into rows that no member of that group uses.  In
profile hw the rows are where the later group looks for those weights anyway, once all that it holds is
moved down by `above` rows; both sides follow from the schedule alone, so legality, cost and emitter
agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from fadiff.converter.ir.dims import Dims
from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.costmodel.count.nest import LoopNest
from fadiff.costmodel.group.fusion import ScheduleError, plan_group
from fadiff.costmodel.group.placement import placement_of
from fadiff.costmodel.group.scratchpad import member_spaces
from fadiff.costmodel.latency.clock_work import NONE_EARLY, EarlyLoads, first_weights, nest_counts
from fadiff.costmodel.mapping.decision import Decision, FusionGroup
from fadiff.costmodel.mapping.shape import shape_of
from fadiff.costmodel.mapping.tiling import tile_extents

SomeDecision = TypeVar("SomeDecision", bound=Decision)


class NoRoomError(ScheduleError):
    """A prefetch that only lacks scratchpad."""


@dataclass(frozen=True)
class Prefetch:
    """The first weights of one group, loaded while a layer of an earlier group runs."""

    layer: str
    """Whose weights they are."""
    during: str
    tile: Dims
    """Extents of what is loaded: the scratchpad tile or, of resident weights, the layer."""
    nbytes: int
    """What is loaded from DRAM."""
    above: int = 0
    """Rows at the end of the scratchpad that the group leaves alone (profile hw)."""
    rows: tuple[int, int] = (0, 0)
    """First scratchpad row of the weights and the first one after them (profile hw)."""


def planned_prefetches(schedule: Decision) -> Mapping[str, Prefetch]:
    """All prefetches of a schedule, by the layer whose weights are loaded early.

    Raises:
        ScheduleError: one that cannot be executed, naming the layer.
    """
    found: dict[str, Prefetch] = {}
    if all(group.prefetch_during is None for group in schedule.groups):
        return found
    before: FusionGroup | None = None
    above = 0
    for group in schedule.groups:
        prefetch = None
        if group.prefetch_during is not None:
            prefetch = _planned(schedule, group, group.prefetch_during, before, above)
            found[prefetch.layer] = prefetch
        if any(isinstance(schedule.graph.by_name[name], TensorCoreLayer) for name in group.layers):
            before, above = group, prefetch.above if prefetch else 0
    return found


def without_prefetches(schedule: SomeDecision) -> SomeDecision:
    """The schedule (or decision) whose groups load their own weights."""
    if all(group.prefetch_during is None for group in schedule.groups):
        return schedule
    groups = tuple(replace(group, prefetch_during=None) for group in schedule.groups)
    return replace(schedule, groups=groups)


def _planned(
    schedule: Decision, group: FusionGroup, during: str, before: FusionGroup | None, above_before: int
) -> Prefetch:
    """The prefetch of `group` while `before` runs, which leaves the last `above_before` rows alone."""
    name = group.layers[0]
    layer = schedule.graph.by_name[name]

    def fail(reason: str, kind: type[ScheduleError] = ScheduleError) -> ScheduleError:
        return kind(f"{name}: its weights cannot be loaded while {during} runs: {reason}")

    if schedule.fusion_model == "paper":
        raise fail("the paper's model knows no prefetch")
    if not isinstance(layer, TensorCoreLayer) or schedule.graph.tensors[layer.weight.tensor].data is None:
        raise fail("it has no constant weights")
    if group.tile is not None and group.tile.is_part:
        raise fail("its group runs one part of its groups or channels after the other")
    earlier = schedule.graph.by_name.get(during)
    if before is None or during not in before.layers or not isinstance(earlier, TensorCoreLayer):
        raise fail("that is no convolution or matrix product of the group before")
    if layer.weight.tensor in earlier.inputs:
        raise fail("both read the same weights")
    mapping, target = schedule.mappings[name], schedule.target
    first = first_tile(schedule, layer)
    if layer.op == "depthwise" and first.G > mapping.cols.G and first.G % mapping.cols.G:
        raise fail(f"{first.G} channels are no whole blocks of {mapping.cols.G}")
    nbytes = first_weight_elements(layer, first, schedule) * target.element_bytes
    spaces = member_spaces(schedule, group, plan_group(schedule.graph, group))
    earlier_spaces = member_spaces(schedule, before, plan_group(schedule.graph, before), above_before)
    if not schedule.counting.in_rows:
        free = target.scratchpad_bytes - max(s.weights + s.inputs + s.room.reserved for s in earlier_spaces)
        if nbytes > free:
            raise fail(f"they take {nbytes} bytes of the scratchpad, {free} are free", NoRoomError)
        return Prefetch(name, during, first, nbytes)
    for space in (*spaces, *earlier_spaces):
        if schedule.mappings[space.layer.name].rows.S > 1 and space.inputs > target.scratchpad_rows // 2:
            raise fail(
                f"the row-packed input tiles of {space.layer.name} lie in both halves of the scratchpad"
            )
    end = target.scratchpad_rows
    own = spaces[0]
    count = own.first_weights
    # Where they are if nothing moves down: of resident weights the topmost, of two tiles the lower.
    row = end - own.weights - (0 if own.room.is_resident else own.room.reserved)
    lowest = max(space.inputs for space in earlier_spaces)
    highest = min(end - space.room.reserved - space.weights for space in earlier_spaces)
    if row >= end - above_before:
        return Prefetch(name, during, first, nbytes, 0, (row, row + count))
    above = max(0, row + count - highest)
    if row - above < lowest:
        raise fail(f"they take {count} rows of the scratchpad, {highest - lowest} are free", NoRoomError)
    for space in spaces:
        if space.weights + space.inputs + space.room.reserved + above > end:
            raise fail(
                f"{space.layer.name} has no room besides: {above} more rows are taken then", NoRoomError
            )
    return Prefetch(name, during, first, nbytes, above, (row - above, row - above + count))


def first_weight_elements(layer: TensorCoreLayer, first: Dims, schedule: Decision) -> int:
    """Elements of a weight tile as it lies in DRAM: of a depthwise layer (profile hw) with the zeros of its
    block-diagonal array tiles."""
    if layer.op == "depthwise" and schedule.counting.loads_zeros:
        mapping = schedule.mappings[layer.name]
        blocks = tile_extents(((first.G, 1),), mapping.tile_l1.G, mapping.tile_l0.G)
        channels = sum(g * g * times for g, times in blocks)
        return int(channels * first.R * first.S)
    return first.G * first.K * first.C * first.R * first.S


def early_loads(schedule: Decision) -> dict[str, EarlyLoads]:
    """What prefetching moves from one layer's time to another's, by layer."""
    found: dict[str, EarlyLoads] = {}
    for prefetch in planned_prefetches(schedule).values():
        loads = first_loads(schedule, prefetch.layer)
        for name, sign in ((prefetch.during, 1), (prefetch.layer, -1)):
            found[name] = found.get(name, NONE_EARLY).plus(loads, sign)
    return found


def first_loads(schedule: Decision, name: str) -> EarlyLoads:
    """The first weights of layer `name`: its scratchpad tile or, if they are resident, all of them."""
    layer, group = schedule.graph.by_name[name], schedule.group_of[name]
    assert isinstance(layer, TensorCoreLayer)
    tile = first_tile(schedule, layer)
    nbytes = first_weight_elements(layer, tile, schedule) * schedule.target.element_bytes
    region = plan_group(schedule.graph, group)[name].computed
    nest = LoopNest(shape_of(layer), schedule.mappings[name], region)
    return first_weights(nest, tile, nbytes, schedule.target, schedule.graph.weight_bytes)


def load_requests(schedule: Decision, name: str) -> float:
    """Requests of the DMA that load the operands of layer `name`."""
    layer, group = schedule.graph.by_name[name], schedule.group_of[name]
    assert isinstance(layer, TensorCoreLayer)
    plan = plan_group(schedule.graph, group)
    nest = LoopNest(shape_of(layer), schedule.mappings[name], plan[name].computed)
    placement = placement_of(schedule.graph, group, plan, layer)
    return float(nest_counts(nest, schedule.target, placement, schedule.graph.weight_bytes).requests)


def first_tile(schedule: Decision, layer: TensorCoreLayer) -> Dims:
    """Extents of the weights that a layer needs first."""
    resident = layer.name in schedule.group_of[layer.name].resident_weights
    return layer.dims if resident else schedule.mappings[layer.name].tile_l2
