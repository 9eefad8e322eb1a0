"""The memory map of a program: where its plan keeps what, and what each of its layers may touch."""

from __future__ import annotations

from dataclasses import asdict
from itertools import product as combinations
from typing import Any, Literal

from fadiff.converter.ir.graph import Graph, HostLayer, Layer, Tensor, TensorCoreLayer
from fadiff.costmodel.group.fusion import stored_as
from fadiff.costmodel.group.host_work import host_work
from fadiff.costmodel.group.row_operators import runs_on_core, source
from fadiff.costmodel.group.tile_buffer import box_strides
from fadiff.costmodel.schedule.document import StateRecord
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.emitters.gemmini.constants import STACK_BYTES
from fadiff.emitters.gemmini.memory import Place
from fadiff.emitters.gemmini.plan import FirmwarePlan, GroupPlan
from fadiff.emitters.memory_map import (
    LayerPlace,
    MemoryMap,
    Region,
    Role,
    SymbolRecord,
    Symbols,
    TensorPlace,
    Tile,
    Work,
)


def memory_map(plan: FirmwarePlan) -> MemoryMap:
    """Where the program of a plan keeps what, and what its layers may touch."""
    graph, memory, owner = plan.schedule.graph, plan.memory, plan.owner
    activations = sorted(
        {name for name in memory.tensors if name in graph.tensors and graph.tensors[name].data is None}
        | set(memory.boxes)
    )
    symbols = {
        "arena": SymbolRecord(name=f"{owner}_arena", bytes=memory.arena.nbytes),
        "weights": SymbolRecord(name=f"{owner}_weights", bytes=memory.weights.nbytes),
        "tile_buffer": SymbolRecord(name=f"{owner}_tile_buffer", bytes=memory.tile_buffer_bytes),
    }
    kept: dict[str, Any] = {}
    if graph.states:
        symbols["state"] = SymbolRecord(name=f"{owner}_state", bytes=memory.state_bytes)
        kept["states"] = tuple(map(StateRecord.model_validate, graph.states))
    group_of = {name: i for i, group in enumerate(plan.groups) for name in group.group.layers}
    return MemoryMap(
        version=1,
        model=plan.model,
        symbols=Symbols(**symbols),
        stack_bytes=STACK_BYTES,
        live_bytes=memory.arena.lower_bound,
        inputs=tuple(graph.arguments),
        outputs=tuple(graph.results),
        **kept,
        tensors={name: _tensor(graph.tensors[name], memory.tensors.get(name)) for name in activations},
        layers=tuple(_layer(plan, layer, group_of[layer.name]) for layer in graph.layers),
    )


def _tensor(tensor: Tensor, place: Place | None) -> TensorPlace:
    where = _where(place) if place else {"symbol": None, "index": 0, "offset": 0, "bytes": tensor.nbytes}
    if tensor.zero:
        where["zero"] = tensor.zero
    return TensorPlace(shape=tuple(tensor.shape), dtype=tensor.dtype, scale=tensor.scale, **where)


def _layer(plan: FirmwarePlan, layer: Layer, index: int) -> LayerPlace:
    group = plan.groups[index]
    return LayerPlace(
        name=layer.name,
        kind=_kind(plan, layer),
        outputs=tuple(layer.outputs),
        group=index,
        regions=tuple(_regions(plan, layer, group)),
        **_work(plan.schedule, layer, group),
        **_tiles(plan, layer, group),
    )


def _work(schedule: Schedule, layer: Layer, group: GroupPlan) -> dict[str, Any]:
    """What the core does itself, over all visits; while Gemmini works also what it reads."""
    if isinstance(layer, TensorCoreLayer) or layer.op == "add" or layer.name in schedule.copies:
        return {}
    graph = schedule.graph
    computed = asdict(host_work(graph, layer, group.members[layer.name]))
    work: dict[str, Any] = {"work": Work(**computed, parts=group.parts.get(layer.name, 1))}
    if group.group.pipelined and runs_on_core(layer):
        work["reads"] = graph.index[graph.producers(layer.inputs[0])[0].name]
    if group.group.side_by_side:
        work["inputs"] = tuple(name for name in layer.inputs if graph.tensors[name].data is None)
    return work


def _tiles(plan: FirmwarePlan, layer: Layer, group: GroupPlan) -> dict[str, Any]:
    """Boxes of a fused intermediate, in the order in which the group computes them."""
    member = group.members[layer.name]
    if not member.writes_inside:
        return {}
    graph = plan.schedule.graph
    place, box = plan.memory.boxes[layer.outputs[0]], box_strides(graph, member)
    tile = group.group.tile
    assert tile is not None
    tiles: list[Tile] = []
    for visit, computed in enumerate(combinations(*member.grid)):
        first = place.offset + visit % group.places[layer.name] * (place.nbytes // group.places[layer.name])
        groups, channels, (n, n_end), (p, p_end), (q, q_end) = computed
        some: dict[str, Any] = {}
        if tile.K is not None:  # the channels of a tile as a group
            part = (groups[0] + channels[0]) // tile.K
            some = {"groups": (part, part + 1)}
        elif tile.G is not None:
            some = {"groups": groups}
        if p >= p_end or n >= n_end or q >= q_end:
            continue
        tiles.append(
            Tile(
                visit=visit,
                origin=(n, p, q),
                shape=(n_end - n, p_end - p, q_end - q, box[2]),
                symbol="tile_buffer",
                offset=first,
                strides=(*box, 1),
                **some,
            )
        )
    return {**_image(graph, layer, group), "tiles": tuple(tiles)}


def _image(graph: Graph, layer: Layer, group: GroupPlan) -> dict[str, tuple[int, ...]]:
    """Sizes N, P, Q, groups and channels of the whole output, and how it is stored."""
    *_, n, p, q = group.members[layer.name].size
    first = source(graph, layer, set(group.members))
    channels = graph.tensors[layer.outputs[0]].size // (n * p * q)
    tile = group.group.tile
    if tile is not None and tile.K is not None:
        strides = (p * q * channels, q * channels, channels, tile.K, 1)
        return {"image": (n, p, q, channels // tile.K, tile.K), "image_strides": strides}
    if first is None or first.op == "depthwise" or first.dims.G == 1:
        strides = (p * q * channels, q * channels, channels, channels, 1)
        return {"image": (n, p, q, 1, channels), "image_strides": strides}
    g, *pixel, k = first.output.strides
    return {"image": (n, p, q, first.dims.G, first.dims.K), "image_strides": (*pixel, g, k)}


def _kind(plan: FirmwarePlan, layer: Layer) -> Literal["tensor-core", "add", "copy", "host"]:
    if isinstance(layer, TensorCoreLayer):
        return "tensor-core"
    if layer.name in plan.schedule.copies:
        return "copy"
    return "add" if layer.op == "add" else "host"


def _where(place: Place) -> dict[str, Any]:
    return {"symbol": place.symbol, "index": place.index, "offset": place.offset, "bytes": place.nbytes}


def _region(tensor: str, role: Role, place: Place) -> Region:
    memory: Literal["dram", "tile-buffer"] = "tile-buffer" if place.symbol == "tile_buffer" else "dram"
    return Region(tensor=tensor, role=role, memory=memory, **_where(place))


def _regions(plan: FirmwarePlan, layer: Layer, group: GroupPlan) -> list[Region]:
    """What Gemmini may touch while the layer runs."""
    memory, member = plan.memory, group.members[layer.name]

    def source(name: str) -> Place:
        return memory.boxes[name] if name in member.fused_inputs else memory.tensors[name]

    stored = stored_as(group.members, layer.name)
    output = plan.schedule.graph.by_name[stored.name].outputs[0]
    stores = []
    if stored.writes_inside:
        stores.append(_region(output, "O", memory.boxes[output]))
    if stored.writes_outside:
        stores.append(_region(output, "O", memory.tensors[output]))
    if isinstance(layer, HostLayer):
        if layer.name in plan.schedule.copies:
            return [_region(layer.inputs[0], "I", source(layer.inputs[0])), *stores]
        if layer.op != "add":
            return []
        first, second = layer.inputs
        return [_region(first, "I", source(first)), _region(second, "I2", source(second)), *stores]
    regions = [
        _region(layer.input.tensor, "I", source(layer.input.tensor)),
        _region(layer.weight.tensor, "W", memory.weight_place(layer)),
    ]
    if layer.bias is not None:
        regions.append(_region(layer.bias, "bias", memory.tensors[layer.bias]))
    regions += stores
    if layer.name in memory.psums:
        regions.append(_region(f"{output}.psum", "psum", memory.psums[layer.name]))
    return regions
