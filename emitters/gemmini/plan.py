"""Everything the printers need to know about a schedule, computed once: nests, places, names."""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from dataclasses import dataclass
from functools import cached_property

from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.converter.ir.loops import Dim
from fadiff.costmodel.group.copies import MovedRows, copied_rows
from fadiff.costmodel.group.fusion import Member, obstacle_to_plain_stores, plan_group
from fadiff.costmodel.group.issue import loop_settings
from fadiff.costmodel.group.loop_setting import LoopSetting
from fadiff.costmodel.group.pipeline import parts, places, rounds
from fadiff.costmodel.group.tile_buffer import plan_tile_buffer
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.shape import extents
from fadiff.costmodel.schedule.schedule import FusionGroup, Schedule
from fadiff.emitters.gemmini.errors import EmitError
from fadiff.emitters.gemmini.expression import Expr
from fadiff.emitters.gemmini.form import PIXELS, TILED, Form, form_of
from fadiff.emitters.gemmini.library_calls import has_library_call
from fadiff.emitters.gemmini.local_memory import (
    LocalMemory,
    plan_local_memory,
    weight_tile_rows,
)
from fadiff.emitters.gemmini.memory import Memory, plan_memory
from fadiff.emitters.gemmini.names import Names, model_identifier
from fadiff.emitters.gemmini.nest import Nest, nest_of
from fadiff.emitters.gemmini.outputs import psum_of


@dataclass(frozen=True)
class LayerPlan:
    """One tensor-core layer, ready to print."""

    form: Form
    nest: Nest
    local: LocalMemory
    resident: bool
    varies: MappingABC[Dim, bool]
    """Whether the extent to compute along G, K, N, P, Q differs between group tiles."""
    setting: LoopSetting


@dataclass(frozen=True)
class GroupPlan:
    """One fusion group: its members' regions, and where each fused intermediate is."""

    group: FusionGroup
    members: MappingABC[str, Member]
    places: MappingABC[str, int]
    """Of the boxes that the members write, in turn for one group tile after the other."""
    parts: MappingABC[str, int]
    """In which the core computes members between tiles of others, in a pipeline."""

    def axes(self, layer: TensorCoreLayer) -> tuple[Dim, ...]:
        """Along which the function of a member is told what to compute."""
        tile = self.group.tile
        if tile is None or not tile.is_part:
            return PIXELS
        return ("K" if tile.K is not None and layer.op != "depthwise" else "G", *PIXELS)

    @property
    def fused(self) -> bool:
        """Whether several layers run tile by tile."""
        return self.group.tile is not None


@dataclass(frozen=True)
class FirmwarePlan:
    """The firmware of one schedule before it becomes text."""

    schedule: Schedule
    model: str
    """C-safe model name, prefix of every public symbol."""
    owner: str
    """Prefix of the memory that it works in: the model's own name, or that of all entries."""
    names: MappingABC[str, str]
    """C identifier of each layer."""
    groups: tuple[GroupPlan, ...]
    layers: MappingABC[str, LayerPlan]
    memory: Memory
    library: frozenset[str]
    """Tensor-core layers that run as calls of gemmini.h's tiled functions."""
    library_adds: bool

    @cached_property
    def moved(self) -> MappingABC[str, MovedRows]:
        """The rows of every copy that Gemmini makes."""
        schedule = self.schedule
        return {name: copied_rows(schedule.graph.by_name[name], schedule.target) for name in schedule.copies}


def plan_firmware(schedule: Schedule, model_name: str, library_calls: bool = False) -> FirmwarePlan:
    """Lay out the firmware; with `library_calls` unfused layers run through gemmini.h where they can.

    Raises:
        EmitError: what this backend cannot express, naming the layer.
    """
    if schedule.profile != "hw":
        raise EmitError("only schedules of profile hw can be emitted: compile with --profile hw")
    names = Names()
    planned = [_plan_group(schedule, group) for group in schedule.groups]
    groups = tuple(plan for plan, _ in planned)
    layers = {name: layer for _, members in planned for name, layer in members.items()}
    members = [plan.members for plan in groups]
    tile_buffer = plan_tile_buffer(schedule.graph, schedule.groups, members, schedule.target)
    never_whole = {
        schedule.graph.by_name[name].outputs[0]
        for plan in groups
        for name, member in plan.members.items()
        if not member.writes_outside
    }
    library = {
        plan.group.layers[0]
        for plan in groups
        if library_calls and len(plan.group.layers) == 1 and plan.group.layers[0] in layers
        if has_library_call(form := layers[plan.group.layers[0]].form.layer)
        and not obstacle_to_plain_stores(schedule.graph, form)
    }
    psum_bytes = {}
    for name, layer in layers.items():
        if name in library:
            continue
        psum = psum_of(layer.form, layer.nest)
        if psum is not None:
            psum_bytes[name] = psum.nbytes
    return FirmwarePlan(
        schedule,
        model_identifier(model_name),
        model_identifier(model_name),
        {layer.name: names.unique(layer.name) for layer in schedule.graph.layers},
        groups,
        layers,
        plan_memory(schedule, psum_bytes, tile_buffer, never_whole, library),
        frozenset(library),
        library_calls,
    )


def _plan_group(schedule: Schedule, group: FusionGroup) -> tuple[GroupPlan, dict[str, LayerPlan]]:
    graph, target = schedule.graph, schedule.target
    members = plan_group(graph, group)
    layers = [graph.by_name[name] for name in group.layers]
    shaped = {
        layer.name: _shape(layer, schedule.mappings[layer.name], members[layer.name])
        for layer in layers
        if isinstance(layer, TensorCoreLayer)
    }
    residents = _place_residents(group, shaped, target.scratchpad_rows)
    stay = target.scratchpad_rows - min(residents.values(), default=target.scratchpad_rows)
    settings = {s.layer.name: s for s in loop_settings(schedule, group, members)}
    plans = {}
    for name, (form, nest, varies) in shaped.items():
        local = plan_local_memory(
            form,
            nest,
            target,
            scratchpad=stay,
            resident=residents.get(name),
            pools=members[name].pooled_by is not None,
        )
        plans[name] = LayerPlan(
            form,
            nest,
            local,
            name in residents,
            varies,
            settings[name],
        )
    turns = rounds(graph, group)[-1] if group.pipelined else ()
    counts = {
        name: count
        for turn in turns
        for name, count in parts(graph, members, schedule.mappings, turn).items()
    }
    return GroupPlan(group, members, places(graph, group, members), counts), plans


_Shaped = tuple[Form, Nest, dict[Dim, bool]]


def _shape(layer: TensorCoreLayer, mapping: Mapping, member: Member) -> _Shaped:
    """Form and nest of one member, and which of its extents vary between group tiles."""
    form = form_of(layer, mapping)
    computed = member.computed
    full = layer.dims.replace({d: max(extents(axis)) for d, axis in zip(TILED, computed, strict=True)})
    bounds: dict[Dim, Expr] = dict(full.as_dict())
    varies = {d: len(set(extents(axis))) > 1 for d, axis in zip(TILED, computed, strict=True)}
    bounds.update({d: f"{d.lower()}_count" for d in TILED if varies[d]})
    return form, nest_of(form.mapping, full, bounds), varies


def _place_residents(group: FusionGroup, shaped: MappingABC[str, _Shaped], top: int) -> dict[str, int]:
    """First scratchpad row of the weights that stay for the whole group, from the top down."""
    places = {}
    for name in group.layers:
        if name not in group.resident_weights:
            continue
        form, nest, _ = shaped[name]
        top -= weight_tile_rows(form, nest.full)
        places[name] = top
    return places
