"""memory_map.json: the emitted firmware's memory for the runner (docs/firmware-interface.md section 3)."""

from __future__ import annotations

from itertools import product as combinations
from typing import Any

from converter.graph import HostLayer, Layer, TensorCoreLayer
from emitters.gemmini.memory import Place
from emitters.gemmini.operands import box_of
from emitters.gemmini.plan import FirmwarePlan, GroupPlan


def memory_map(plan: FirmwarePlan) -> dict[str, Any]:
    """The document, ready for json.dump."""
    graph, memory, model = plan.schedule.graph, plan.memory, plan.model
    activations = sorted(
        {name for name in memory.tensors if name in graph.tensors and graph.tensors[name].data is None}
        | set(memory.boxes)
    )
    tensors = {}
    for name in activations:
        tensor = graph.tensors[name]
        entry: dict[str, Any] = {"shape": list(tensor.shape), "dtype": tensor.dtype, "scale": tensor.scale}
        place = memory.tensors.get(name)
        entry.update(_where(place) if place else {"symbol": None, "index": 0, "offset": 0, "bytes": tensor.nbytes})
        tensors[name] = entry
    group_of = {name: i for i, group in enumerate(plan.groups) for name in group.group.layers}
    return {
        "version": 1,
        "model": model,
        "symbols": {
            "arena": {"name": f"{model}_arena", "bytes": memory.arena.nbytes},
            "weights": {"name": f"{model}_weights", "bytes": memory.weights.nbytes},
            "tile_buffer": {"name": f"{model}_tile_buffer", "bytes": memory.tile_buffer_bytes},
        },
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "tensors": tensors,
        "layers": [
            {
                "name": layer.name,
                "kind": _kind(layer),
                "outputs": list(layer.outputs),
                "group": group_of[layer.name],
                "regions": _regions(plan, layer, plan.groups[group_of[layer.name]]),
                **_tiles(plan, layer, plan.groups[group_of[layer.name]]),
            }
            for layer in graph.layers
        ],
    }


def _tiles(plan: FirmwarePlan, layer: Layer, group: GroupPlan) -> dict[str, Any]:
    """Boxes of a fused intermediate, in the order in which the group computes them."""
    member = group.members[layer.name]
    if not member.writes_inside:
        return {}
    graph = plan.schedule.graph
    place, box = plan.memory.boxes[layer.outputs[0]], box_of(graph, group, layer.name)
    channels = box.strides[2]
    tiles = []
    computed = combinations(*member.computed_grid)
    needed = combinations(*member.needed_grid)
    for starts, origins in zip(computed, needed, strict=True):
        n, p, q = (a for a, _ in starts)
        shape = [max(0, b - a) for a, b in starts]
        row = p - origins[1][0]
        if box.ring:  # rows wrap around: what is behind the wrap is left out of the comparison
            row = p % box.ring
            shape[1] = min(shape[1], box.ring - row)
        at = ((n - origins[0][0]), row, (q - origins[2][0]))
        offset = place.offset + plan.schedule.target.element_bytes * sum(
            a * s for a, s in zip(at, box.strides, strict=True)
        )
        tiles.append(
            {
                "origin": [n, p, q],
                "shape": [*shape, channels],
                "symbol": "tile_buffer",
                "offset": offset,
                "strides": [*box.strides, 1],
            }
        )
    return {"tiles": tiles}


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

    output = layer.outputs[0]
    stores = []
    if member.writes_inside:
        stores.append(_region(output, "O", memory.boxes[output]))
    if member.writes_outside:
        stores.append(_region(output, "O", memory.tensors[output]))
    if isinstance(layer, HostLayer):
        if layer.op != "add":
            return []
        roles = zip(("I", "I2"), layer.inputs, strict=True)
        return [*(_region(name, role, source(name)) for role, name in roles), *stores]
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
