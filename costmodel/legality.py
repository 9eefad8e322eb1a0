"""Whether a schedule can be executed: nesting, array shape, capacities, fusion groups.

The rules are docs/execution-contract.md section 2 (profile hw) and Timeloop's (profile dosa).
"""

from __future__ import annotations

from typing import NamedTuple

from converter.dims import DIMS, Dims
from converter.graph import HostLayer, TensorCoreLayer
from costmodel.fusion import Member, ScheduleError, plan_group
from costmodel.local_tensors import (
    Held,
    channels_in,
    channels_out,
    held_tensors,
    input_path,
    obstacle,
    reserved_rows,
)
from costmodel.mapping import Mapping, ceil_div
from costmodel.nest import Nest, product
from costmodel.row_layout import packed_inputs_fit, resident_dim, splits_block
from costmodel.schedule import FusionGroup, Profile, Schedule
from costmodel.shape import LayerShape, Region, extents, shape_of, whole
from costmodel.target import FusionPath, Target
from costmodel.tiling import box_rows

__all__ = ["Occupancy", "ScheduleError", "check_mapping", "check_schedule", "occupancy"]


class Occupancy(NamedTuple):
    """What one member holds on chip, in rows (profile hw) or bytes and words (profile dosa).

    Double-buffered tiles (of inputs: `inputs_twice`) count twice.  `resident_weights` is the whole
    weight tensor; it replaces `weights` when the group keeps it.
    """

    weights: int
    inputs: int
    outputs: int
    resident_weights: int
    inputs_twice: bool = False


def occupancy(
    shape: LayerShape, mapping: Mapping, target: Target, profile: Profile, region: Region | None = None
) -> Occupancy:
    """Scratchpad and accumulator space of one layer's tiles."""
    region = whole(shape.dims) if region is None else region
    l2, l1, cols, rows = mapping.tile_l2, mapping.tile_l1, mapping.cols, mapping.rows
    h = box_rows(shape.height, l2.P, l2.R)
    w = box_rows(shape.width, l2.Q, l2.S)
    d = shape.dims
    if profile == "dosa":
        h = (l2.P - 1) * shape.height.stride + (l2.R - 1) * shape.height.dilation + 1
        w = (l2.Q - 1) * shape.width.stride + (l2.S - 1) * shape.width.dilation + 1
        e = target.element_bytes
        return Occupancy(
            e * l2.G * l2.K * l2.C * l2.R * l2.S,
            e * l2.G * l2.N * l2.C * h * w,
            ceil_div(l1.G * l1.N * l1.K * l1.P * l1.Q, cols.product),
            e * d.G * d.K * d.C * d.R * d.S,
        )
    nest = Nest(shape, mapping, region)
    weights_twice = 1 + nest.fetch("W", 1)[1]
    inputs_twice = nest.fetch("I", 1)[1]
    outputs_twice = 1 + nest.fetch("O", 2)[1]
    if shape.is_depthwise:
        blocks = ceil_div(l2.G, cols.G)
        return Occupancy(
            weights_twice * l2.G * l2.R * l2.S,
            (1 + inputs_twice) * l2.N * h * w * blocks,
            outputs_twice * l1.N * l1.P * l1.Q * ceil_div(l1.G, cols.G),
            d.G * d.R * d.S,
            inputs_twice,
        )

    def weight_rows(tile: Dims) -> int:
        if shape.has_transposed_weights:
            return tile.G * tile.R * tile.S * tile.K * ceil_div(tile.C, rows.C)
        return tile.G * tile.R * tile.S * tile.C * ceil_div(tile.K, cols.K)

    return Occupancy(
        weights_twice * weight_rows(l2),
        (1 + inputs_twice) * l2.G * l2.N * h * w * ceil_div(l2.C, rows.C),
        outputs_twice * l1.G * l1.N * l1.P * l1.Q * ceil_div(l1.K, cols.K),
        weight_rows(d),
        inputs_twice,
    )


def check_mapping(
    layer: TensorCoreLayer,
    mapping: Mapping,
    target: Target,
    profile: Profile,
    region: Region | None = None,
    *,
    resident: bool = False,
    reserved: int = 0,
    input_on_chip: bool = False,
    output_path: FusionPath = "tile-buffer",
    reserved_accumulator: int = 0,
) -> None:
    """Check one layer's mapping on its own.

    `region` is what a fusion group makes the layer compute (default: the whole layer).  `resident`
    layers keep their whole weights; `reserved` is scratchpad space (rows for hw, bytes for dosa)
    that other members and fused tensors occupy, `reserved_accumulator` likewise; an `input_on_chip` is
    among them, so that its own tile takes no more, and so is an output whose path is `acc`.

    Raises:
        ScheduleError: the first rule that breaks.
    """
    shape = shape_of(layer)
    region = whole(shape.dims) if region is None else region
    _check_tiles(layer.name, shape, mapping, region)
    _check_array(layer.name, shape, mapping, target, profile)
    if profile == "hw":
        _check_blocks(layer.name, shape, mapping, resident=resident)
        nest = Nest(shape, mapping, region)
        if output_path != "tile-buffer":
            _check_held_output(layer, mapping, nest, target, output_path)
        if input_on_chip:
            _check_held_input(layer, mapping, target)
    used = occupancy(shape, mapping, target, profile, region)
    weights = used.resident_weights if resident else used.weights
    inputs = 0 if input_on_chip else used.inputs
    spad = weights + inputs + reserved
    if profile == "hw":
        spad_size, acc_size, units = target.scratchpad_rows, target.accumulator_rows, ("rows", "rows")
    else:
        spad_size = target.scratchpad_bytes
        acc_size = target.accumulator_bytes // target.accumulator_bytes_per_word // target.side
        units = ("bytes", "words per column")
    if spad > spad_size:
        raise ScheduleError(
            f"{layer.name}: scratchpad overflows: W {weights} + I {inputs}"
            + (f" + reserved {reserved}" if reserved else "")
            + f" = {spad} of {spad_size} {units[0]}"
        )
    if profile == "hw" and mapping.rows.S > 1 and not input_on_chip:
        streamed, twice = 0 if resident else used.weights, used.inputs_twice
        tile, room = used.inputs // (1 + twice), spad_size - reserved - (weights if resident else 0)
        if not packed_inputs_fit(tile, twice, streamed, room, spad_size, mapping.rows.S):
            raise ScheduleError(
                f"{layer.name}: row-packed input tiles of {tile} rows{' twice' if twice else ''} cross the "
                f"middle of the scratchpad ({spad_size} rows, W {streamed}), where the pixel repeater stops"
            )
    outputs = 0 if output_path == "acc" else used.outputs
    if outputs + reserved_accumulator > acc_size:
        held = f" + reserved {reserved_accumulator}" if reserved_accumulator else ""
        raise ScheduleError(
            f"{layer.name}: accumulator overflows: O {outputs}{held} of {acc_size} {units[1]}"
        )


def _check_held_output(
    layer: TensorCoreLayer, mapping: Mapping, nest: Nest, target: Target, path: FusionPath
) -> None:
    """Rows as `costmodel.local_tensors` lays them out, and final values only."""
    columns, wanted = mapping.cols.product, min(channels_out(layer), target.side)
    if columns != wanted:
        raise ScheduleError(
            f"{layer.name}: its output stays in local memory in rows of {wanted} channels, not {columns}"
        )
    times, again = nest.fetch("O", 2)
    if path == "acc" and again:
        raise ScheduleError(f"{layer.name}: its output stays in the accumulator, which needs a single tile")
    if times > 1:
        raise ScheduleError(
            f"{layer.name}: its output is fused but leaves the accumulator unfinished ({times} visits)"
        )


def _check_held_input(layer: TensorCoreLayer, mapping: Mapping, target: Target) -> None:
    rows = mapping.cols.G if layer.op == "depthwise" else mapping.rows.C
    wanted = min(channels_in(layer), target.side)
    if rows != wanted or mapping.rows.S > 1:
        raise ScheduleError(
            f"{layer.name}: its input stays in local memory in rows of {wanted} channels of one pixel, "
            f"not {rows} of {mapping.rows.S}"
        )


def _check_tiles(name: str, shape: LayerShape, mapping: Mapping, region: Region) -> None:
    bounds = {d: shape.dims[d] for d in DIMS}
    bounds["N"], bounds["P"], bounds["Q"] = (max(extents(axis)) for axis in region)
    for d in DIMS:
        if mapping.tile_l2[d] > bounds[d]:
            raise ScheduleError(
                f"{name}: scratchpad tile {d}={mapping.tile_l2[d]} exceeds the bound {bounds[d]}"
            )
    block, rows, cols = mapping.tile_l0, mapping.rows, mapping.cols
    for d in ("G", "K", "C", "R", "S"):
        if block[d] != rows[d] * cols[d]:
            raise ScheduleError(
                f"{name}: array block {d}={block[d]} must equal its spatial factor {rows[d] * cols[d]}: "
                "a processing element holds one weight"
            )


def _check_array(name: str, shape: LayerShape, mapping: Mapping, target: Target, profile: Profile) -> None:
    rows, cols, dims = mapping.rows, mapping.cols, shape.dims
    for label, factor in (("rows", rows), ("columns", cols)):
        if factor.product > target.side:
            raise ScheduleError(f"{name}: {factor.product} array {label} of {target.side}")
    column_dim = "G" if shape.is_depthwise else "K"
    for d in DIMS:
        if cols[d] > 1 and d != column_dim:
            raise ScheduleError(f"{name}: {d} cannot be spread over the array columns, only {column_dim}")
        if rows[d] > 1 and (d not in ("C", "S") or shape.is_depthwise):
            raise ScheduleError(f"{name}: {d} cannot be spread over the array rows")
    if rows.S > 1:
        if rows.C != dims.C:
            raise ScheduleError(
                f"{name}: row packing (S={rows.S} on rows) needs all of C={dims.C} inside, not {rows.C}"
            )
        if profile == "hw" and not target.has_row_packing:
            raise ScheduleError(f"{name}: target {target.name} has no row packing (has_row_packing)")
        if profile == "hw" and shape.width.dilation > 1:  # pixel_repeats puts neighbouring pixels in a row
            raise ScheduleError(f"{name}: row packing (S={rows.S} on rows) needs a kernel without dilation")
    if profile == "hw" and not shape.is_depthwise and dims.G > 1 and mapping.tile_l2.G != 1:
        raise ScheduleError(
            f"{name}: the scratchpad holds one group at a time, tile G={mapping.tile_l2.G} must be 1"
        )


def _check_blocks(name: str, shape: LayerShape, mapping: Mapping, *, resident: bool) -> None:
    for d in ("G", "K", "C"):
        block, l1, l2 = mapping.rows[d] * mapping.cols[d], mapping.tile_l1[d], mapping.tile_l2[d]
        if splits_block(l1, l2, block):
            raise ScheduleError(f"{name}: accumulator tile {d}={l1} splits an array block of {block}")
    d = resident_dim(shape)
    block, l2 = mapping.rows[d] * mapping.cols[d], mapping.tile_l2[d]
    if resident and splits_block(l2, shape.dims[d], block):
        raise ScheduleError(
            f"{name}: resident weights need scratchpad tiles of whole array blocks, "
            f"{d}={l2} splits a block of {block}"
        )


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
    for group in schedule.groups:
        if schedule.fusion_model == "paper":
            _check_paper_group(schedule, group)
        else:
            _check_group(schedule, group)


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


def _check_group(schedule: Schedule, group: FusionGroup) -> None:
    target, profile = schedule.target, schedule.profile
    plan = plan_group(schedule.graph, group)
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
    for at, name in enumerate(group.layers):
        layer = _tensor_core(schedule, name)
        if layer is None:
            continue
        if live:
            _check_final(schedule, layer, plan[name])
        fused_input = layer.input.tensor in plan[name].fused_inputs
        own = residents.get(name, 0)
        check_mapping(
            layer,
            schedule.mappings[name],
            target,
            profile,
            plan[name].computed,
            resident=name in residents,
            reserved=max(reserved_rows(held, at, "spad"), stay) - own + live.get(name, 0),
            input_on_chip=fused_input
            and (bool(live) or input_path(schedule.graph, group, layer) != "tile-buffer"),
            output_path=group.path(name) if name in held else "tile-buffer",
            reserved_accumulator=reserved_rows(held, at, "acc"),
        )
    if profile == "hw":
        total = sum(
            intermediate_bytes(schedule, member)
            for member in plan.values()
            if member.writes_inside and member.name not in held and not member.in_place
        )
        if total > target.tile_buffer_bytes:
            raise ScheduleError(
                f"{group.layers[0]}: intermediates of its fusion group need {total} of "
                f"{target.tile_buffer_bytes} tile-buffer bytes"
            )


def intermediate_bytes(schedule: Schedule, member: Member) -> int:
    """Space for the largest region of a fused tensor that one group tile needs."""
    box = product([max(extents(axis)) for axis in member.needed])
    tensor = schedule.graph.tensors[schedule.graph.by_name[member.name].outputs[0]]
    return box * (tensor.size // product(member.size)) * schedule.target.element_bytes


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
            alive.append((index, last, intermediate_bytes(schedule, member)))
    return {
        name: sum(space for first, last, space in alive if first <= at <= last)
        for at, name in enumerate(names)
    }


def _check_final(schedule: Schedule, layer: TensorCoreLayer, member: Member) -> None:
    """An on-chip copy is final-value only: a fused producer must not spill partial sums."""
    if member.writes_inside:
        nest = Nest(shape_of(layer), schedule.mappings[layer.name], member.computed)
        times = nest.fetch("O", 2)[0]
        if times > 1:
            raise ScheduleError(
                f"{layer.name}: its output is fused but leaves the accumulator unfinished ({times} visits)"
            )


def _check_paper_group(schedule: Schedule, group: FusionGroup) -> None:
    """Eq. 24: the scratchpad tiles of all members together fit."""
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
