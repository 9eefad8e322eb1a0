"""Where every tensor lives: caller's buffers, arena, tile buffer or weight blob."""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.costmodel.group.allocation import Allocation, Block, allocate
from fadiff.costmodel.group.tile_buffer import Span, TileBuffer
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.emitters.gemmini.errors import EmitError
from fadiff.emitters.gemmini.states import place_states
from fadiff.emitters.gemmini.weights import WeightBlob, build_blob, weight_name

Symbol = Literal["arena", "weights", "tile_buffer", "state", "input", "output"]


@dataclass(frozen=True)
class Place:
    """A tensor's bytes: `offset` into a buffer; `index` says which input or output of the run."""

    symbol: Symbol
    index: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Memory:
    """All places.

    `tensors` holds what exists in full (depthwise weights by layer), `boxes` the
    tile-buffer box of each fused intermediate, `psums` the scratch of spilling layers by layer.
    """

    tensors: MappingABC[str, Place]
    boxes: MappingABC[str, Place]
    psums: MappingABC[str, Place]
    arena: Allocation
    weights: WeightBlob
    tile_buffer_bytes: int
    state_bytes: int

    def weight_place(self, layer: TensorCoreLayer) -> Place:
        """Of a layer's stationary operand."""
        return self.tensors[weight_name(layer)]


def plan_memory(
    schedule: Schedule,
    psum_bytes: MappingABC[str, int],
    tile_buffer: TileBuffer,
    never_whole: AbstractSet[str],
    library: AbstractSet[str],
) -> Memory:
    """Place every tensor of the schedule's graph.

    `psum_bytes` is the scratch each spilling layer needs while it runs; `never_whole` names the
    fused intermediates that exist as boxes only; `library` the layers that run as library calls.

    Raises:
        EmitError: a graph output that is also an input or a constant.
    """
    graph = schedule.graph
    blob = build_blob(graph, schedule.mappings, library)
    places: dict[str, Place] = {
        name: Place("weights", 0, offset, blob.sizes[name]) for name, offset in blob.offsets.items()
    }
    for index, name in enumerate(graph.arguments):
        places[name] = Place("input", index, 0, graph.tensors[name].nbytes)
    for index, name in enumerate(graph.results):
        if name in places:
            raise EmitError(f"tensor {name}: a graph output must be computed by a layer")
        places[name] = Place("output", index, 0, graph.tensors[name].nbytes)
    places |= _in_tile_buffer(tile_buffer.whole)
    step_of = {name: step for step, group in enumerate(schedule.groups) for name in group.layers}
    offsets, state_bytes = place_states(graph, schedule.groups)
    places |= {n: Place("state", 0, offset, graph.tensors[n].nbytes) for n, offset in offsets.items()}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for layer in graph.layers:
        step = step_of[layer.name]
        for name in layer.outputs:
            first[name] = min(step, first.get(name, step))
            last[name] = max(step, last.get(name, step))
        for name in layer.inputs:
            if name in first:
                last[name] = max(step, last[name])
    blocks = [
        Block(name, graph.tensors[name].nbytes, first[name], last[name], graph.step_roles.get(name, ""))
        for name in first
        if name not in places and name not in never_whole
    ]
    spills = {f"{name}.psum": name for name in psum_bytes}
    for key, name in spills.items():
        role = graph.step_roles.get(graph.by_name[name].outputs[0])
        step = step_of[name]
        blocks.append(Block(key, psum_bytes[name], step, step, f"{role}.psum" if role else ""))
    arena = allocate(blocks)
    psums = {}
    for block in arena.blocks:
        place = Place("arena", 0, arena.offsets[block.name], block.nbytes)
        if block.name in spills:
            psums[spills[block.name]] = place
        else:
            places[block.name] = place
    return Memory(
        places, _in_tile_buffer(tile_buffer.boxes), psums, arena, blob, tile_buffer.nbytes, state_bytes
    )


def _in_tile_buffer(spans: MappingABC[str, Span]) -> dict[str, Place]:
    return {name: Place("tile_buffer", 0, span.offset, span.nbytes) for name, span in spans.items()}
