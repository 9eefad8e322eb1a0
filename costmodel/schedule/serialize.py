"""Schedule <-> schedule.json.

The file holds everything but the weights: a `Schedule` read from it alone can be evaluated (constants
are placeholders without memory); to emit code, read it against the `Graph` of its model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from fadiff.converter.errors import BadInput
from fadiff.converter.ir.graph import (
    Graph,
    HostLayer,
    Layer,
    Tensor,
    TensorCoreLayer,
    View,
)
from fadiff.converter.ir.loops import DIMS, Dim, Dims
from fadiff.converter.ir.recurrence import State
from fadiff.converter.ir.scale import AxisScales, Part
from fadiff.costmodel.group.issue import issued_by_core
from fadiff.costmodel.latency.clock import error_against_rtl
from fadiff.costmodel.mapping.mapping import Mapping, MappingError, Order
from fadiff.costmodel.schedule.conversion_record import ConversionRecord
from fadiff.costmodel.schedule.document import (
    Extents,
    LayerRecord,
    MappingRecord,
    ModelRecord,
    ScheduleDocument,
    SearchRecord,
    TensorRecord,
)
from fadiff.costmodel.schedule.evaluate import NetworkCost
from fadiff.costmodel.schedule.host_records import operator_of
from fadiff.costmodel.schedule.records import LEVELS, Bound, fusion_record, layer_record, totals_record
from fadiff.costmodel.schedule.schedule import FusionGroup, Schedule
from fadiff.costmodel.target.text_file import FormatError, load_json
from fadiff.costmodel.target.validation import problems

__all__ = [
    "Bound",
    "ScheduleFileError",
    "graph_from_document",
    "read_document",
    "schedule_from_document",
    "to_document",
    "write_document",
]

_GROUP = TypeAdapter(FusionGroup)


class ScheduleFileError(BadInput, ValueError):
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
        content = load_json(path)
    except OSError as error:
        hint = ": give the schedule.json in it" if path.is_dir() else ""
        raise ScheduleFileError(f"{path}: cannot read the schedule: {error.strerror}{hint}") from error
    except FormatError as error:
        raise ScheduleFileError(f"{error}: give the schedule.json of fadiff compile") from error
    version = content.get("version") if isinstance(content, dict) else None
    if version != 1:
        raise ScheduleFileError(
            f"{path}: version is {version!r}, this fadiff reads version 1: compile the model again"
        )
    _without_older_counts(path, content)
    try:
        return ScheduleDocument.model_validate(content)
    except ValidationError as error:
        place, what = next(problems(error, ScheduleDocument))
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise ScheduleFileError(f"{path}: {_location(place, content)}: {what}{more}") from error


def _without_older_counts(path: Path, content: dict[str, Any]) -> None:
    """Leave out how earlier versions counted a schedule otherwise.

    Raises:
        ScheduleFileError: its own latency is by a model that is gone.
    """
    if content.get("latency_model") == "rtl":
        raise ScheduleFileError(
            f"{path}: latency_model is 'rtl', a model that is gone: compile the model again"
        )
    content.pop("readings", None)


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
    bound: Bound | None = None,
    search: SearchRecord | None = None,
    conversion: ConversionRecord | None = None,
) -> ScheduleDocument:
    """The whole decision with its cost.

    Args:
        schedule: What was decided.
        cost: `fadiff.costmodel.schedule.evaluate(schedule)`.
        generator: Name and version of the program that wrote it.
        bound: What is known about how good the schedule can be at best.
        search: How it was found.
        conversion: What the front end did.
    """
    graph = schedule.graph
    by_core = issued_by_core(schedule) if schedule.is_executable else {}
    return ScheduleDocument(
        generator=generator,
        model=ModelRecord.model_validate(graph),
        target=schedule.target,
        profile=schedule.profile,
        fusion_model=schedule.fusion_model,
        latency_model=schedule.latency,
        latency_error=error_against_rtl(schedule.latency, schedule.target),
        totals=totals_record(schedule, cost, bound),
        tensors=tuple(map(TensorRecord.model_validate, graph.tensors.values())),
        layers=tuple(
            layer_record(layer, schedule, cost.by_name[layer.name], by_core) for layer in graph.layers
        ),
        fusion=fusion_record(schedule),
        search=search,
        conversion=conversion or ConversionRecord(),
    )


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
        _GROUP.validate_python({"layers": names, **run.model_dump()})
        for names, run in zip(document.fusion.groups, document.fusion.execution, strict=True)
    )
    issues = {
        record.name: record.issue for record in document.layers if record.issue and document.is_executable
    }
    copies = frozenset(record.name for record in document.layers if record.op == "copy")
    return Schedule(
        graph,
        document.target,
        mappings,
        groups,
        document.profile,
        document.fusion_model,
        {name: issue for name, issue in issues.items() if name not in copies},
        copies.intersection(issues),
    )


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
            issue=record.issue,
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
    """The graph without its weights: constants are broadcast zeros that take no memory.

    Raises:
        ScheduleFileError: the layers and tensors are no graph, or a layer is larger than its tensors.
    """
    try:
        graph = Graph(
            name=document.model.name,
            tensors={record.name: _tensor(record) for record in document.tensors},
            layers=tuple(_layer(record) for record in document.layers),
            inputs=document.model.inputs,
            outputs=document.model.outputs,
            sha256=document.model.sha256,
            states=tuple(State(**dict(state)) for state in document.model.states),
        )
    except ValueError as error:
        raise ScheduleFileError(f"the schedule's layers and tensors are no graph: {error}") from error
    for layer in graph.tensor_core_layers:
        _check_operands(layer, graph)
    return graph


def _check_operands(layer: TensorCoreLayer, graph: Graph) -> None:
    """Dimensions edited by hand may be anything, and counting what they move takes as long as they are."""
    d = layer.dims
    image = (d.P, d.Q) if layer.op in ("gemm", "bmm") else layer.input_size
    outputs = (d.G, d.N, d.P, d.Q, d.K)
    views = [
        ("input", layer.input, (d.G, d.N, *image, d.C)),
        ("weight", layer.weight, (d.G, d.R, d.S, d.C, d.K)),
        ("output", layer.output, outputs),
    ]
    if layer.row_scale is not None:
        views.append(("row scale", layer.row_scale, outputs))
    for role, view, extents in views:
        size = graph.tensors[view.tensor].size
        last = view.offset + sum((n - 1) * stride for n, stride in zip(extents, view.strides, strict=True))
        if not 0 <= last < size:
            raise ScheduleFileError(
                f"layer {layer.name}: with its dims its {role} ends at element {last + 1:,} of tensor "
                f"{view.tensor}, which has {size:,}: correct dims, or compile the model again"
            )


def _tensor(record: TensorRecord) -> Tensor:
    data = np.broadcast_to(np.zeros((), record.dtype), record.shape) if record.constant else None
    along = None
    if record.along is not None:
        parts = (Part(part.count, part.scale, part.offset) for part in record.along.parts)
        along = AxisScales(record.along.axis, tuple(parts))
    return Tensor(**record.model_dump(exclude={"constant", "along"}), data=data, along=along)


def _layer(record: LayerRecord) -> Layer:
    if not (record.operands and record.dims and record.input_size):
        try:
            operator = operator_of(record.op, record.attributes)
        except ValueError as error:
            raise ValueError(f"layer {record.name}: {error}") from error
        least, found = operator.least_inputs, len(record.inputs)
        if found < least:
            raise ValueError(f"layer {record.name}: {record.op} reads {least} or more tensors, not {found}")
        return HostLayer(record.name, operator, record.inputs, record.outputs, record.onnx_nodes)
    if record.polynomial is not None and record.activation != "none":
        raise ValueError(f"layer {record.name}: its polynomial is in place of activation {record.activation}")
    operands = record.operands
    return TensorCoreLayer(
        name=record.name,
        op=record.op,  # type: ignore[arg-type]  # LayerRecord.op also covers host layers
        dims=Dims(G=record.groups, **record.dims),
        input=View(**dict(operands.input)),
        weight=View(**dict(operands.weight)),
        output=View(**dict(operands.output)),
        input_size=record.input_size,
        bias=operands.bias,
        stride=record.stride,
        dilation=record.dilation,
        pads=record.pads,
        activation=record.activation,
        polynomial=record.polynomial,
        scale=record.scale,
        onnx_nodes=record.onnx_nodes,
        channel_scale=operands.channel_scale,
        channel_block=operands.channel_block,
        row_scale=None if operands.row_scale is None else View(**dict(operands.row_scale)),
    )


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
