"""Where states are kept: both ends of one in the same place wherever no value is overwritten too early."""

from __future__ import annotations

from collections.abc import Sequence

from fadiff.converter.ir.graph import Graph, HostLayer, Layer
from fadiff.converter.ir.host import Copy, Scatter, StridedOperator
from fadiff.converter.ir.loops import Access, Loops
from fadiff.converter.ir.recurrence import State
from fadiff.costmodel.group.allocation import align
from fadiff.costmodel.schedule.schedule import FusionGroup


def place_states(graph: Graph, groups: Sequence[FusionGroup]) -> tuple[dict[str, int], int]:
    """Offsets of both ends of every state, and the bytes of them all.

    An output that cannot be written where the input is has a place of its own, from which it is moved when
    the run ends.
    """
    offsets: dict[str, int] = {}
    size = 0
    for state in graph.states:
        nbytes = graph.tensors[state.input].nbytes
        offsets[state.input] = offsets[state.output] = size
        size += align(nbytes)
        if not is_updated_in_place(graph, groups, state):
            offsets[state.output] = size
            size += align(nbytes)
    return offsets, size


def is_updated_in_place(graph: Graph, groups: Sequence[FusionGroup], state: State) -> bool:
    """Whether nothing reads the input any more when the output is written over it.

    The last to read may be the first to write: element by element, at positions, or a window that slides
    towards its start.
    """
    step_of = {name: step for step, group in enumerate(groups) for name in group.layers}
    readers, writers = graph.consumers(state.input), graph.producers(state.output)
    last = max((step_of[layer.name] for layer in readers), default=-1)
    first = min(step_of[layer.name] for layer in writers)
    if last != first:
        return last < first
    return len(groups[first].layers) == 1 and _reads_ahead(graph.by_name[groups[first].layers[0]], state)


def _reads_ahead(layer: Layer, state: State) -> bool:
    """Whether a layer has read every element of the input when it writes there, or need not read it."""
    if isinstance(layer, HostLayer) and isinstance(layer.operator, Scatter):
        return layer.inputs[0] == state.input and state.input not in layer.inputs[1:]
    if not isinstance(layer, HostLayer) or not isinstance(layer.operator, StridedOperator):
        return False
    loops = layer.operator.loops
    reads = [access for access, name in zip(loops.inputs, layer.inputs, strict=False) if name == state.input]
    if state.input in layer.inputs[len(loops.inputs) :]:
        return False
    if all(access == loops.output for access in reads):
        return True
    return isinstance(layer.operator, Copy) and all(_slides(loops, access) for access in reads)


def _slides(loops: Loops, read: Access) -> bool:
    """Whether loops run upwards through memory, reading as far ahead of each write."""
    ascending = all(
        stride >= inner * count
        for stride, inner, count in zip(read.strides, read.strides[1:], loops.shape[1:], strict=False)
    )
    return ascending and read.strides == loops.output.strides and read.offset >= loops.output.offset
