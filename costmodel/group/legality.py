"""Whether one layer can be executed with a mapping: nesting, array shape, capacities.

The rules are docs/execution-contract.md section 2 (profile hw) and Timeloop's (profile dosa); those of whole
schedules are in costmodel.schedule.legality.  They are asked of one mapping, or of columns of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.converter.ir.loops import DIMS, C, G, K, R, S
from fadiff.costmodel.count.capacity import Occupancy, occupancy
from fadiff.costmodel.count.nest import LoopNest
from fadiff.costmodel.count.row_layout import packed_inputs_fit, resident_dim, splits_block
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.mapping.columns import MappingColumns
from fadiff.costmodel.mapping.counting import COUNTING, Profile
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.numbers import Number, occurs
from fadiff.costmodel.mapping.shape import LayerShape, Region, bounds_of, shape_of, whole
from fadiff.costmodel.target.target import Target


class Room(NamedTuple):
    """What a layer shares the chip with."""

    is_resident: bool = False
    """Whether it keeps its whole weights."""
    reserved: int = 0
    """Scratchpad (rows for hw, bytes for dosa) that other members and fused tensors occupy."""
    input_on_chip: bool = False
    """Its input is among what is `reserved`, so that its own tile takes no more."""


ALL_OF_IT = Room()


class Rule(NamedTuple):
    """Whether a mapping keeps a rule, and what to say of one that does not."""

    holds: Number
    text: str
    values: tuple[object, ...] = ()
    """To put into the text."""


def check_mapping(
    layer: TensorCoreLayer,
    mapping: Mapping,
    target: Target,
    profile: Profile,
    region: Region | None = None,
    room: Room = ALL_OF_IT,
) -> None:
    """Check one layer's mapping on its own; `region` is what a fusion group makes it compute, if not all.

    Raises:
        ScheduleError: the first rule that breaks.
    """
    for rule in _rules(shape_of(layer), MappingColumns.one(mapping), target, profile, region, room):
        if not rule.holds:
            raise ScheduleError(f"{layer.name}: {rule.text.format(*rule.values)}")


def legal(shape: LayerShape, columns: MappingColumns, target: Target, profile: Profile) -> NDArray[np.bool_]:
    """Which mappings of a layer that runs alone `check_mapping` accepts, in the shape of the columns."""
    found = np.ones(columns.shape, dtype=np.bool_)
    for rule in _rules(shape, columns, target, profile):
        found &= rule.holds
    return found


def _rules(
    shape: LayerShape,
    m: MappingColumns,
    target: Target,
    profile: Profile,
    region: Region | None = None,
    room: Room = ALL_OF_IT,
) -> Iterator[Rule]:
    region = whole(shape.dims) if region is None else region
    yield from _tiles(shape, m, region)
    yield from _array(shape, m, target, profile)
    in_rows = COUNTING[profile].in_rows
    if in_rows:
        yield from _blocks(shape, m, region, is_resident=room.is_resident)
        if not target.has_full_width_read:
            visits, _ = LoopNest(shape, m, region).fetch("O", 2)
            text = "it stores partial sums, but target {} has no has_full_width_read"
            yield Rule(visits == 1, text, (target.name,))
    used = occupancy(shape, m, target, profile, region)
    if room.input_on_chip:
        used = used._replace(inputs=0)
    yield _scratchpad(used, target, profile, room)
    if in_rows and m.issue == "instructions":
        yield _packed_inputs(used, m.rows[S], target, room)
    yield Rule(
        used.outputs <= target.accumulator_rows,
        "accumulator overflows: O {} of {} {}",
        (used.outputs, target.accumulator_rows, "rows" if in_rows else "words per column"),
    )


def _scratchpad(used: Occupancy, target: Target, profile: Profile, room: Room) -> Rule:
    size, unit = COUNTING[profile].scratchpad_size(target), COUNTING[profile].unit
    weights = used.resident_weights if room.is_resident else used.weights
    total = weights + used.inputs + room.reserved
    reserved = f" + reserved {room.reserved}" if room.reserved else ""
    return Rule(
        total <= size,
        "scratchpad overflows: W {} + I {}{} = {} of {} {}",
        (weights, used.inputs, reserved, total, size, unit),
    )


def _packed_inputs(used: Occupancy, taps: Number, target: Target, room: Room) -> Rule:
    rows, twice = target.scratchpad_rows, used.inputs_twice
    weights, held = (0, used.resident_weights) if room.is_resident else (used.weights, 0)
    tile = used.inputs // (1 + twice)
    fit = packed_inputs_fit(tile, twice, weights, rows - room.reserved - held, rows, taps)
    return Rule(
        (taps == 1) | fit,
        "row-packed input tiles of {} rows{} cross the middle of the scratchpad ({} rows, W {}), "
        "where the pixel repeater stops",
        (tile, " twice" if occurs(twice) else "", rows, weights),
    )


def _tiles(shape: LayerShape, m: MappingColumns, region: Region) -> Iterator[Rule]:
    for name, tile, bound in zip(DIMS, m.l2, bounds_of(shape, region), strict=True):
        yield Rule(tile <= bound, "scratchpad tile {}={} exceeds the bound {}", (name, tile, bound))
    for d in (G, K, C, R, S):
        block, factor = m.l0[d], m.rows[d] * m.cols[d]
        text = "array block {}={} must equal its spatial factor {}: a processing element holds one weight"
        yield Rule(block == factor, text, (DIMS[d], block, factor))


def _array(shape: LayerShape, m: MappingColumns, target: Target, profile: Profile) -> Iterator[Rule]:
    for label, factors in (("rows", m.rows), ("columns", m.cols)):
        used = math.prod(factors)
        yield Rule(used <= target.side, "{} array {} of {}", (used, label, target.side))
    column = "G" if shape.is_depthwise else "K"
    for name, rows, cols in zip(DIMS, m.rows, m.cols, strict=True):
        if name != column:
            text = "{} cannot be spread over the array columns, only {}"
            yield Rule(cols == 1, text, (name, column))
        if name not in ("C", "S") or shape.is_depthwise:
            yield Rule(rows == 1, "{} cannot be spread over the array rows", (name,))
    inside, taps = m.rows[C], m.rows[S]
    text = "row packing (S={} on rows) needs all of C={} inside, not {}"
    yield Rule((taps == 1) | (inside == shape.dims.C), text, (taps, shape.dims.C, inside))
    if not COUNTING[profile].in_rows:
        return
    if not target.has_row_packing:
        yield Rule(taps == 1, "target {} has no row packing (has_row_packing)", (target.name,))
    if shape.width.dilation > 1:  # pixel_repeats puts neighbouring pixels in a row
        yield Rule(taps == 1, "row packing (S={} on rows) needs a kernel without dilation", (taps,))
    if shape.dims.G > 1 and not shape.is_depthwise:
        text = "the scratchpad holds one group at a time, tile G={} must be 1"
        yield Rule(m.l2[G] == 1, text, (m.l2[G],))


def _blocks(shape: LayerShape, m: MappingColumns, region: Region, *, is_resident: bool) -> Iterator[Rule]:
    block, bounds = m.spatial, bounds_of(shape, region)
    splits = splits_block(bounds[G], shape.dims.G, block[G])
    text = "group tiles of {} channels split an array block of {}"
    yield Rule(np.logical_not(splits), text, (bounds[G], block[G]))
    for d in (G, K, C):
        splits = splits_block(m.l1[d], m.l2[d], block[d])
        text = "accumulator tile {}={} splits an array block of {}"
        yield Rule(np.logical_not(splits), text, (DIMS[d], m.l1[d], block[d]))
    if is_resident:
        name = resident_dim(shape)
        d = DIMS.index(name)
        splits = splits_block(m.l2[d], bounds[d], block[d])
        text = "resident weights need scratchpad tiles of whole array blocks, {}={} splits a block of {}"
        yield Rule(np.logical_not(splits), text, (name, m.l2[d], block[d]))
