"""Records of schedule.json made from a schedule and its cost; see costmodel/schedule/serialize.py."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass
from typing import Literal

from fadiff.converter.ir.graph import HostLayer, Layer, TensorCoreLayer
from fadiff.converter.ir.loops import DIMS, Dims
from fadiff.costmodel.latency.clock import error_against_rtl
from fadiff.costmodel.latency.roofline import bytes_per_memory
from fadiff.costmodel.mapping.mapping import AdditionIssue, Level, Mapping
from fadiff.costmodel.schedule import document, group_records
from fadiff.costmodel.schedule.evaluate import LayerCost, NetworkCost
from fadiff.costmodel.schedule.host_records import to_attributes
from fadiff.costmodel.schedule.schedule import Schedule

LEVELS: tuple[Level, ...] = ("L3", "L2", "L1", "L0")


@dataclass(frozen=True)
class Bound:
    """No schedule of the search space (`unfused`: none of it without fusion) has a smaller EDP; `relaxed`
    bounds may be out of reach."""

    edp_uj_cycles: float
    kind: Literal["proven", "unfused", "relaxed", "sequential"]


def totals_record(schedule: Schedule, cost: NetworkCost, bound: Bound | None) -> document.TotalsRecord:
    """Sums over the network."""
    executable = schedule.is_executable
    return document.TotalsRecord(
        energy_pj=cost.energy_pj,
        latency_cycles=cost.latency_cycles,
        clock_cycles=cost.latency_cycles if executable else None,
        clock_error=error_against_rtl("clock", schedule.target) if executable else "",
        edp_uj_cycles=cost.edp_uj_cycles,
        dram_bytes=cost.dram_bytes,
        macs=sum(layer.macs for layer in schedule.graph.tensor_core_layers),
        lower_bound_edp_uj_cycles=bound.edp_uj_cycles if bound else None,
        bound_kind=bound.kind if bound else None,
        gap=cost.edp_uj_cycles / bound.edp_uj_cycles - 1 if bound else None,
    )


def _cost_record(layer: Layer, cost: LayerCost, schedule: Schedule) -> document.CostRecord:
    macs = layer.macs if isinstance(layer, TensorCoreLayer) else 0
    moved = bytes_per_memory(move for _, move in cost.moves)
    return document.CostRecord(
        energy_pj=cost.energy_pj,
        latency_cycles=cost.latency_cycles,
        clock_cycles=cost.latency_cycles if schedule.is_executable else None,
        bound=cost.bound,
        utilization=macs / (cost.latency_cycles * schedule.target.side**2) if cost.latency_cycles else 0.0,
        traffic=document.TrafficRecord(
            dram=_transfers(layer, cost, "dram"),
            tile_buffer=_transfers(layer, cost, "tile-buffer"),
            host_bytes=moved.get("host", 0),
        ),
        bytes_per_memory=dict(moved),
        energy_breakdown=dict(cost.energy_breakdown),
    )


def _transfers(layer: Layer, cost: LayerCost, memory: str) -> dict[str, document.TransferRecord]:
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
    return {role: document.TransferRecord(**total) for role, total in totals.items()}


def layer_record(
    layer: Layer,
    schedule: Schedule,
    layer_cost: LayerCost,
    by_core: MappingABC[str, str],
) -> document.LayerRecord:
    """A layer with its mapping and cost; `by_core` of `issued_by_core`."""
    cost = _cost_record(layer, layer_cost, schedule)
    if isinstance(layer, HostLayer):
        return document.LayerRecord(
            name=layer.name,
            op=layer.op,
            onnx_nodes=layer.onnx_nodes,
            inputs=layer.inputs,
            outputs=layer.outputs,
            attributes=to_attributes(layer.operator),
            issue=_issue(layer, schedule),
            cost=cost,
        )
    return document.LayerRecord(
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
        polynomial=layer.polynomial,
        scale=layer.scale,
        operands=document.OperandsRecord.model_validate(layer),
        inputs=layer.inputs,
        outputs=layer.outputs,
        mapping=mapping_record(schedule.mappings[layer.name], layer.dims, by_core.get(layer.name, "")),
        cost=cost,
    )


def _issue(layer: HostLayer, schedule: Schedule) -> AdditionIssue | None:
    if layer.name in schedule.copies:
        return "instructions"
    if layer.op != "add" or not schedule.is_executable:
        return None
    return schedule.additions.get(layer.name, "instructions")


def mapping_record(mapping: Mapping, bounds: Dims, by_core: str) -> document.MappingRecord:
    """The record of a mapping; its trip counts are those of full tiles of the whole layer."""
    return document.MappingRecord(
        temporal={level: _extents(mapping.trips(level, bounds)) for level in LEVELS},
        spatial=document.SpatialRecord(rows=_extents(mapping.rows), cols=_extents(mapping.cols)),
        order={level: "".join(mapping.order(level)) for level in LEVELS},
        tile={
            "L2": _extents(mapping.tile_l2),
            "L1": _extents(mapping.tile_l1),
            "L0": _extents(mapping.tile_l0),
        },
        issue=mapping.issue,
        by_core=by_core,
    )


def _extents(dims: Dims) -> document.Extents:
    return {d: dims[d] for d in DIMS if dims[d] > 1}


def fusion_record(schedule: Schedule) -> group_records.FusionRecord:
    """Edges, groups and how they run."""
    edges: Iterable[tuple[str, str, str]] = schedule.graph.dag.edges(data="tensor")
    return group_records.FusionRecord(
        edges=tuple(
            group_records.EdgeRecord(
                producer=producer,
                consumer=consumer,
                tensor=tensor,
                fused=schedule.is_fused(producer, consumer),
                path=_edge_path(schedule, producer, consumer, tensor),
            )
            for producer, consumer, tensor in edges
        ),
        groups=tuple(group.layers for group in schedule.groups),
        execution=tuple(map(group_records.ExecutionRecord.model_validate, schedule.groups)),
    )


def _edge_path(schedule: Schedule, producer: str, consumer: str, tensor: str) -> group_records.EdgePath:
    if not schedule.is_fused(producer, consumer):
        if tensor not in schedule.group_of[producer].resident_tensors:
            return "dram"
        return "tile-buffer" if schedule.counting.has_tile_buffer else "spad"
    if schedule.is_executable and schedule.graph.by_name[consumer].op == "max_pool":
        return "store"
    return "spad" if schedule.copies_into_scratchpad else "tile-buffer"
