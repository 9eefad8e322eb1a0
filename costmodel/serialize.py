"""Schedule <-> schedule.json.

The file holds everything but the weights: a `Schedule` read from it alone can be evaluated (constants
are placeholders without memory); to emit code, read it against the `Graph` of its model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import ValidationError

from converter.dims import DIMS, Dim, Dims
from converter.graph import Graph, HostLayer, Layer, Tensor, TensorCoreLayer, View
from costmodel.evaluate import LayerCost, NetworkCost
from costmodel.mapping import Level, Mapping, MappingError, Order
from costmodel.schedule import FusionGroup, GroupTile, LatencyModel, Schedule
from costmodel.schedule_document import (
    ConversionRecord,
    CostRecord,
    EdgeRecord,
    ExecutionRecord,
    Extents,
    FusionRecord,
    GroupTileRecord,
    LayerRecord,
    MappingRecord,
    ModelRecord,
    OperandsRecord,
    ScheduleDocument,
    SearchRecord,
    SpatialRecord,
    TensorRecord,
    TotalsRecord,
    TrafficRecord,
    TransferRecord,
    ViewRecord,
)
from costmodel.target import Target

LEVELS: tuple[Level, ...] = ("L3", "L2", "L1", "L0")


@dataclass(frozen=True)
class Bound:
    """No schedule of the search space has a smaller EDP; `relaxed` bounds may be out of reach."""

    edp_uj_cycles: float
    kind: Literal["proven", "relaxed"]


class ScheduleFileError(ValueError):
    """A schedule.json that cannot be used; the message names file, field and remedy."""


def write_document(document: ScheduleDocument, path: Path) -> None:
    """Write schedule.json; equal documents give equal bytes."""
    path.write_text(json.dumps(document.model_dump(mode="json"), indent=1) + "\n", encoding="utf-8")


def read_document(path: Path) -> ScheduleDocument:
    """Read and validate schedule.json.

    Raises:
        ScheduleFileError: unreadable, not JSON, another version, or a field that does not validate.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScheduleFileError(f"{path}: cannot read the schedule: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScheduleFileError(f"{path}: not a text file") from error
    except json.JSONDecodeError as error:
        raise ScheduleFileError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    version = content.get("version") if isinstance(content, dict) else None
    if version != 1:
        raise ScheduleFileError(
            f"{path}: version is {version!r}, this fadiff reads version 1: compile the model again"
        )
    try:
        return ScheduleDocument.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise ScheduleFileError(
            f"{path}: {_location(first['loc'], content)}: {first['msg']}{more}"
        ) from error


def _location(loc: tuple[int | str, ...], content: object) -> str:
    """'layers.3.dims.K' with the layer's name, which says more than its index."""
    text = ".".join(map(str, loc))
    if len(loc) > 1 and loc[0] == "layers" and isinstance(loc[1], int) and isinstance(content, dict):
        layer = content["layers"][loc[1]]
        if isinstance(layer, dict) and "name" in layer:
            text += f" (layer {layer['name']})"
    return text


# ---------------------------------------------------------------- writing


def to_document(
    schedule: Schedule,
    cost: NetworkCost,
    *,
    generator: str,
    latency_model: LatencyModel = "roofline",
    bound: Bound | None = None,
    search: SearchRecord | None = None,
    conversion: ConversionRecord | None = None,
) -> ScheduleDocument:
    """The whole decision with its cost.

    Args:
        schedule: What was decided.
        cost: `costmodel.evaluate(schedule, latency_model)`.
        generator: Name and version of the program that wrote it.
        latency_model: The one `cost` was made with.
        bound: What is known about how good the schedule can be at best.
        search: How it was found.
        conversion: What the front end did.
    """
    graph = schedule.graph
    return ScheduleDocument(
        generator=generator,
        model=ModelRecord(name=graph.name, sha256=graph.sha256, inputs=graph.inputs, outputs=graph.outputs),
        target=schedule.target,
        profile=schedule.profile,
        fusion_model=schedule.fusion_model,
        latency_model=latency_model,
        totals=_totals(schedule, cost, bound),
        tensors=tuple(_tensor_record(tensor) for tensor in graph.tensors.values()),
        layers=tuple(_layer_record(layer, schedule, cost.by_name[layer.name]) for layer in graph.layers),
        fusion=_fusion_record(schedule),
        search=search,
        conversion=conversion or ConversionRecord(),
    )


def _totals(schedule: Schedule, cost: NetworkCost, bound: Bound | None) -> TotalsRecord:
    dram = sum(move.bytes for layer in cost.layers for _, move in layer.moves if move.memory == "dram")
    return TotalsRecord(
        energy_pj=cost.energy_pj,
        latency_cycles=cost.latency_cycles,
        edp_uj_cycles=cost.edp_uj_cycles,
        dram_bytes=dram,
        macs=sum(layer.macs for layer in schedule.graph.tensor_core_layers),
        lower_bound_edp_uj_cycles=bound.edp_uj_cycles if bound else None,
        bound_kind=bound.kind if bound else None,
        gap=cost.edp_uj_cycles / bound.edp_uj_cycles - 1 if bound else None,
    )


def _cost_record(layer: Layer, cost: LayerCost, target: Target) -> CostRecord:
    macs = layer.macs if isinstance(layer, TensorCoreLayer) else 0
    bytes_per_memory: dict[str, int] = {}
    for _, move in cost.moves:
        bytes_per_memory[move.memory] = bytes_per_memory.get(move.memory, 0) + move.bytes
    return CostRecord(
        energy_pj=cost.energy_pj,
        latency_cycles=cost.latency_cycles,
        bound=cost.bound,
        utilization=macs / (cost.latency_cycles * target.side**2) if cost.latency_cycles else 0.0,
        traffic=TrafficRecord(
            dram=_transfers(layer, cost, "dram"),
            tile_buffer=_transfers(layer, cost, "tile-buffer"),
            host_bytes=bytes_per_memory.get("host", 0),
        ),
        bytes_per_memory=bytes_per_memory,
        energy_breakdown=dict(cost.energy_breakdown),
    )


def _transfers(layer: Layer, cost: LayerCost, memory: str) -> dict[str, TransferRecord]:
    """Bytes per role; the second input of an addition is I2, also where both inputs are one tensor."""
    totals: dict[str, dict[str, int]] = {}
    seen_first = False
    for tensor, move in cost.moves:
        role: str = move.role
        if layer.op == "add" and role == "I" and move.memory in ("dram", "tile-buffer"):
            role = "I2" if seen_first or tensor != layer.inputs[0] else "I"
            seen_first |= role == "I"
        if move.memory != memory:
            continue
        total = totals.setdefault(role, {"read": 0, "write": 0})
        total[move.direction] += move.bytes
    return {role: TransferRecord(**total) for role, total in totals.items()}


def _tensor_record(tensor: Tensor) -> TensorRecord:
    return TensorRecord(
        name=tensor.name,
        shape=tensor.shape,
        dtype=tensor.dtype,
        scale=tensor.scale,
        constant=tensor.data is not None,
        onnx_name=tensor.onnx_name,
        onnx_axes=tensor.onnx_axes,
    )


def _layer_record(layer: Layer, schedule: Schedule, layer_cost: LayerCost) -> LayerRecord:
    cost = _cost_record(layer, layer_cost, schedule.target)
    if isinstance(layer, HostLayer):
        return LayerRecord(
            name=layer.name,
            op=layer.op,
            onnx_nodes=layer.onnx_nodes,
            inputs=layer.inputs,
            outputs=layer.outputs,
            attributes=dict(layer.attributes),
            cost=cost,
        )
    return LayerRecord(
        name=layer.name,
        op=layer.op,
        onnx_nodes=layer.onnx_nodes,
        dims={d: layer.dims[d] for d in ("N", "K", "C", "P", "Q", "R", "S")},
        groups=layer.dims.G,
        stride=layer.stride,
        dilation=layer.dilation,
        pads=layer.pads,
        input_size=layer.input_size,
        activation=layer.activation,
        scale=layer.scale,
        operands=OperandsRecord(
            input=_view_record(layer.input),
            weight=_view_record(layer.weight),
            output=_view_record(layer.output),
            bias=layer.bias,
        ),
        inputs=layer.inputs,
        outputs=layer.outputs,
        mapping=mapping_record(schedule.mappings[layer.name], layer.dims),
        cost=cost,
    )


def _view_record(view: View) -> ViewRecord:
    return ViewRecord(tensor=view.tensor, offset=view.offset, strides=view.strides)


def mapping_record(mapping: Mapping, bounds: Dims) -> MappingRecord:
    """The record of a mapping; its trip counts are those of full tiles of the whole layer."""
    return MappingRecord(
        temporal={level: _extents(mapping.trips(level, bounds)) for level in LEVELS},
        spatial=SpatialRecord(rows=_extents(mapping.rows), cols=_extents(mapping.cols)),
        order={level: "".join(mapping.order(level)) for level in LEVELS},
        tile={
            "L2": _extents(mapping.tile_l2),
            "L1": _extents(mapping.tile_l1),
            "L0": _extents(mapping.tile_l0),
        },
    )


def _extents(dims: Dims) -> Extents:
    return {d: dims[d] for d in DIMS if dims[d] > 1}


def _fusion_record(schedule: Schedule) -> FusionRecord:
    edges: Iterable[tuple[str, str, str]] = schedule.graph.dag.edges(data="tensor")
    return FusionRecord(
        edges=tuple(
            EdgeRecord(
                producer=producer,
                consumer=consumer,
                tensor=tensor,
                fused=schedule.is_fused(producer, consumer),
                path=_edge_path(schedule, producer, consumer),
            )
            for producer, consumer, tensor in edges
        ),
        groups=tuple(group.layers for group in schedule.groups),
        execution=tuple(
            ExecutionRecord(
                tile=None
                if group.tile is None
                else GroupTileRecord(N=group.tile.N, P=group.tile.P, Q=group.tile.Q),
                halo=group.halo,
                resident_weights=tuple(sorted(group.resident_weights)),
                in_scratchpad=tuple(sorted(group.in_scratchpad)),
                in_accumulator=tuple(sorted(group.in_accumulator)),
            )
            for group in schedule.groups
        ),
        path=schedule.target.fusion_path,
    )


def _edge_path(
    schedule: Schedule, producer: str, consumer: str
) -> Literal["dram", "tile-buffer", "spad", "acc"]:
    if not schedule.is_fused(producer, consumer):
        return "dram"
    if schedule.profile == "hw" and schedule.fusion_model == "sound":
        return schedule.group_of[producer].path(producer)
    return "spad"


# ---------------------------------------------------------------- reading


def schedule_from_document(document: ScheduleDocument, graph: Graph | None = None) -> Schedule:
    """The Schedule of a document, on `graph` or on the graph the document describes.

    Raises:
        ScheduleFileError: `graph` has other layers than the document, or a mapping is no loop nest.
        ScheduleError: the schedule breaks a constraint of its target.
    """
    graph = graph_from_document(document) if graph is None else _matching(graph, document)
    mappings = {
        record.name: _mapping(record.name, record.mapping)
        for record in document.layers
        if record.mapping is not None
    }
    groups = tuple(
        FusionGroup(
            layers=names,
            tile=None if run.tile is None else GroupTile(run.tile.N, run.tile.P, run.tile.Q),
            halo=run.halo,
            resident_weights=frozenset(run.resident_weights),
            in_scratchpad=frozenset(run.in_scratchpad),
            in_accumulator=frozenset(run.in_accumulator),
        )
        for names, run in zip(document.fusion.groups, document.fusion.execution, strict=True)
    )
    return Schedule(graph, document.target, mappings, groups, document.profile, document.fusion_model)


def _mapping(layer: str, record: MappingRecord) -> Mapping:
    try:
        tiles = {level: _dims(record.tile.get(level, {})) for level in ("L2", "L1", "L0")}
        orders = {level: _order(layer, level, record.order.get(level, "")) for level in LEVELS}
        return Mapping(
            tile_l2=tiles["L2"],
            tile_l1=tiles["L1"],
            tile_l0=tiles["L0"],
            rows=_dims(record.spatial.rows),
            cols=_dims(record.spatial.cols),
            order_l3=orders["L3"],
            order_l2=orders["L2"],
            order_l1=orders["L1"],
            order_l0=orders["L0"],
        )
    except (MappingError, ValueError) as error:
        raise ScheduleFileError(f"layer {layer}: mapping: {error}") from error


def _dims(extents: Extents) -> Dims:
    return Dims().replace(extents)


def _order(layer: str, level: str, text: str) -> Order:
    by_letter: dict[str, Dim] = {d: d for d in DIMS}
    if sorted(text) != sorted(DIMS):
        raise ScheduleFileError(
            f"layer {layer}: mapping.order.{level} is {text!r}: "
            f"name each of {''.join(DIMS)} once, outermost first"
        )
    return tuple(by_letter[letter] for letter in text)


def graph_from_document(document: ScheduleDocument) -> Graph:
    """The graph without its weights: constants are broadcast zeros that take no memory."""
    return Graph(
        name=document.model.name,
        tensors={record.name: _tensor(record) for record in document.tensors},
        layers=tuple(_layer(record) for record in document.layers),
        inputs=document.model.inputs,
        outputs=document.model.outputs,
        sha256=document.model.sha256,
    )


def _tensor(record: TensorRecord) -> Tensor:
    data = np.broadcast_to(np.zeros((), record.dtype), record.shape) if record.constant else None
    return Tensor(
        record.name, record.shape, record.dtype, record.scale, data, record.onnx_name, record.onnx_axes
    )


def _layer(record: LayerRecord) -> Layer:
    if not (record.operands and record.dims and record.input_size):
        return HostLayer(
            record.name, record.op, record.inputs, record.outputs, dict(record.attributes), record.onnx_nodes
        )
    operands = record.operands
    return TensorCoreLayer(
        name=record.name,
        op=record.op,  # type: ignore[arg-type]  # LayerRecord.op also covers host layers
        dims=Dims(G=record.groups, **record.dims),
        input=_view(operands.input),
        weight=_view(operands.weight),
        output=_view(operands.output),
        input_size=record.input_size,
        bias=operands.bias,
        stride=record.stride,
        dilation=record.dilation,
        pads=record.pads,
        activation=record.activation,
        scale=record.scale,
        onnx_nodes=record.onnx_nodes,
    )


def _view(record: ViewRecord) -> View:
    return View(record.tensor, record.offset, record.strides)


def _matching(graph: Graph, document: ScheduleDocument) -> Graph:
    """`graph` itself, once it is sure that the schedule was made for these layers."""
    planned = {record.name: _layer(record) for record in document.layers}
    for layer in graph.layers:
        other = planned.pop(layer.name, None)
        if other is None:
            raise ScheduleFileError(f"the schedule has no layer {layer.name}: it was made for another model")
        if isinstance(layer, TensorCoreLayer) and not (
            isinstance(other, TensorCoreLayer) and layer.dims == other.dims and layer.stride == other.stride
        ):
            raise ScheduleFileError(
                f"layer {layer.name} has dimensions {layer.dims} here and "
                f"{getattr(other, 'dims', 'none')} in the schedule: it was made for another model"
            )
    if planned:
        raise ScheduleFileError(
            f"the model has no layer {next(iter(planned))}: the schedule was made for another"
        )
    return graph
