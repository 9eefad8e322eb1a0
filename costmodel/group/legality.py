"""Whether one layer can be executed with a mapping: nesting, array shape, capacities.

The rules are docs/execution-contract.md section 2 (profile hw) and Timeloop's (profile dosa); those of whole
schedules are in costmodel.schedule.legality.
"""

from __future__ import annotations

from typing import NamedTuple

from converter.ir.dims import DIMS
from converter.ir.graph import TensorCoreLayer
from costmodel.count.nest import LoopNest
from costmodel.count.row_layout import (
    input_rows,
    output_rows,
    packed_inputs_fit,
    resident_dim,
    splits_block,
    weight_rows,
)
from costmodel.group.fusion import ScheduleError
from costmodel.group.local_tensors import channels_in, channels_out
from costmodel.mapping.decision import Profile
from costmodel.mapping.mapping import Mapping
from costmodel.mapping.shape import LayerShape, Region, extents, shape_of, whole
from costmodel.mapping.tiling import spanned_rows
from costmodel.target.target import FusionPath, Target


class Occupancy(NamedTuple):
    """What one member holds on chip, in rows (profile dosa: bytes, and words of the fullest column).

    Double-buffered tiles (`inputs_twice`, `weights_twice`) count twice.  `resident_weights` is the whole
    weight tensor; it replaces `weights` when the group keeps it.
    """

    weights: int
    inputs: int
    outputs: int
    resident_weights: int
    inputs_twice: bool = False
    weights_twice: bool = False


def occupancy(
    shape: LayerShape, mapping: Mapping, target: Target, profile: Profile, region: Region | None = None
) -> Occupancy:
    """Scratchpad and accumulator space of one layer's tiles."""
    cols = tuple(mapping.cols)
    outputs = output_rows(tuple(mapping.tile_l1), cols)
    if profile == "dosa":
        l2, d, e = mapping.tile_l2, shape.dims, target.element_bytes
        box = spanned_rows(shape.height, l2.P, l2.R) * spanned_rows(shape.width, l2.Q, l2.S)
        return Occupancy(
            e * l2.G * l2.K * l2.C * l2.R * l2.S,
            e * l2.G * l2.N * l2.C * box,
            outputs,
            e * d.G * d.K * d.C * d.R * d.S,
        )
    nest = LoopNest(shape, mapping, whole(shape.dims) if region is None else region)
    weights_twice, inputs_twice = nest.fetch("W", 1)[1], nest.fetch("I", 1)[1]
    outputs_twice = nest.fetch("O", 2)[1]
    tile, rows = tuple(mapping.tile_l2), tuple(mapping.rows)
    return Occupancy(
        (1 + weights_twice) * weight_rows(shape, tile, rows, cols),
        (1 + inputs_twice) * input_rows(shape, tile, rows, cols),
        (1 + outputs_twice) * outputs,
        weight_rows(shape, tuple(shape.dims), rows, cols),
        inputs_twice,
        weights_twice,
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
        nest = LoopNest(shape, mapping, region)
        if not target.has_full_width_read and nest.fetch("O", 2)[0] > 1:
            raise ScheduleError(
                f"{layer.name}: it stores partial sums, but target {target.name} has no has_full_width_read"
            )
        if output_path != "tile-buffer":
            _check_held_output(layer, mapping, nest, target, output_path)
        if input_on_chip:
            _check_held_input(layer, mapping, target)
    used = occupancy(shape, mapping, target, profile, region)
    if input_on_chip:
        used = used._replace(inputs=0)
    _check_scratchpad(layer.name, used, target, profile, resident=resident, reserved=reserved)
    if profile == "hw" and mapping.rows.S > 1 and mapping.issue == "instructions" and not input_on_chip:
        _check_packed_inputs(layer.name, used, mapping, target, resident=resident, reserved=reserved)
    outputs = 0 if output_path == "acc" else used.outputs
    if outputs + reserved_accumulator > target.accumulator_rows:
        held = f" + reserved {reserved_accumulator}" if reserved_accumulator else ""
        unit = "rows" if profile == "hw" else "words per column"
        raise ScheduleError(
            f"{layer.name}: accumulator overflows: O {outputs}{held} of {target.accumulator_rows} {unit}"
        )


def _check_scratchpad(
    name: str, used: Occupancy, target: Target, profile: Profile, *, resident: bool, reserved: int
) -> None:
    size, unit = (target.scratchpad_rows, "rows") if profile == "hw" else (target.scratchpad_bytes, "bytes")
    weights = used.resident_weights if resident else used.weights
    total = weights + used.inputs + reserved
    if total > size:
        held = f" + reserved {reserved}" if reserved else ""
        raise ScheduleError(
            f"{name}: scratchpad overflows: W {weights} + I {used.inputs}{held} = {total} of {size} {unit}"
        )


def _check_packed_inputs(
    name: str, used: Occupancy, mapping: Mapping, target: Target, *, resident: bool, reserved: int
) -> None:
    rows, twice = target.scratchpad_rows, used.inputs_twice
    weights, held = (0, used.resident_weights) if resident else (used.weights, 0)
    tile = used.inputs // (1 + twice)
    if not packed_inputs_fit(tile, twice, weights, rows - reserved - held, rows, mapping.rows.S):
        raise ScheduleError(
            f"{name}: row-packed input tiles of {tile} rows{' twice' if twice else ''} cross the "
            f"middle of the scratchpad ({rows} rows, W {weights}), where the pixel repeater stops"
        )


def _check_held_output(
    layer: TensorCoreLayer, mapping: Mapping, nest: LoopNest, target: Target, path: FusionPath
) -> None:
    """Rows as `costmodel.group.local_tensors` lays them out, and final values only."""
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
