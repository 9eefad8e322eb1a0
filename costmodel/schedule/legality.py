"""Whether a whole schedule can be executed: the partition into groups, every group, every mapping.

The rules are docs/execution-contract.md section 2 (profile hw) and Timeloop's (profile dosa); those of
one mapping are in fadiff.costmodel.group.legality.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingABC

from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.costmodel.count.nest import LoopNest
from fadiff.costmodel.group.additions import check_additions
from fadiff.costmodel.group.copies import check_copies
from fadiff.costmodel.group.fusion import Member, ScheduleError, plan_group
from fadiff.costmodel.group.issue import check_issues
from fadiff.costmodel.group.legality import check_mapping
from fadiff.costmodel.group.loop_setting import LoopSetting
from fadiff.costmodel.group.pipeline import check_pipelines
from fadiff.costmodel.group.placement import pooled, stores_sums
from fadiff.costmodel.group.pooling import obstacle_in_tiles
from fadiff.costmodel.group.resident_tensors import check_resident_tensors
from fadiff.costmodel.group.scratchpad import MemberSpace, member_spaces, paper_use
from fadiff.costmodel.group.side_by_side import obstacle_to_running
from fadiff.costmodel.group.tile_buffer import plan_tile_buffer
from fadiff.costmodel.mapping.counting import Profile
from fadiff.costmodel.mapping.decision import Decision, FusionGroup
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.shape import shape_of
from fadiff.costmodel.target.target import Target


def check_schedule(schedule: Decision) -> None:
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
        check_additions(schedule, [])
        check_copies(schedule)
        return
    check_resident_tensors(graph, schedule.groups, schedule.profile)
    plans = [plan_group(graph, group) for group in schedule.groups]
    for group, plan in zip(schedule.groups, plans, strict=True):
        _check_group(schedule, group, plan)
    check_pipelines(schedule, plans)
    if schedule.counting.has_tile_buffer:
        plan_tile_buffer(graph, schedule.groups, plans, schedule.target)
    check_issues(schedule, plans)
    check_additions(schedule, plans)
    check_copies(schedule)


def _check_partition(schedule: Decision) -> None:
    position = schedule.graph.index
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
    for fill, later in schedule.graph.filled_first:
        if group_index[fill] > group_index[later]:
            raise ScheduleError(
                f"{later}: its fusion group runs before that of {fill}, which would overwrite it"
            )


def _check_group(schedule: Decision, group: FusionGroup, plan: dict[str, Member]) -> None:
    if group.side_by_side:
        reason = obstacle_to_running(schedule, group)
        if reason:
            raise ScheduleError(f"{group.layers[0]}: its group cannot run side by side: {reason}")
    for space in member_spaces(schedule, group, plan):
        layer = space.layer
        if not schedule.counting.has_tile_buffer:
            _check_final(schedule, layer, group, plan[layer.name])
        mapping = schedule.mappings[layer.name]
        check_member(schedule.graph, plan, space, mapping, schedule.target, schedule.profile)


def check_member(
    graph: Graph,
    plan: MappingABC[str, Member],
    space: MemberSpace,
    mapping: Mapping,
    target: Target,
    profile: Profile,
) -> None:
    """Check that a member of a group has room in its space, and can pool as it stores where it must.

    Raises:
        ScheduleError: the first rule that breaks, naming the layer.
    """
    _check_pool(graph, plan, space.layer, mapping, target, profile)
    if profile == "hw" and stores_sums(graph, space.layer) and not target.has_full_width_read:
        raise ScheduleError(
            f"{space.layer.name}: its sums are stored as they are, but target {target.name} has no "
            "has_full_width_read"
        )
    if space.layer.polynomial is not None and not target.has_normalizations:
        raise ScheduleError(
            f"{space.layer.name}: it is stored through I-GELU, but target {target.name} has no "
            "has_normalizations"
        )
    check_mapping(space.layer, mapping, target, profile, plan[space.layer.name].computed, space.room)


def has_room(setting: LoopSetting) -> bool:
    """Whether `check_member` accepts the mapping of a setting (profile hw)."""
    try:
        check_member(setting.graph, setting.members, setting.space, setting.mapping, setting.target, "hw")
    except ScheduleError:
        return False
    return True


def _check_pool(
    graph: Graph,
    plan: MappingABC[str, Member],
    layer: TensorCoreLayer,
    mapping: Mapping,
    target: Target,
    profile: Profile,
) -> None:
    """Max pools in the store path: where Gemmini has one, on whole windows of final values."""
    member = plan[layer.name]
    done = pooled(graph, plan, layer.name)
    if done is None:
        return
    if profile != "hw":
        raise ScheduleError(f"{member.pooled_by}: max pools join no fusion group in profile dosa")
    if not target.has_max_pool:
        raise ScheduleError(
            f"{member.pooled_by}: target {target.name} cannot pool as it stores (has_max_pool)"
        )
    reason = obstacle_in_tiles(shape_of(layer), mapping, member.computed, done, target)
    if reason:
        raise ScheduleError(f"{layer.name}: its stores cannot do {member.pooled_by}: {reason}")


def _check_final(schedule: Decision, layer: TensorCoreLayer, group: FusionGroup, member: Member) -> None:
    """An on-chip copy is final-value only: its producer must not spill partial sums."""
    resident = layer.output.tensor in group.resident_tensors
    if member.writes_inside or resident:
        nest = LoopNest(shape_of(layer), schedule.mappings[layer.name], member.computed)
        times = nest.fetch("O", 2)[0]
        if times > 1:
            raise ScheduleError(
                f"{layer.name}: its output is {'resident' if resident else 'fused'} "
                f"but leaves the accumulator unfinished ({times} visits)"
            )


def _check_paper_group(schedule: Decision, group: FusionGroup) -> None:
    """Eq. 24: the scratchpad tiles of all members together fit."""
    if group.resident_tensors:
        raise ScheduleError(
            f"tensor {min(group.resident_tensors)}: the paper's model keeps no tensor on chip across groups"
        )
    for name in group.layers:
        layer = schedule.graph.by_name[name]
        if isinstance(layer, TensorCoreLayer):
            check_mapping(layer, schedule.mappings[name], schedule.target, schedule.profile)
        elif len(group.layers) > 1 and layer.op != "add":
            raise ScheduleError(f"{name}: host operator {layer.op} cannot be a member of a fusion group")
    counting, total = schedule.counting, paper_use(schedule, group)
    size = counting.scratchpad_size(schedule.target)
    if len(group.layers) > 1 and total > size:
        raise ScheduleError(
            f"{group.layers[0]}: scratchpad tiles of its fusion group need {total} of {size} "
            f"{counting.unit} (paper's Eq. 24)"
        )
