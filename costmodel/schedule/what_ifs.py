"""What overlap across groups could be worth: the next group's first weights load under compute, any part.

A what-if: programs load whole first tiles, where `costmodel.group.weight_prefetch` finds room for them.  A
group that does not keep the DRAM channel busy can load the first weight tile (and the resident weights)
of the next one, as far as its own tiles leave scratchpad free.  Energy does not change, only the
latency of groups bound by DRAM.
"""

from __future__ import annotations

from dataclasses import replace

from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.costmodel.count.traffic import Move
from fadiff.costmodel.group.fusion import plan_group
from fadiff.costmodel.group.scratchpad import member_spaces, paper_use
from fadiff.costmodel.group.weight_prefetch import first_tile
from fadiff.costmodel.latency.roofline import roofline
from fadiff.costmodel.schedule.evaluate import GroupCost, LayerCost, NetworkCost
from fadiff.costmodel.schedule.schedule import FusionGroup, Schedule


def prefetch_weights(schedule: Schedule, cost: NetworkCost) -> NetworkCost:
    """`cost` (roofline latency) with every group's first weights prefetched where slack and space allow."""
    target = schedule.target
    layers = dict(cost.by_name)
    groups = []
    free_bytes = slack_bytes = 0
    for group, before in zip(schedule.groups, cost.groups, strict=True):
        first = schedule.graph.by_name[group.layers[0]]
        early = 0
        if isinstance(first, TensorCoreLayer) and slack_bytes and free_bytes:
            early = min(_first_weights(schedule, first), slack_bytes, free_bytes)
            layers[first.name] = _without(layers[first.name], early, schedule)
        members = [layers[name] for name in group.layers]
        latency = sum(member.latency_cycles for member in members)
        moved = sum(m.bytes for member in members for _, m in member.moves if m.memory in ("dram", "host"))
        slack_bytes = max(0, int(latency * target.bandwidth.dram_bytes) - (moved - early))
        free_bytes = _free_bytes(schedule, group)
        groups.append(GroupCost(group.layers, before.energy_pj, latency))
    return NetworkCost(
        tuple(layers[layer.name] for layer in cost.layers),
        tuple(groups),
        cost.energy_pj,
        sum(group.latency_cycles for group in groups),
    )


def resource_latency(schedule: Schedule, cost: NetworkCost) -> int:
    """Ideal overlap: the busiest resource's cycles over the whole network (a bound, not a program)."""
    busy: dict[str, int] = {}
    for layer in cost.layers:
        mapping = schedule.mappings.get(layer.name)
        columns = mapping.cols.product if mapping else schedule.target.side
        busy["compute"] = busy.get("compute", 0) + layer.compute_cycles
        for memory in {move.memory for _, move in layer.moves}:
            moves = [move for _, move in layer.moves if move.memory == memory]
            busy[memory] = busy.get(memory, 0) + roofline(moves, 0, columns, schedule.target)[0]
    return max(busy.values(), default=0)


def _first_weights(schedule: Schedule, layer: TensorCoreLayer) -> int:
    """Bytes of the weights a group needs before its first computation."""
    dims = first_tile(schedule, layer)
    return dims.G * dims.K * dims.C * dims.R * dims.S * schedule.target.element_bytes


def _free_bytes(schedule: Schedule, group: FusionGroup) -> int:
    """Scratchpad bytes that no member of the group ever uses."""
    target = schedule.target
    row = target.side * target.element_bytes if schedule.counting.in_rows else 1
    used = paper_use(schedule, group) if schedule.fusion_model == "paper" else _most_used(schedule, group)
    return max(0, target.scratchpad_bytes - used * row)


def _most_used(schedule: Schedule, group: FusionGroup) -> int:
    """Rows (profile dosa: bytes) of the member that needs most, as legality counts them."""
    spaces = member_spaces(schedule, group, plan_group(schedule.graph, group))
    return max((space.weights + space.inputs + space.room.reserved for space in spaces), default=0)


def _without(layer: LayerCost, loaded: int, schedule: Schedule) -> LayerCost:
    """The layer's cost with `loaded` bytes of weights already there."""
    earlier = Move("L3", "W", "read", -loaded, "dram")
    moves = [*(move for _, move in layer.moves), earlier]
    columns = schedule.mappings[layer.name].cols.product
    cycles, bound = roofline(moves, layer.compute_cycles, columns, schedule.target)
    return replace(layer, latency_cycles=cycles, bound=bound)
