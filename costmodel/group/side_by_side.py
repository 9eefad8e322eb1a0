"""Layers side by side: while Gemmini runs one, the core computes host operators that need nothing of it.

A group of several layers without group tiles: one on a loop unit of Gemmini's, tile by tile, and operators
that run on the core.  None of them needs anything of another.  A unit has two tiles under way, and the core
gives it the next ones: so operators are cut into equal parts, and after every tile follow those that are due.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fadiff.converter.ir.graph import Graph, HostLayer, TensorCoreLayer
from fadiff.converter.ir.host import Exponentials, LayerNorm, LogSoftmax, Rows, Softmax, StridedOperator
from fadiff.costmodel.group.row_operators import runs_on_core
from fadiff.costmodel.mapping.decision import Decision, FusionGroup
from fadiff.costmodel.mapping.mapping import LOOPS

MOST_PARTS = 16
LEAST_ELEMENTS = 1024
"""Of a part of an operator that works element by element: it is begun as slowly as hundreds are computed."""
LEAST_PARTS = 4
"""Turns of a loop that is worth cutting: an inner one has shorter runs."""


@dataclass(frozen=True)
class Parts:
    """A host operator in equal parts."""

    layer: HostLayer
    """One of them: the layer on fewer elements."""
    count: int = 1
    steps: Mapping[str, int] = field(default_factory=dict)
    """Elements from a part to the next one, of every tensor that has parts."""


def parts_of(layer: HostLayer) -> Parts:
    """How a host operator is cut; one that has no parts is one."""
    match layer.operator:
        case StridedOperator(loops=loops) as operator if loops.shape:
            worth = (axis for axis, extent in enumerate(loops.shape) if extent >= LEAST_PARTS)
            axis = next(worth, loops.shape.index(max(loops.shape)))
            most = max(math.prod(loops.shape) // LEAST_ELEMENTS, 1)
            count = _parts(loops.shape[axis], min(most, MOST_PARTS))
            some = loops.shape[axis] // count
            shape = (*loops.shape[:axis], some, *loops.shape[axis + 1 :])
            names = (*layer.inputs[: len(loops.inputs)], layer.outputs[0])
            steps = {
                name: access.strides[axis] * some for name, access in zip(names, loops.accesses, strict=True)
            }
            if len(steps) == len(names):  # each tensor is at one pointer
                smaller = replace(operator, loops=replace(loops, shape=shape))
                return Parts(replace(layer, operator=smaller), count, steps)
        case Softmax(mask_rows=0 | 1) | LayerNorm() | LogSoftmax() as by_row:
            rows = by_row.rows
            count = _parts(rows.outer, MOST_PARTS)
            smaller_rows = Rows(rows.outer // count, rows.length, rows.inner)
            step = smaller_rows.outer * rows.length * rows.inner
            part = replace(layer, operator=replace(by_row, rows=smaller_rows))
            return Parts(part, count, dict.fromkeys((layer.inputs[0], layer.outputs[0]), step))
        case Exponentials(mask_rows=0 | 1) as by_row:
            rows = by_row.rows
            count = _parts(rows.outer, MOST_PARTS)
            some = rows.outer // count
            part = replace(layer, operator=replace(by_row, rows=replace(rows, outer=some)))
            of_row = dict.fromkeys((layer.inputs[0], layer.outputs[0]), some * rows.length)
            return Parts(part, count, of_row | {layer.outputs[1]: some})
    return Parts(layer)


def _parts(extent: int, most: int) -> int:
    return max(count for count in range(1, most + 1) if extent % count == 0)


def layer_on_gemmini(graph: Graph, group: FusionGroup) -> TensorCoreLayer:
    """The one of a group whose layers run side by side."""
    [layer] = [graph.by_name[name] for name in group.layers if not runs_on_core(graph.by_name[name])]
    assert isinstance(layer, TensorCoreLayer)
    return layer


def obstacle_to_side_by_side(graph: Graph, names: Sequence[str]) -> str:
    """Why layers cannot run side by side; empty if they can."""
    layers = [graph.by_name[name] for name in names]
    on_gemmini = [layer for layer in layers if not runs_on_core(layer)]
    if len(on_gemmini) != 1 or not isinstance(on_gemmini[0], TensorCoreLayer):
        return "one of them must run on the array and the others on the core"
    for layer in layers:
        for other in layers:
            if other is not layer and not set(layer.outputs).isdisjoint((*other.inputs, *other.outputs)):
                return f"{other.name} uses what {layer.name} writes"
    return ""


def obstacle_to_running(schedule: Decision, group: FusionGroup) -> str:
    """Why the layers of a group, which may run side by side, cannot do so as it says; empty if they can."""
    if not schedule.is_executable:
        return "only schedules that are executed do so"
    if group != FusionGroup(group.layers, resident_tensors=group.resident_tensors):
        return "nothing flows between them and nothing stays for them"
    name = layer_on_gemmini(schedule.graph, group).name
    if schedule.mappings[name].issue not in LOOPS:
        return f"{name} is not on a loop unit, tile by tile"
    return ""
