"""What Timeloop is asked to run for a schedule: one problem and mapping per layer.

A layer alone is one unit.  A member of a fusion group runs once per group tile on the region that
the tile needs, so it is one unit per distinct region size, with the number of times it runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.converter.ir.loops import DIMS, Dims
from fadiff.converter.names import free_name
from fadiff.costmodel.group.fusion import paper_plan, plan_group, stored_as
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.shape import extents
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.emitters.timeloop.nest import NoTimeloopForm, TimeloopNest, mapping_of, nest_of

FusedLevel = Literal["Scratchpad", "TileBuffer"]
"""What keeps a fused intermediate instead of DRAM."""


@dataclass(frozen=True)
class Unit:
    """One Timeloop run: a layer, or what a fused layer computes for one size of group tile.

    `layer` is the schedule's; under profile hw without strides along a kernel of one.
    `inputs_in` and `outputs_in` name the level that holds a fused or resident operand (None: DRAM).
    `mapping` is what the files say: the schedule's, but for array blocks that Timeloop needs equal.  `nest`
    is None when it has no Timeloop form; `notes` say why, and whatever else the reader of the files should
    know.
    """

    file_name: str
    layer: TensorCoreLayer
    dims: Dims
    mapping: Mapping
    runs: int
    nest: TimeloopNest | None
    inputs_in: FusedLevel | None = None
    outputs_in: FusedLevel | None = None
    outputs_also_in_dram: bool = False
    notes: tuple[str, ...] = ()

    @property
    def is_fused(self) -> bool:
        """Whether an operand stays out of DRAM."""
        return self.inputs_in is not None or self.outputs_in is not None

    @property
    def uses_tile_buffer(self) -> bool:
        """Whether the architecture needs the tile buffer as a level."""
        return "TileBuffer" in (self.inputs_in, self.outputs_in)


def units_of(schedule: Schedule) -> tuple[Unit, ...]:
    """The units of every tensor-core layer, in graph order, with unique file names."""
    names = FileNames()
    return tuple(
        unit for layer in schedule.graph.tensor_core_layers for unit in _units(schedule, layer, names)
    )


class FileNames:
    """Layer names made safe for every file system, unique also where case does not count."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def unique(self, name: str) -> str:
        """Letters, digits, `_`, `-` and inner dots of `name`, with a number when taken."""
        base = re.sub(r"[^0-9A-Za-z_.-]+", "_", name).strip("._-")[:100] or "layer"
        suffix = free_name(base.lower(), self._taken)
        self._taken.add(suffix)
        return base + suffix[len(base) :]


def _units(schedule: Schedule, layer: TensorCoreLayer, names: FileNames) -> Iterator[Unit]:
    group = schedule.group_of[layer.name]
    mapping = schedule.mappings[layer.name]
    notes = list(_profile_notes(schedule, layer, mapping))
    read_as = layer
    if schedule.profile == "hw":
        read_as = _only_pixels_read(layer)
        if read_as.stride != layer.stride:
            notes.append(
                f"stride {layer.stride} is written as {read_as.stride}: along a kernel of 1 only the pixels "
                "that it reads are moved, as in the program"
            )
    inputs_in: FusedLevel | None = None
    outputs_in: FusedLevel | None = None
    also_dram = False
    regions: Counter[Dims] = Counter({layer.dims: 1})
    written = layer.output.tensor
    if len(group.layers) > 1:
        plan = (paper_plan if schedule.fusion_model == "paper" else plan_group)(schedule.graph, group)
        member, stored = plan[layer.name], stored_as(plan, layer.name)
        sizes = product(*(extents(axis) for axis in member.computed))
        regions = Counter(
            layer.dims.replace({"G": g, "K": k, "N": n, "P": p, "Q": q}) for g, k, n, p, q in sizes
        )
        if layer.input.tensor in member.fused_inputs:
            inputs_in, why = _fused_level(schedule)
            notes.append(f"Inputs come from the fused layer before, {why}: bypassed at DRAM")
        if stored is not member:
            written = schedule.graph.by_name[stored.name].outputs[0]
            notes.append(
                f"Outputs are max-pooled as they are stored ({stored.name}); here they are counted unpooled"
            )
        if stored.writes_inside:
            outputs_in, why = _fused_level(schedule)
            also_dram = stored.writes_outside
            where = "written to DRAM as well" if also_dram else "bypassed at DRAM"
            notes.append(f"Outputs go to a fused layer, {why}: {where}")
        if layer.name in group.resident_weights:
            notes.append(
                "Weights stay in the scratchpad for all runs; Timeloop counts their fill in every run"
            )
    resident_in, where = _fused_level(schedule)
    if layer.input.tensor in group.resident_tensors:
        inputs_in = resident_in
        notes.append(f"Inputs stay on chip since an earlier layer, {where}: bypassed at DRAM")
    if written in group.resident_tensors:
        outputs_in = resident_in
        notes.append(f"Outputs stay on chip for later groups, {where}: bypassed at DRAM")
    if layer.weight.tensor in group.resident_tensors:
        notes.append(f"Weights stay on chip since an earlier layer, {where}; here they are counted at DRAM")
    for dims, runs in sorted(regions.items(), key=lambda item: (-item[0].product, tuple(item[0]))):
        written_as = clipped = _clipped(mapping, dims)
        nest: TimeloopNest | None = None
        more: list[str] = []
        try:
            nest = nest_of(clipped, dims)
            written_as = mapping_of(nest, dims)
            more += _equal_blocks(clipped, written_as)
            if not nest.is_perfect:
                more.append("ragged tiles are imperfect factors, whose counts Timeloop only estimates")
        except NoTimeloopForm as error:
            more.append(f"no Timeloop form: {error} (compile with --tiling divisor to have one)")
        yield Unit(
            names.unique(layer.name),
            read_as,
            dims,
            written_as,
            runs,
            nest,
            inputs_in,
            outputs_in,
            also_dram,
            (*notes, *more),
        )


def _clipped(mapping: Mapping, bounds: Dims) -> Mapping:
    """The mapping on a region that may be smaller than its tiles (along G, K, N, P and Q)."""

    def clip(tile: Dims) -> Dims:
        return Dims(*(min(tile[d], bounds[d]) for d in DIMS))

    l2, l1, l0 = map(clip, (mapping.tile_l2, mapping.tile_l1, mapping.tile_l0))
    return replace(mapping, tile_l2=l2, tile_l1=l1, tile_l0=l0, issue="instructions")


def _only_pixels_read(layer: TensorCoreLayer) -> TensorCoreLayer:
    """The layer on an input without the pixels that a stride skips (Timeloop would count and hold them)."""
    height, width = layer.stride
    return replace(layer, stride=(1 if layer.dims.R == 1 else height, 1 if layer.dims.S == 1 else width))


def _equal_blocks(mapping: Mapping, written_as: Mapping) -> Iterator[str]:
    """Where the files make array blocks equal that are not."""
    for d in DIMS:
        ours, theirs = mapping.tile_l0[d], written_as.tile_l0[d]
        if ours != theirs:
            yield (
                f"blocks of {ours} {d} with a smaller last one are written as equal blocks of {theirs}: "
                "as many steps and words, and Timeloop stops at a remainder that no loop outside repeats"
            )


def _fused_level(schedule: Schedule) -> tuple[FusedLevel, str]:
    """Which level fused tensors stay in, and how to say it."""
    if schedule.copies_into_scratchpad:
        return "Scratchpad", "kept in the scratchpad"
    return "TileBuffer", "kept in the tile buffer"


def _profile_notes(schedule: Schedule, layer: TensorCoreLayer, mapping: Mapping) -> Iterator[str]:
    """What the executed program does that Timeloop's model does not."""
    if any(layer.pads):
        yield f"padding {layer.pads} (top, left, bottom, right) is part of Inputs here and is counted"
    if schedule.profile == "hw":
        yield (
            "profile hw also double-buffers, clips padding, adds the bias and spills partial sums as "
            f"{schedule.target.accumulator_bytes_per_word} bytes; Timeloop has no form for these"
        )
        if mapping.rows.S > 1:
            yield f"row packing is shown as S={mapping.rows.S} unrolled on the array rows"
        if layer.op == "depthwise":
            yield "a block of channels runs as one block-diagonal array tile; its zeros are not counted here"
