"""The layer table and what is below it: time, energy, bytes, tiles, loop nest and C of every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from converter.ir.dims import Dim
from costmodel.schedule.clock_parts import LayerClock
from costmodel.schedule.document import LayerRecord, ScheduleDocument
from emitters.report.charts import bound_class
from emitters.report.nest import Box, array_text, issue_text, nest_boxes
from emitters.report.text import count, limit, percent, picojoules, si
from emitters.report.timeline import KINDS

ENERGY_PARTS = (
    ("mac", "mac", "products"),
    ("register", "l0", "array registers"),
    ("accumulator", "l1", "accumulator"),
    ("scratchpad", "l2", "scratchpad"),
    ("tile-buffer", "tb", "tile buffer"),
    ("dram", "l3", "DRAM"),
)
"""Energy parts in the order they are stacked, with what they are."""


@dataclass(frozen=True)
class Slice:
    """One part of a stacked bar."""

    kind: str
    width: float
    label: str


@dataclass(frozen=True)
class LayerRow:
    """One line of the layer table."""

    index: int
    name: str
    op: str
    dims: str
    group: str
    spad_tile: str
    acc_tile: str
    bound: str
    bound_kind: str
    utilization: str
    utilization_width: float
    cycles: str
    cycles_width: float
    times: tuple[Slice, ...]
    energy: str
    energy_width: float
    slices: tuple[Slice, ...]
    dram: str
    nest: tuple[Box, ...]
    array: str
    issue: str
    code: str
    sort: tuple[float, float, float, float]
    """Cycles, DRAM bytes, energy and share of the array, as numbers."""
    transfers: str


@dataclass(frozen=True)
class Totals:
    """Sums over the layer table."""

    cycles: str
    dram: str
    energy: str


def layer_rows(
    document: ScheduleDocument, clocks: Mapping[str, LayerClock], functions: Mapping[str, str]
) -> list[LayerRow]:
    """The layer table, in order of execution; cycles are the program's, where there is one."""
    fused = [names for names in document.fusion.groups if len(names) > 1]
    groups = {name: number for number, names in enumerate(fused, 1) for name in names}
    most = max((layer.cost.energy_pj for layer in document.layers), default=0.0) or 1.0
    longest = max((_cycles(layer, clocks) for layer in document.layers), default=0.0) or 1.0
    return [
        _layer_row(
            index,
            layer,
            groups.get(layer.name),
            clocks.get(layer.name),
            functions.get(layer.name, ""),
            (longest, most),
        )
        for index, layer in enumerate(document.layers)
    ]


def totals_row(document: ScheduleDocument, clocks: Mapping[str, LayerClock]) -> Totals:
    """The last line of the layer table: the sums over its columns."""
    totals = document.totals
    cycles = sum(_cycles(layer, clocks) for layer in document.layers)
    return Totals(si(cycles), si(totals.dram_bytes, "B"), picojoules(totals.energy_pj))


def _cycles(layer: LayerRecord, clocks: Mapping[str, LayerClock]) -> float:
    return clocks[layer.name].cycles if layer.name in clocks else layer.cost.latency_cycles


def _layer_row(
    index: int,
    layer: LayerRecord,
    group: int | None,
    clock: LayerClock | None,
    code: str,
    most: tuple[float, float],
) -> LayerRow:
    cost, mapping = layer.cost, layer.mapping
    cycles = cost.latency_cycles if clock is None else clock.cycles
    return LayerRow(
        index=index,
        name=layer.name,
        op=layer.op,
        dims=dims_text(layer),
        group="" if group is None else str(group),
        spad_tile="" if mapping is None else extents_text(mapping.tile["L2"]),
        acc_tile="" if mapping is None else extents_text(mapping.tile["L1"]),
        bound=limit(cost.bound) if cost.latency_cycles else "",
        bound_kind=bound_class(cost.bound),
        utilization=percent(cost.utilization, 0) if mapping else "",
        utilization_width=100 * cost.utilization,
        cycles=si(cycles) if cycles else "",
        cycles_width=100 * cycles / most[0],
        times=() if clock is None else _times(clock),
        energy=picojoules(cost.energy_pj) if cost.energy_pj else "",
        energy_width=100 * cost.energy_pj / most[1],
        slices=_energies(layer),
        dram=si(layer.dram_bytes, "B") if cost.traffic.dram else "",
        nest=() if mapping is None else nest_boxes(mapping),
        array="" if mapping is None else array_text(layer, mapping),
        issue=issue_text(layer),
        code=code,
        sort=(round(cycles), layer.dram_bytes, round(cost.energy_pj), round(100 * cost.utilization)),
        transfers=_transfers(layer),
    )


def _transfers(layer: LayerRecord) -> str:
    """Bytes of every operand, in words."""
    traffic = layer.cost.traffic
    return "; ".join(
        f"{role} {count(nbytes)} {way} {memory}"
        for memory, moves in (("DRAM", traffic.dram), ("the tile buffer", traffic.tile_buffer))
        for role, move in moves.items()
        for nbytes, way in ((move.read, "from"), (move.write, "to"))
        if nbytes
    )


def _times(clock: LayerClock) -> tuple[Slice, ...]:
    return tuple(
        Slice(kind, 100 * cycles / clock.cycles, f"{label}: {count(cycles)}")
        for field, kind, label in KINDS
        if (cycles := getattr(clock.parts, field))
    )


def _energies(layer: LayerRecord) -> tuple[Slice, ...]:
    breakdown = layer.cost.energy_breakdown
    known = {key for key, _, _ in ENERGY_PARTS}
    parts = [(kind, label, breakdown.get(key, 0.0)) for key, kind, label in ENERGY_PARTS]
    parts.append(("host", "other", sum(v for k, v in breakdown.items() if k not in known)))
    total = sum(value for _, _, value in parts) or 1.0
    return tuple(
        Slice(kind, 100 * value / total, f"{label}: {picojoules(value)}")
        for kind, label, value in parts
        if value
    )


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


def extents_text(extents: Mapping[Dim, int]) -> str:
    """A tile: 'K64 C64 P14', dimensions of one left out."""
    return " ".join(f"{d}{n}" for d, n in extents.items() if n > 1) or "1"
