"""What shares the scratchpad with the tiles of each member of a fusion group.

Rows in profile hw, bytes in profile dosa.  Resident weights and (dosa) fused and resident tensors lie at the
top; legality and emitter agree on it through `member_spaces`.
"""

from __future__ import annotations

from dataclasses import dataclass

from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.costmodel.count.capacity import Occupancy, occupancy
from fadiff.costmodel.group.fusion import Member, ScheduleError
from fadiff.costmodel.group.legality import Room
from fadiff.costmodel.group.tile_buffer import box_bytes
from fadiff.costmodel.mapping.decision import Decision, FusionGroup
from fadiff.costmodel.mapping.shape import shape_of
from fadiff.costmodel.target.target import Target


@dataclass(frozen=True)
class MemberSpace:
    """Space of one tensor-core member while it runs."""

    layer: TensorCoreLayer
    tiles: Occupancy
    room: Room
    """What it shares the chip with; others' scratchpad lies above its own weights."""

    @property
    def weights(self) -> int:
        """What its own weights take."""
        return int(self.tiles.resident_weights if self.room.is_resident else self.tiles.weights)

    @property
    def inputs(self) -> int:
        """What its own input tiles take."""
        return 0 if self.room.input_on_chip else self.tiles.inputs


def member_spaces(schedule: Decision, group: FusionGroup, plan: dict[str, Member]) -> list[MemberSpace]:
    """Spaces of the tensor-core members of a group, in graph order.

    Raises:
        ScheduleError: weights, fused or resident tensors that cannot stay, naming the layer.
    """
    graph, target, profile = schedule.graph, schedule.target, schedule.profile
    buffered = schedule.counting.has_tile_buffer
    tiles = {
        name: occupancy(shape_of(layer), schedule.mappings[name], target, profile, plan[name].computed)
        for name in group.layers
        if isinstance(layer := graph.by_name[name], TensorCoreLayer)
    }
    for name in sorted(group.resident_weights - tiles.keys()):
        raise ScheduleError(f"{name}: a host layer has no weights to keep resident")
    residents = {name: tiles[name].resident_weights for name in group.resident_weights}
    stay = sum(residents.values())
    live = live_bytes(schedule.graph, plan, target) if not buffered and len(group.layers) > 1 else {}
    whole = resident_bytes(schedule, group)
    if whole > target.scratchpad_bytes:
        raise ScheduleError(
            f"{group.layers[0]}: tensors that stay on chip while its group runs need {whole} of "
            f"{target.scratchpad_bytes} scratchpad bytes ({', '.join(sorted(group.resident_tensors))})"
        )
    spaces = []
    for name in group.layers:
        layer = graph.by_name[name]
        if not isinstance(layer, TensorCoreLayer):
            continue
        is_fused = layer.input.tensor in plan[name].fused_inputs
        stays = not buffered and layer.input.tensor in group.resident_tensors
        spaces.append(
            MemberSpace(
                layer,
                tiles[name],
                Room(
                    is_resident=name in residents,
                    reserved=stay - residents.get(name, 0) + live.get(name, 0) + whole,
                    input_on_chip=stays or (is_fused and bool(live)),
                ),
            )
        )
    return spaces


def resident_bytes(schedule: Decision, group: FusionGroup) -> int:
    """Scratchpad bytes of whole tensors that stay on chip while a group runs (profile dosa; hw: 0)."""
    if schedule.counting.has_tile_buffer:
        return 0
    tensors = schedule.graph.tensors
    return sum(tensors[name].size for name in group.resident_tensors) * schedule.target.element_bytes


def paper_use(schedule: Decision, group: FusionGroup) -> int:
    """Scratchpad rows (profile dosa: bytes) of a group by Eq. 24: tiles of all members are there together."""
    used = 0
    for name in group.layers:
        layer = schedule.graph.by_name[name]
        if isinstance(layer, TensorCoreLayer):
            tiles = occupancy(shape_of(layer), schedule.mappings[name], schedule.target, schedule.profile)
            used += tiles.weights + tiles.inputs
    return used


def live_bytes(graph: Graph, plan: dict[str, Member], target: Target) -> dict[str, int]:
    """Bytes of the fused tensors alive while each member runs (profile dosa)."""
    names = list(plan)
    alive: list[tuple[int, int, int]] = []
    for index, member in enumerate(plan.values()):
        if member.writes_inside:
            tensor = graph.by_name[member.name].outputs[0]
            last = max(names.index(r.name) for r in graph.consumers(tensor) if r.name in plan)
            alive.append((index, last, box_bytes(graph, member, target)))
    return {
        name: sum(space for first, last, space in alive if first <= at <= last)
        for at, name in enumerate(names)
    }
