"""memory_map.json: the emitted firmware's memory for the runner (docs/firmware-interface.md section 3)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import asdict
from itertools import product as combinations
from typing import Any

from converter.ir.graph import Graph, HostLayer, Layer, TensorCoreLayer
from costmodel.group.fusion import Member, stored_as
from costmodel.group.host_work import host_work
from costmodel.group.local_tensors import channels_out
from costmodel.group.row_operators import source
from emitters.gemmini.constants import STACK_BYTES
from emitters.gemmini.memory import Place
from emitters.gemmini.operands import box_of
from emitters.gemmini.plan import FirmwarePlan, GroupPlan


def memory_map(plan: FirmwarePlan) -> dict[str, Any]:
    """The document, ready for json.dump."""
    graph, memory, model = plan.schedule.graph, plan.memory, plan.model
    activations = sorted(
        {name for name in memory.tensors if name in graph.tensors and graph.tensors[name].data is None}
        | set(memory.boxes)
        | {o for group in plan.groups for name in group.held for o in graph.by_name[name].outputs}
    )
    tensors = {}
    for name in activations:
        tensor = graph.tensors[name]
        entry: dict[str, Any] = {"shape": list(tensor.shape), "dtype": tensor.dtype, "scale": tensor.scale}
        if tensor.zero:
            entry["zero"] = tensor.zero
        place = memory.tensors.get(name)
        entry.update(
            _where(place) if place else {"symbol": None, "index": 0, "offset": 0, "bytes": tensor.nbytes}
        )
        tensors[name] = entry
    group_of = {name: i for i, group in enumerate(plan.groups) for name in group.group.layers}
    return {
        "version": 1,
        "model": model,
        "symbols": {
            "arena": {"name": f"{model}_arena", "bytes": memory.arena.nbytes},
            "weights": {"name": f"{model}_weights", "bytes": memory.weights.nbytes},
            "tile_buffer": {"name": f"{model}_tile_buffer", "bytes": memory.tile_buffer_bytes},
            **({"state": {"name": f"{model}_state", "bytes": memory.state_bytes}} if graph.states else {}),
        },
        "stack_bytes": STACK_BYTES,
        "live_bytes": memory.arena.lower_bound,
        "inputs": list(graph.arguments),
        "outputs": list(graph.results),
        **({"states": [asdict(state) for state in graph.states]} if graph.states else {}),
        "tensors": tensors,
        "layers": [
            {
                "name": layer.name,
                "kind": _kind(layer),
                "outputs": list(layer.outputs),
                "group": group_of[layer.name],
                "regions": _regions(plan, layer, plan.groups[group_of[layer.name]]),
                **_work(graph, layer, plan.groups[group_of[layer.name]].members[layer.name]),
                **_tiles(plan, layer, plan.groups[group_of[layer.name]]),
            }
            for layer in graph.layers
        ],
    }


def _work(graph: Graph, layer: Layer, member: Member) -> dict[str, Any]:
    """What the core does itself, over all visits."""
    if isinstance(layer, TensorCoreLayer) or layer.op == "add":
        return {}
    return {"work": asdict(host_work(graph, layer, member))}


def _tiles(plan: FirmwarePlan, layer: Layer, group: GroupPlan) -> dict[str, Any]:
    """Boxes of a fused intermediate, in the order in which the group computes them."""
    member = group.members[layer.name]
    if not member.writes_inside:
        return {}
    if layer.name in group.held:
        return _held_tiles(plan, layer, group)
    graph = plan.schedule.graph
    place, box = plan.memory.boxes[layer.outputs[0]], box_of(graph, group, layer.name)
    channels = box.strides[2]
    e = plan.schedule.target.element_bytes
    visits = zip(combinations(*member.computed_grid), combinations(*member.needed_grid), strict=True)
    tiles: list[dict[str, Any]] = []
    for visit, (computed, needed) in enumerate(visits):
        (n, n_end), (_, p_end), (q, q_end) = computed
        p = computed[1][0]
        while p < p_end and n < n_end and q < q_end:
            row, rows = p - needed[1][0], p_end - p
            if box.ring:
                row = p % box.ring
                rows = min(rows, box.ring - row)
            at = (n - needed[0][0], row, q - needed[2][0])
            offset = sum(a * s for a, s in zip(at, box.strides, strict=True))
            tiles.append(
                {
                    "visit": visit,
                    "origin": [n, p, q],
                    "shape": [n_end - n, rows, q_end - q, channels],
                    "symbol": "tile_buffer",
                    "offset": place.offset + e * offset,
                    "strides": [*box.strides, 1],
                }
            )
            p += rows
    return {**_image(graph, layer, member, set(group.members)), "tiles": tiles}


def _held_tiles(plan: FirmwarePlan, layer: Layer, group: GroupPlan) -> dict[str, Any]:
    """Boxes of a tensor that stays in local memory: `offset` and strides are rows."""
    assert isinstance(layer, TensorCoreLayer)
    member, held = group.members[layer.name], group.held[layer.name]
    channels = channels_out(layer)
    _, h, w = held.box
    tiles: list[dict[str, Any]] = []
    grids = (member.computed_grid, member.held_grid)
    for visit, (computed, kept) in enumerate(zip(*(combinations(*g) for g in grids), strict=True)):
        (n, n_end), (p, p_end), (q, q_end) = computed
        if n >= n_end or q >= q_end:
            continue
        for y in range(p, p_end):
            line = y % h if held.ring else y - kept[1][0]
            tiles.append(
                {
                    "visit": visit,
                    "origin": [n, y, q],
                    "shape": [n_end - n, 1, q_end - q, channels],
                    "symbol": "accumulator" if held.in_accumulator else "scratchpad",
                    "offset": held.row + ((n - kept[0][0]) * h + line) * w + q - kept[2][0],
                    "strides": [h * w, w, 1, held.block_rows],
                    "scale": layer.scale,
                    "activation": layer.activation,
                }
            )
    return {**_image(plan.schedule.graph, layer, member, set(group.members)), "tiles": tiles}


def _image(graph: Graph, layer: Layer, member: Member, group: Set[str]) -> dict[str, list[int]]:
    """Sizes N, P, Q, groups and channels of the whole output, and how it is stored."""
    n, p, q = member.size
    first = source(graph, layer, group)
    channels = graph.tensors[layer.outputs[0]].size // (n * p * q)
    if first is None or first.op == "depthwise" or first.dims.G == 1:
        strides = [p * q * channels, q * channels, channels, channels, 1]
        return {"image": [n, p, q, 1, channels], "image_strides": strides}
    g, *pixel, k = first.output.strides
    return {"image": [n, p, q, first.dims.G, first.dims.K], "image_strides": [*pixel, g, k]}


def _kind(layer: Layer) -> str:
    if isinstance(layer, TensorCoreLayer):
        return "tensor-core"
    return "add" if layer.op == "add" else "host"


def _where(place: Place) -> dict[str, Any]:
    return {"symbol": place.symbol, "index": place.index, "offset": place.offset, "bytes": place.nbytes}


def _region(tensor: str, role: str, place: Place) -> dict[str, Any]:
    memory = "tile-buffer" if place.symbol == "tile_buffer" else "dram"
    return {"tensor": tensor, "role": role, "memory": memory, **_where(place)}


def _regions(plan: FirmwarePlan, layer: Layer, group: GroupPlan) -> list[dict[str, Any]]:
    """What Gemmini may touch while the layer runs."""
    memory, member = plan.memory, group.members[layer.name]

    def source(name: str) -> Place:
        return memory.boxes[name] if name in member.fused_inputs else memory.tensors[name]

    stored = stored_as(group.members, layer.name)
    output = plan.schedule.graph.by_name[stored.name].outputs[0]
    stores = []
    if group.in_tile_buffer(stored.name):
        stores.append(_region(output, "O", memory.boxes[output]))
    if stored.writes_outside:
        stores.append(_region(output, "O", memory.tensors[output]))
    if isinstance(layer, HostLayer):
        if layer.op != "add":
            return []
        roles = zip(("I", "I2"), layer.inputs, strict=True)
        return [*(_region(name, role, source(name)) for role, name in roles), *stores]
    regions = [_region(layer.weight.tensor, "W", memory.weight_place(layer))]
    if layer.name in plan.early:
        later = plan.early[layer.name].form.layer
        regions.append(_region(later.weight.tensor, "W", memory.weight_place(later)) | {"layer": later.name})
    if plan.layers[layer.name].local.held_input is None:
        regions.insert(0, _region(layer.input.tensor, "I", source(layer.input.tensor)))
    if layer.bias is not None:
        regions.append(_region(layer.bias, "bias", memory.tensors[layer.bias]))
    regions += stores
    if layer.name in memory.psums:
        regions.append(_region(f"{output}.psum", "psum", memory.psums[layer.name]))
    return regions
