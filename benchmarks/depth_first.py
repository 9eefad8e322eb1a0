"""Depth-first execution of a chain of layers, tile by tile, as DeFiNES models it (HPCA 2023).

A second way to run a fusion group, for comparison with that tool and for architectures whose
scratchpad takes every tensor: a tile of the last output is traced back through the chain, every
layer runs on its part, and whole tiles are copied between memories, one thing at a time.

* Overlap of neighbouring tiles: computed again (`recompute`), columns cached (`horizontal-cache`),
  or columns and rows (`full-cache`).  The same holds for the chain's input.
* A tile's input is copied into the scratchpad first if it fits there, and streamed otherwise.
* A tile's output stays in the accumulator if its sums fit (then it is copied to the scratchpad for
  the next layer), else in the scratchpad beside its input, else it goes to DRAM and comes back.
* Weights of the whole chain are resident or all are loaded again for every tile.
* Outputs reach DRAM through the scratchpad.

Counting is that of profile dosa.  Sizes are bytes, latency is a plain sum: nothing overlaps but
the loads that a layer streams with its own computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fadiff.costmodel.count.nest import LoopNest
from fadiff.costmodel.count.traffic import Placement
from fadiff.costmodel.mapping.intervals import cut, input_box
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.shape import LayerShape, Region, extents, whole
from fadiff.costmodel.mapping.tiling import Interval
from fadiff.costmodel.schedule.evaluate import layer_cost
from fadiff.costmodel.target.target import Target

Overlap = Literal["recompute", "horizontal-cache", "full-cache"]


class TensorTile(NamedTuple):
    """What one tensor of the chain has to do with a tile: rows and columns per tile, and channels."""

    rows: tuple[Interval, ...]
    columns: tuple[Interval, ...]
    fresh_rows: tuple[Interval, ...]
    """Without what a neighbouring tile left in a cache."""
    fresh_columns: tuple[Interval, ...]
    channels: int

    def largest(self, element: int) -> int:
        """Bytes of the largest tile."""
        return max(extents(self.rows)) * max(extents(self.columns)) * self.channels * element

    def moved(self, element: int) -> int:
        """Bytes of all tiles together, cached parts left out."""
        return sum(extents(self.fresh_rows)) * sum(extents(self.fresh_columns)) * self.channels * element


class Stage(NamedTuple):
    """One layer of the chain: what it computes, where its operands are, and what space is taken."""

    shape: LayerShape
    region: Region
    placement: Placement
    reserved: int
    """Scratchpad bytes that its own weight and streamed input tiles cannot have."""
    output_is_held: bool
    """The whole output tile stays on chip until it is done: it drains behind the next tile."""


@dataclass(frozen=True)
class DepthFirstPlan:
    """A chain with a place for everything; only the stages' mappings are open."""

    target: Target
    stages: tuple[Stage, ...]
    from_dram: int
    """Bytes copied from DRAM into the scratchpad before a tile starts: inputs and cached overlap."""
    to_dram: int
    """Bytes of cached overlap that had to go to DRAM."""
    from_accumulator: int
    """Bytes copied from the accumulator into the scratchpad."""
    through_scratchpad: int
    """Bytes of output written to the scratchpad and read again on their way to DRAM."""


class DepthFirstCost(NamedTuple):
    """Cost of all tiles of the chain; bytes are those read and written."""

    energy_pj: float
    latency_cycles: float
    dram_bytes: int
    scratchpad_bytes: int


def _uncovered(intervals: Sequence[Interval]) -> list[Interval]:
    """What no earlier interval covers (needs advance monotonically)."""
    fresh, done = [], intervals[0][0]
    for start, stop in intervals:
        fresh.append((min(max(start, done), stop), stop))
        done = max(done, stop)
    return fresh


def trace(shapes: Sequence[LayerShape], tile: tuple[int, int], overlap: Overlap) -> tuple[TensorTile, ...]:
    """Tiles of the chain's input, of every intermediate and of its output, first to last.

    `tile` is rows and columns of the last output.  Layers follow each other without padding.
    """
    last = shapes[-1].dims
    rows, columns = cut(tile[0], last.P), cut(tile[1], last.Q)
    tensors = []
    for at in range(len(shapes), -1, -1):
        new_rows = _uncovered(rows) if overlap == "full-cache" else rows
        new_columns = _uncovered(columns) if overlap != "recompute" else columns
        dims = shapes[max(at - 1, 0)].dims
        channels = dims.G * (dims.K if at else dims.C)
        tensors.append(TensorTile(tuple(rows), tuple(columns), _some(new_rows), _some(new_columns), channels))
        if at:
            height, width = shapes[at - 1].height, shapes[at - 1].width
            rows = [input_box(height, interval) for interval in _some(new_rows)]
            columns = [input_box(width, interval) for interval in _some(new_columns)]
    return tuple(reversed(tensors))


def _some(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    return tuple(interval for interval in intervals if interval[1] > interval[0])


def plan_depth_first(
    shapes: Sequence[LayerShape], tile: tuple[int, int], overlap: Overlap, target: Target
) -> DepthFirstPlan:
    """Where everything lives when the chain runs in tiles of (rows, columns) of its last output."""
    e, scratchpad = target.element_bytes, target.scratchpad_bytes
    tensors = trace(shapes, tile, overlap)
    size = [tensor.largest(e) for tensor in tensors]
    word = target.accumulator_bytes_per_word
    in_accumulator = [nbytes // e * word <= target.accumulator_bytes for nbytes in size]
    weights = sum(s.dims.G * s.dims.K * s.dims.C * s.dims.R * s.dims.S for s in shapes) * e
    live = max(
        (size[i] if size[i] <= scratchpad else 0) + (0 if in_accumulator[i + 1] else size[i + 1])
        for i in range(len(shapes))
    )
    resident = weights + live <= scratchpad
    held = weights if resident else 0
    from_dram = to_dram = from_accumulator = through = 0
    for cache in (_columns(tensors[:-1], e), _rows(tensors[:-1], e)):
        if held + live + cache.held <= scratchpad:
            held += cache.held
        else:
            # The chain's input is in DRAM already.
            from_dram += sum(cache.reused)
            to_dram += sum(cache.reused[1:])
    # Beside whole tiles a layer that streams its weights needs room for an array block of them; if its
    # output is not held in the accumulator, for all that add up to one block of columns.
    block = 0 if resident else target.side**2 * e
    columns = [0 if resident else target.side * s.dims.C * s.dims.R * s.dims.S * e for s in shapes]
    staged = [held + nbytes + block <= scratchpad for nbytes in size]
    stages = []
    on_chip = False
    for i, shape in enumerate(shapes):
        output, last = tensors[i + 1], i + 1 == len(shapes)
        moved = output.moved(e)
        if staged[i] and not on_chip:
            from_dram += tensors[i].moved(e)
        taken = held + (size[i] if staged[i] else 0)
        held_whole = in_accumulator[i + 1] or taken + size[i + 1] + columns[i] <= scratchpad
        on_chip = not last and staged[i + 1] and held_whole
        if not on_chip:
            through += moved
        elif in_accumulator[i + 1]:
            from_accumulator += moved
        else:
            taken += size[i + 1]
        region = whole(shape.dims)._replace(P=output.fresh_rows, Q=output.fresh_columns)
        placement = Placement(staged[i], on_chip, not on_chip, resident)
        stages.append(Stage(shape, region, placement, taken, on_chip or (last and held_whole)))
    return DepthFirstPlan(target, tuple(stages), from_dram, to_dram, from_accumulator, through)


class _Cache(NamedTuple):
    """Overlap kept between neighbouring tiles along one axis."""

    held: int
    """Bytes at any time, all tensors together."""
    reused: tuple[int, ...]
    """Bytes taken from it over the whole chain, per tensor."""


def _columns(tensors: Sequence[TensorTile], element: int) -> _Cache:
    """Columns shared with the tile to the left."""
    held, reused = 0, []
    for t in tensors:
        shared = sum(extents(t.columns)) - sum(extents(t.fresh_columns))
        held += _widest(t.columns, t.fresh_columns) * max(extents(t.rows)) * t.channels * element
        reused.append(shared * sum(extents(t.fresh_rows)) * t.channels * element)
    return _Cache(held, tuple(reused))


def _rows(tensors: Sequence[TensorTile], element: int) -> _Cache:
    """Rows shared with the tiles above, over the whole width."""
    held, reused = 0, []
    for t in tensors:
        shared = sum(extents(t.rows)) - sum(extents(t.fresh_rows))
        width = t.columns[-1][1]
        held += _widest(t.rows, t.fresh_rows) * width * t.channels * element
        reused.append(shared * sum(extents(t.fresh_columns)) * t.channels * element)
    return _Cache(held, tuple(reused))


def _widest(needed: Sequence[Interval], fresh: Sequence[Interval]) -> int:
    """Largest part of an interval that was there before (tiles that are all there count whole)."""
    stops = {stop: start for start, stop in fresh}
    return max(stops.get(stop, stop) - start for start, stop in needed)


def depth_first_cost(plan: DepthFirstPlan, mappings: Sequence[Mapping]) -> DepthFirstCost:
    """Energy and latency of the chain with one mapping per stage (bounds: its largest tile).

    Loading the array from the scratchpad is not hidden.  DRAM traffic is hidden behind the
    computation of the layer that streams it; resident weights and copies are not, and outputs held
    until their tile is done cost nothing (DeFiNES's latency without the final off-loading).
    """
    target = plan.target
    scratchpad, dram = target.scratchpad_bytes_per_cycle, target.bandwidth.dram_bytes
    price, word = target.scratchpad_byte_pj, target.accumulator_word_pj
    copied = plan.from_dram + plan.to_dram
    energy = copied * (target.energy.dram_byte + price) + plan.through_scratchpad * 2 * price
    energy += plan.from_accumulator * word / target.accumulator_bytes_per_word
    cycles = copied / dram + plan.from_accumulator / scratchpad
    in_dram, in_scratchpad = copied, copied + 2 * plan.through_scratchpad
    for stage, mapping in zip(plan.stages, mappings, strict=True):
        cost = layer_cost(
            stage.shape, mapping, target, "dosa", region=stage.region, placement=stage.placement
        )
        energy += cost.energy_pj
        in_dram += sum(move.bytes for move in cost.moves if move.memory == "dram")
        in_scratchpad += sum(move.bytes for move in cost.moves if move.memory == "scratchpad")
        nest = LoopNest(stage.shape, mapping, stage.region)
        resident = stage.placement.weights_are_resident
        q = nest.quantities(target, "dosa", resident=resident)
        busy = q.compute_cycles + q.weight_loads * target.element_bytes / scratchpad
        streamed = sum(
            move.bytes
            for move in cost.moves
            if move.memory == "dram" and not (stage.output_is_held and move.role == "O")
        )
        once = q.weight_fills * target.element_bytes / dram if resident else 0.0
        cycles += max(busy, streamed / dram - once) + once
    return DepthFirstCost(energy, cycles, in_dram, in_scratchpad)
