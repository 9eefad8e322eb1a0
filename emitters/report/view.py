"""What the report's template shows, as plain rows: every number here comes from the files of one folder."""

from __future__ import annotations

import math

from fadiff.converter.ir.graph import Graph, HostLayer
from fadiff.costmodel.group.pooling import obstacle_to_pooling
from fadiff.costmodel.schedule.document import ScheduleDocument
from fadiff.costmodel.schedule.group_records import ExecutionRecord, GroupTileRecord
from fadiff.costmodel.schedule.serialize import graph_from_document
from fadiff.emitters.report.text import count, si

HOST_REASONS = {
    "add": "residual addition: two DMA streams through the accumulator, no products",
    "quantise": "integers of 32 bits become int8 once, on the core",
    "global_average_pool": "a mean has no form on the array that is exact in int8",
    "softmax": "needs exponentials over a whole row",
    "layer_norm": "needs mean and variance over a whole row",
    "to_float": "a layer in float reads it",
    "to_int8": "a layer in float wrote it",
    "planes": "a product of 16-bit activations reads it (--wide)",
    "float_sums": "joins the sums of 16-bit activations (--wide)",
}
KEPT_FLOAT = "kept in float32 (--keep-float)"
DEFAULT_REASON = "no N K C P Q R S form: plain C on the core"
Cells = tuple[str, ...]
"""Of one line of a table."""


def tile_text(tile: GroupTileRecord) -> str:
    """Extents of a group tile."""
    extents = {"G": tile.G, "K": tile.K, "N": tile.N, "P": tile.P, "Q": tile.Q}
    return " ".join(f"{d}{extent}" for d, extent in extents.items() if extent is not None)


def fused_groups(document: ScheduleDocument) -> list[tuple[tuple[str, ...], ExecutionRecord]]:
    """Groups of more than one layer, tile by tile or side by side, and how they run, from number 1."""
    groups = zip(document.fusion.groups, document.fusion.execution, strict=True)
    return [(names, run) for names, run in groups if len(names) > 1]


def group_rows(document: ScheduleDocument) -> list[Cells]:
    """Number of every fused group, its layers by their number, tile and weights that stay."""
    index = {layer.name: str(i) for i, layer in enumerate(document.layers)}
    whole = "whole, side by side" if document.is_executable else "whole"
    return [
        (
            str(number),
            ", ".join(index[name] for name in names),
            whole if run.tile is None else tile_text(run.tile) + ", in a pipeline" * run.pipelined,
            ", ".join(index[name] for name in run.resident_weights) or "none",
        )
        for number, (names, run) in enumerate(fused_groups(document), 1)
    ]


def resident_rows(document: ScheduleDocument) -> list[Cells]:
    """Tensors that stay on chip across group boundaries, in order of execution.

    Bytes, the layer that writes it and those that read it by their number, how many groups run meanwhile (the
    writer's and the last reader's included), and the bytes that these move to and from DRAM: a cache must
    hold the tensor against them.
    """
    index = {layer.name: i for i, layer in enumerate(document.layers)}
    element = document.target.element_bytes
    sizes = {tensor.name: math.prod(tensor.shape) * element for tensor in document.tensors}
    moved = {layer.name: layer.dram_bytes for layer in document.layers}
    passing: dict[str, list[int]] = {}
    for names, run in zip(document.fusion.groups, document.fusion.execution, strict=True):
        for tensor in run.resident_tensors:
            passing.setdefault(tensor, []).append(sum(moved[name] for name in names))
    rows = list[Cells]()
    for tensor, per_group in passing.items():
        edges = [edge for edge in document.fusion.edges if edge.tensor == tensor]
        writer = str(min(index[edge.producer] for edge in edges))
        readers = ", ".join(map(str, sorted({index[edge.consumer] for edge in edges})))
        meanwhile = str(len(per_group)), si(sum(per_group), "B")
        rows.append((tensor, count(sizes[tensor]), writer, readers, *meanwhile))
    return rows


def host_operators(document: ScheduleDocument) -> list[Cells]:
    """Name, operator, bytes and reason of every layer that is not on the array."""
    graph = graph_from_document(document)
    floats = {layer.name: KEPT_FLOAT for layer in graph.layers if graph.is_kept_float(layer)}
    reasons = floats | _pools(document, graph)
    return [
        (
            layer.name,
            layer.op,
            si(moved, "B") if (moved := layer.dram_bytes + layer.cost.traffic.host_bytes) else "",
            HOST_REASONS.get(layer.op) or reasons.get(layer.name, DEFAULT_REASON),
        )
        for layer in document.layers
        if layer.mapping is None
    ]


def _pools(document: ScheduleDocument, graph: Graph) -> dict[str, str]:
    """Where every max pool runs, and why."""
    stored = {edge.consumer: edge.producer for edge in document.fusion.edges if edge.path == "store"}
    found = {}
    for layer in graph.layers:
        if not isinstance(layer, HostLayer) or layer.op != "max_pool" or graph.is_kept_float(layer):
            continue
        if layer.name in stored:
            found[layer.name] = f"done by the stores of {stored[layer.name]}: only pooled bytes move"
        else:
            reason = obstacle_to_pooling(graph, layer) or "no group with its convolution was better"
            found[layer.name] = f"on the core: {reason}"
    return found


def quantization_rows(document: ScheduleDocument) -> list[Cells]:
    """Activation tensors with shape, scale and, where there are any, signal to noise."""
    sqnr = {row.tensor: f"{row.sqnr_db:.1f} dB" for row in document.conversion.quantization}
    return [
        (
            t.name,
            " × ".join(map(str, t.shape)),
            "" if t.scale is None else f"{t.scale:.6g}",
            *((sqnr.get(t.name, ""),) if sqnr else ()),
        )
        for t in document.tensors
        if not t.constant and t.dtype == "int8"
    ]


def array_share(document: ScheduleDocument) -> str:
    """How much of the work runs on the array, in words."""
    core = [layer for layer in document.layers if layer.mapping]
    macs = sum(layer.macs for layer in core)
    return f"{len(core)} of {len(document.layers)} layers and all {si(macs, 'MACs')} run on the array"
