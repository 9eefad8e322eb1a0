"""What the report's template shows, as plain rows: every number here comes from the files of one folder."""

from __future__ import annotations

import math
from dataclasses import dataclass

from converter.ir.graph import HostLayer
from costmodel.group.pooling import obstacle_to_pooling
from costmodel.schedule.document import GroupTileRecord, ScheduleDocument
from costmodel.schedule.measurement import Measurement
from costmodel.schedule.serialize import graph_from_document
from emitters.report.text import count, edp, picojoules, si

HOST_REASONS = {
    "add": "residual addition: two DMA streams through the accumulator, no products",
    "quantise": "integers of 32 bits become int8 once, on the core",
    "global_average_pool": "a mean has no form on the array that is exact in int8",
    "softmax": "needs exponentials over a whole row",
    "layer_norm": "needs mean and variance over a whole row",
    "to_float": "a layer in float reads it",
    "to_int8": "a layer in float wrote it",
    **dict.fromkeys(
        ("float_product", "float_binary", "float_formula", "float_max_pool", "float_scale_shift"),
        "kept in float32 (--keep-float)",
    ),
}
DEFAULT_REASON = "no N K C P Q R S form: plain C on the core"


@dataclass(frozen=True)
class GroupRow:
    """One fusion group; layers are given by their number in the layer table."""

    number: int
    layers: str
    tile: str
    halo: str
    resident: str


@dataclass(frozen=True)
class ResidentRow:
    """A tensor that stays on chip from one group to others; layers are given by their number."""

    tensor: str
    nbytes: str
    writer: str
    readers: str
    groups: str
    """How many run meanwhile, the writer's and the last reader's included."""
    passing: str
    """What these groups move to and from DRAM: a cache must hold the tensor against it."""


@dataclass(frozen=True)
class ReadingRow:
    """The schedule's cost under one set of assumptions."""

    fusion_model: str
    latency_model: str
    group_latency: str
    energy: str
    cycles: str
    edp: str
    latency_error: str


def tile_text(tile: GroupTileRecord) -> str:
    """Extents of a group tile."""
    groups = "" if tile.G is None else f"G{tile.G} "
    return f"{groups}N{tile.N} P{tile.P} Q{tile.Q}"


def group_rows(document: ScheduleDocument) -> list[GroupRow]:
    """Groups of more than one layer, numbered as in the layer table."""
    index = {layer.name: i for i, layer in enumerate(document.layers)}
    fused = [
        (names, run)
        for names, run in zip(document.fusion.groups, document.fusion.execution, strict=True)
        if len(names) > 1
    ]
    return [
        GroupRow(
            number=number,
            layers=", ".join(str(index[name]) for name in names),
            tile="whole" if run.tile is None else tile_text(run.tile) + ", in a pipeline" * run.pipelined,
            halo={"recompute": "computed again", "retain": "kept"}[run.halo],
            resident=", ".join(str(index[name]) for name in run.resident_weights) or "none",
        )
        for number, (names, run) in enumerate(fused, 1)
    ]


def resident_rows(document: ScheduleDocument) -> list[ResidentRow]:
    """Tensors that stay on chip across group boundaries, in order of execution."""
    index = {layer.name: i for i, layer in enumerate(document.layers)}
    element = document.target.element_bytes
    sizes = {tensor.name: math.prod(tensor.shape) * element for tensor in document.tensors}
    moved = {layer.name: layer.dram_bytes for layer in document.layers}
    passing: dict[str, list[int]] = {}
    for names, run in zip(document.fusion.groups, document.fusion.execution, strict=True):
        for tensor in run.resident_tensors:
            passing.setdefault(tensor, []).append(sum(moved[name] for name in names))
    rows = []
    for tensor, per_group in passing.items():
        edges = [edge for edge in document.fusion.edges if edge.tensor == tensor]
        rows.append(
            ResidentRow(
                tensor,
                count(sizes[tensor]),
                str(min(index[edge.producer] for edge in edges)),
                ", ".join(map(str, sorted({index[edge.consumer] for edge in edges}))),
                str(len(per_group)),
                si(sum(per_group), "B"),
            )
        )
    return rows


def early_weights(document: ScheduleDocument) -> list[tuple[int, int]]:
    """(layer, layer while which its first weights are loaded), by their numbers."""
    index = {layer.name: i for i, layer in enumerate(document.layers)}
    return [
        (index[names[0]], index[run.prefetch_during])
        for names, run in zip(document.fusion.groups, document.fusion.execution, strict=True)
        if run.prefetch_during is not None
    ]


def reading_rows(document: ScheduleDocument) -> list[ReadingRow]:
    """The same schedule, counted otherwise."""
    return [
        ReadingRow(
            row.fusion_model,
            row.latency_model,
            row.group_latency,
            picojoules(row.energy_pj),
            si(row.latency_cycles),
            edp(row.edp_uj_cycles),
            row.latency_error,
        )
        for row in document.readings.rows
    ]


@dataclass(frozen=True)
class MeasuredRow:
    """One layer on hardware, beside its prediction; widths in percent of the longest bar."""

    index: int
    name: str
    calls: str
    measured: str
    predicted: str
    ratio: str
    measured_width: float
    predicted_width: float


def measured_rows(measurement: Measurement) -> list[MeasuredRow]:
    """The layers that took time or should have."""
    longest = max((max(layer.measured, layer.predicted) for layer in measurement.layers), default=0) or 1
    return [
        MeasuredRow(
            index=index,
            name=layer.name,
            calls=count(layer.calls),
            measured=count(layer.measured),
            predicted=count(layer.predicted),
            ratio=f"{layer.predicted / layer.measured:.2f}" if layer.measured and layer.predicted else "",
            measured_width=100 * layer.measured / longest,
            predicted_width=100 * layer.predicted / longest,
        )
        for index, layer in enumerate(measurement.layers)
        if layer.measured or layer.predicted
    ]


def host_operators(document: ScheduleDocument) -> list[tuple[str, str, str, str]]:
    """Name, operator, bytes and reason of every layer that is not on the array."""
    pools = _pools(document)
    return [
        (
            layer.name,
            layer.op,
            si(moved, "B") if (moved := layer.dram_bytes + layer.cost.traffic.host_bytes) else "",
            pools.get(layer.name) or HOST_REASONS.get(layer.op, DEFAULT_REASON),
        )
        for layer in document.layers
        if layer.mapping is None
    ]


def _pools(document: ScheduleDocument) -> dict[str, str]:
    """Where every max pool runs, and why."""
    stored = {edge.consumer: edge.producer for edge in document.fusion.edges if edge.path == "store"}
    graph = graph_from_document(document)
    found = {}
    for layer in graph.layers:
        if not isinstance(layer, HostLayer) or layer.op != "max_pool":
            continue
        if layer.name in stored:
            found[layer.name] = f"done by the stores of {stored[layer.name]}: only pooled bytes move"
        else:
            reason = obstacle_to_pooling(graph, layer) or "no group with its convolution was better"
            found[layer.name] = f"on the core: {reason}"
    return found


def quantization_rows(document: ScheduleDocument) -> list[tuple[str, str, str, str]]:
    """Activation tensors with shape, scale and, where known, signal to noise."""
    sqnr = {row.tensor: f"{row.sqnr_db:.1f} dB" for row in document.conversion.quantization}
    return [
        (
            t.name,
            " × ".join(map(str, t.shape)),
            "" if t.scale is None else f"{t.scale:.6g}",
            sqnr.get(t.name, ""),
        )
        for t in document.tensors
        if not t.constant and t.dtype == "int8"
    ]


def array_share(document: ScheduleDocument) -> str:
    """How much of the work runs on the array, in words."""
    core = [layer for layer in document.layers if layer.mapping]
    macs = sum(layer.macs for layer in core)
    return f"{len(core)} of {len(document.layers)} layers and all {si(macs, 'MACs')} run on the array"
