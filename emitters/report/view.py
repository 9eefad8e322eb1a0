"""What the report's template shows, as plain rows: every number here comes from the files of one folder."""

from __future__ import annotations

import math
from dataclasses import dataclass

from converter.ir.graph import HostLayer
from costmodel.group.pooling import obstacle_to_pooling
from costmodel.mapping.mapping import ISSUED, Level
from costmodel.schedule.document import LayerRecord, MappingRecord, ScheduleDocument
from costmodel.schedule.measurement import Measurement
from costmodel.schedule.serialize import graph_from_document
from emitters.report.charts import bound_class
from emitters.report.text import count, edp, limit, percent, picojoules, si

ENERGY_PARTS = (
    ("mac", "mac", "products"),
    ("register", "l0", "array registers"),
    ("accumulator", "l1", "accumulator"),
    ("scratchpad", "l2", "scratchpad"),
    ("tile-buffer", "tb", "tile buffer"),
    ("dram", "l3", "DRAM"),
)
"""Energy parts in the order they are stacked, with what they are."""

PLACES: dict[Level, str] = {"L3": "DRAM", "L2": "scratchpad", "L1": "accumulator", "L0": "array, streamed"}
"""Where the loops of each level stand."""

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
class Slice:
    """One part of a stacked bar."""

    kind: str
    width: float
    label: str


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


@dataclass(frozen=True)
class LayerRow:
    """One line of the layer table."""

    index: int
    name: str
    op: str
    dims: str
    group: str
    tiles: str
    bound: str
    bound_kind: str
    utilization: str
    utilization_width: float
    cycles: str
    energy: str
    energy_width: float
    slices: tuple[Slice, ...]
    dram: str
    nest: str
    transfers: tuple[tuple[str, str, str, str], ...]


@dataclass(frozen=True)
class Totals:
    """Sums over the layer table."""

    cycles: str
    dram: str
    energy: str


def layer_rows(document: ScheduleDocument) -> list[LayerRow]:
    """The layer table, in order of execution."""
    fused = [names for names in document.fusion.groups if len(names) > 1]
    groups = {name: number for number, names in enumerate(fused, 1) for name in names}
    most = max((layer.cost.energy_pj for layer in document.layers), default=0.0) or 1.0
    return [
        _layer_row(index, layer, groups.get(layer.name), most) for index, layer in enumerate(document.layers)
    ]


def totals_row(document: ScheduleDocument) -> Totals:
    """The last line of the layer table: the sums over its columns."""
    totals = document.totals
    return Totals(si(totals.latency_cycles), si(totals.dram_bytes, "B"), picojoules(totals.energy_pj))


def _layer_row(index: int, layer: LayerRecord, group: int | None, most: float) -> LayerRow:
    cost = layer.cost
    known = {key for key, _, _ in ENERGY_PARTS}
    parts = [(kind, label, cost.energy_breakdown.get(key, 0.0)) for key, kind, label in ENERGY_PARTS]
    parts.append(("host", "other", sum(v for k, v in cost.energy_breakdown.items() if k not in known)))
    total = sum(value for _, _, value in parts) or 1.0
    transfers = [("DRAM", role, move) for role, move in cost.traffic.dram.items()]
    transfers += [("tile buffer", role, move) for role, move in cost.traffic.tile_buffer.items()]
    return LayerRow(
        index=index,
        name=layer.name,
        op=layer.op,
        dims=dims_text(layer),
        group="" if group is None else str(group),
        tiles="" if layer.mapping is None else tile_text(layer.mapping),
        bound=limit(cost.bound) if cost.latency_cycles else "",
        bound_kind=bound_class(cost.bound),
        utilization=percent(cost.utilization, 0) if layer.mapping else "",
        utilization_width=100 * cost.utilization,
        cycles=si(cost.latency_cycles) if cost.latency_cycles else "",
        energy=picojoules(cost.energy_pj) if cost.energy_pj else "",
        energy_width=100 * cost.energy_pj / most,
        slices=tuple(
            Slice(kind, 100 * value / total, f"{label}: {picojoules(value)}")
            for kind, label, value in parts
            if value
        ),
        dram=si(layer.dram_bytes, "B") if layer.cost.traffic.dram else "",
        nest="" if layer.mapping is None else loop_nest(layer, layer.mapping),
        transfers=tuple(
            (where, role, count(move.read), count(move.write)) for where, role, move in transfers
        ),
    )


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
            tile="whole" if run.tile is None else f"N{run.tile.N} P{run.tile.P} Q{run.tile.Q}",
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


def dims_text(layer: LayerRecord) -> str:
    """'K64 C64 P56 Q56 R3 S3', with stride and groups where they are not one."""
    if layer.dims is None:
        return ""
    parts = [f"G{layer.groups}"] if layer.groups > 1 else []
    parts += [f"{d}{n}" for d, n in layer.dims.items() if n > 1]
    if layer.stride != (1, 1):
        parts.append(
            f"stride {layer.stride[0]}x{layer.stride[1]}"
            if layer.stride[0] != layer.stride[1]
            else f"stride {layer.stride[0]}"
        )
    return " ".join(parts) or "1"


def tile_text(mapping: MappingRecord) -> str:
    """Scratchpad and accumulator tile in one line."""
    tiles = (mapping.tile["L2"], mapping.tile["L1"])
    return " | ".join(" ".join(f"{d}{n}" for d, n in tile.items()) or "1" for tile in tiles)


def loop_nest(layer: LayerRecord, mapping: MappingRecord) -> str:
    """The loop nest, outermost first; trip counts are those of full tiles."""
    lines: list[str] = []
    for level, place in PLACES.items():
        trips = {str(d): trip for d, trip in mapping.temporal.get(level, {}).items()}
        for d, trip in ((d, trips.get(d, 1)) for d in mapping.order[level]):
            if trip == 1:
                continue
            lines.append(f"{'  ' * len(lines)}for {d.lower()} in {trip:<5} # {place}")
    unrolled = [
        f"{d} over {n} {where}"
        for where, extents in (("columns", mapping.spatial.cols), ("rows", mapping.spatial.rows))
        for d, n in extents.items()
    ]
    what = f"{layer.op}: {', '.join(unrolled) or 'one element'}; issued as {ISSUED[mapping.issue]}"
    if mapping.by_core:
        what += f", because {mapping.by_core}"
    lines.append(f"{'  ' * len(lines)}{what}")
    return "\n".join(lines)


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
