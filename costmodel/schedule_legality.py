"""Whether a whole schedule can be executed: the partition into groups, every group, every mapping.

The rules are docs/execution-contract.md section 2 (profile hw) and Timeloop's (profile dosa); those of
one mapping are in costmodel.legality.
"""

from __future__ import annotations

from converter.graph import HostLayer, TensorCoreLayer
from costmodel.fusion import Member, ScheduleError, plan_group
from costmodel.legality import check_mapping, occupancy
from costmodel.local_tensors import Held, held_tensors, input_path, obstacle, reserved_rows
from costmodel.nest import Nest
from costmodel.resident_tensors import check_resident_tensors
from costmodel.schedule import FusionGroup, Schedule
from costmodel.shape import shape_of
from costmodel.tile_buffer import box_bytes, plan_tile_buffer


def check_schedule(schedule: Schedule) -> None:
    """Check a whole schedule: the partition into groups, every group, every mapping.

    Raises:
        ScheduleError: the first constraint that breaks, naming layer and numbers.
    """
    graph = schedule.graph
    for layer in graph.tensor_core_layers:
        if layer.name not in schedule.mappings:
            raise ScheduleError(f"{layer.name}: has no mapping")
    for name in schedule.mappings:
        if not isinstance(graph.by_name.get(name), TensorCoreLayer):
            raise ScheduleError(f"{name}: has a mapping but is no tensor-core layer of the graph")
    _check_partition(schedule)
    if schedule.fusion_model == "paper":
        for group in schedule.groups:
            _check_paper_group(schedule, group)
        return
    check_resident_tensors(graph, schedule.groups)
    plans = [plan_group(graph, group) for group in schedule.groups]
    for group, plan in zip(schedule.groups, plans, strict=True):
        _check_group(schedule, group, plan)
    if schedule.profile == "hw":
        plan_tile_buffer(graph, schedule.groups, plans, schedule.target)


def _check_partition(schedule: Schedule) -> None:
    position = {layer.name: i for i, layer in enumerate(schedule.graph.layers)}
    seen: set[str] = set()
    group_index: dict[str, int] = {}
    for index, group in enumerate(schedule.groups):
        for name in group.layers:
            if name not in position:
                raise ScheduleError(f"{name}: is in a fusion group but not in the graph")
            if name in seen:
                raise ScheduleError(f"{name}: is in two fusion groups")
            seen.add(name)
            group_index[name] = index
        if list(group.layers) != sorted(group.layers, key=position.__getitem__):
            raise ScheduleError(f"{group.layers[0]}: its fusion group is not in graph order")
        for name in group.resident_weights:
            if name not in group.layers:
                raise ScheduleError(f"{name}: weights are resident in a group that it is no member of")
    missing = [name for name in position if name not in seen]
    if missing:
        raise ScheduleError(f"{missing[0]}: is in no fusion group")
    for producer, consumer in schedule.graph.dag.edges:
        if group_index[producer] > group_index[consumer]:
            raise ScheduleError(
                f"{consumer}: its fusion group runs before the group of {producer}, whose output it reads"
            )


def _tensor_core(schedule: Schedule, name: str) -> TensorCoreLayer | None:
    layer = schedule.graph.by_name[name]
    return layer if isinstance(layer, TensorCoreLayer) else None


def _check_group(schedule: Schedule, group: FusionGroup, plan: dict[str, Member]) -> None:
    target, profile = schedule.target, schedule.profile
    residents = {}
    for name in group.resident_weights:
        layer = _tensor_core(schedule, name)
        if layer is None:
            raise ScheduleError(f"{name}: a host layer has no weights to keep resident")
        shape = shape_of(layer)
        used = occupancy(shape, schedule.mappings[name], target, profile, plan[name].computed)
        residents[name] = used.resident_weights
    stay = sum(residents.values())
    live = live_bytes(schedule, plan) if profile == "dosa" and len(group.layers) > 1 else {}
    held = _held(schedule, group, plan, stay) if profile == "hw" else {}
    whole = resident_bytes(schedule, group)
    if whole > target.scratchpad_bytes:
        raise ScheduleError(
            f"{group.layers[0]}: tensors that stay on chip while its group runs need {whole} of "
            f"{target.scratchpad_bytes} scratchpad bytes ({', '.join(sorted(group.resident_tensors))})"
        )
    for at, name in enumerate(group.layers):
        layer = _tensor_core(schedule, name)
        if layer is None:
            continue
        if profile == "dosa":
            _check_final(schedule, layer, group, plan[name])
        fused_input = layer.input.tensor in plan[name].fused_inputs
        resident_input = profile == "dosa" and layer.input.tensor in group.resident_tensors
        own = residents.get(name, 0)
        check_mapping(
            layer,
            schedule.mappings[name],
            target,
            profile,
            plan[name].computed,
            resident=name in residents,
            reserved=max(reserved_rows(held, at, "spad"), stay) - own + live.get(name, 0) + whole,
            input_on_chip=resident_input
            or (fused_input and (bool(live) or input_path(schedule.graph, group, layer) != "tile-buffer")),
            output_path=group.path(name) if name in held else "tile-buffer",
            reserved_accumulator=reserved_rows(held, at, "acc"),
        )


def resident_bytes(schedule: Schedule, group: FusionGroup) -> int:
    """Scratchpad bytes of whole tensors that stay on chip while a group runs (profile dosa; hw: 0)."""
    if schedule.profile == "hw":
        return 0
    tensors = schedule.graph.tensors
    return sum(tensors[name].size for name in group.resident_tensors) * schedule.target.element_bytes


def _held(schedule: Schedule, group: FusionGroup, plan: dict[str, Member], resident: int) -> dict[str, Held]:
    """Where the fused tensors lie that stay in local memory."""
    graph, target = schedule.graph, schedule.target
    for name in sorted(group.in_scratchpad | group.in_accumulator):
        if name not in plan:
            raise ScheduleError(f"{name}: stays in the local memory of a group that it is no member of")
        path = group.path(name)
        if name in group.in_scratchpad & group.in_accumulator:
            raise ScheduleError(f"{name}: its output stays in the scratchpad or the accumulator, not in both")
        if path == "spad" and not target.use_tl_ext_mem:
            raise ScheduleError(
                f"{name}: target {target.name} cannot copy its output into the scratchpad (use_tl_ext_mem)"
            )
        if path == "acc" and not target.ex_read_from_acc:
            raise ScheduleError(
                f"{name}: target {target.name} cannot read operands in the accumulator (ex_read_from_acc)"
            )
        reason = obstacle(graph, group, plan, name, path)
        if reason:
            raise ScheduleError(f"{name}: its output cannot stay in local memory: {reason}")
    return held_tensors(graph, group, plan, target.side, resident)


def live_bytes(schedule: Schedule, plan: dict[str, Member]) -> dict[str, int]:
    """Bytes of the fused tensors alive while each member runs (profile dosa)."""
    names = list(plan)
    graph = schedule.graph
    alive: list[tuple[int, int, int]] = []
    for index, member in enumerate(plan.values()):
        if member.writes_inside:
            tensor = graph.by_name[member.name].outputs[0]
            last = max(names.index(r.name) for r in graph.consumers(tensor) if r.name in plan)
            alive.append((index, last, box_bytes(graph, member, schedule.target)))
    return {
        name: sum(space for first, last, space in alive if first <= at <= last)
        for at, name in enumerate(names)
    }


def _check_final(schedule: Schedule, layer: TensorCoreLayer, group: FusionGroup, member: Member) -> None:
    """An on-chip copy is final-value only: its producer must not spill partial sums."""
    resident = layer.output.tensor in group.resident_tensors
    if member.writes_inside or resident:
        nest = Nest(shape_of(layer), schedule.mappings[layer.name], member.computed)
        times = nest.fetch("O", 2)[0]
        if times > 1:
            raise ScheduleError(
                f"{layer.name}: its output is {'resident' if resident else 'fused'} "
                f"but leaves the accumulator unfinished ({times} visits)"
            )


def _check_paper_group(schedule: Schedule, group: FusionGroup) -> None:
    """Eq. 24: the scratchpad tiles of all members together fit."""
    if group.resident_tensors:
        raise ScheduleError(
            f"tensor {min(group.resident_tensors)}: the paper's model keeps no tensor on chip across groups"
        )
    total = 0
    for name in group.layers:
        layer = _tensor_core(schedule, name)
        if layer is None:
            host = schedule.graph.by_name[name]
            if len(group.layers) > 1 and isinstance(host, HostLayer) and host.op != "add":
                raise ScheduleError(f"{name}: host operator {host.op} cannot be a member of a fusion group")
            continue
        mapping = schedule.mappings[name]
        check_mapping(layer, mapping, schedule.target, schedule.profile)
        used = occupancy(shape_of(layer), mapping, schedule.target, schedule.profile)
        total += used.weights + used.inputs
    hw = schedule.profile == "hw"
    size = schedule.target.scratchpad_rows if hw else schedule.target.scratchpad_bytes
    if len(group.layers) > 1 and total > size:
        raise ScheduleError(
            f"{group.layers[0]}: scratchpad tiles of its fusion group need {total} of {size} "
            f"{'rows' if hw else 'bytes'} (paper's Eq. 24)"
        )
