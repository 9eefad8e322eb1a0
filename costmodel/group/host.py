"""Bytes moved by layers that have no mapping: residual adds, copies, and operators run by the core."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set

from fadiff.converter.ir.graph import Graph, HostLayer
from fadiff.converter.ir.host import Copy, Gather, Moments, StridedOperator
from fadiff.costmodel.count.traffic import Memory, Move, Number
from fadiff.costmodel.group.fusion import Member
from fadiff.costmodel.mapping.shape import extents
from fadiff.costmodel.target.target import Target


def host_moves(
    graph: Graph, layer: HostLayer, member: Member, target: Target, resident: Set[str] = frozenset()
) -> tuple[tuple[str, Move], ...]:
    """(tensor, move) of one host layer, over all group tiles when it is a member of a fusion group.

    `add` streams both operands through the accumulator (two mvins, one mvout).  Any other operator
    moves what it touches of its inputs and outputs once through the core: memory `host`; in a group what its
    tiles compute, and constants still once.  An add finds `resident` tensors in the tile buffer, as a whole.
    """
    output = layer.outputs[0]
    size = graph.tensors[output].size
    computed = math.prod([sum(extents(axis)) for axis in member.computed])
    elements = computed * size // math.prod(member.size)
    if layer.op != "add":
        touched = touched_elements(graph, layer)

        def moved(name: str) -> int:
            tensor = graph.tensors[name]
            inside = name in member.fused_inputs or (member.writes_inside and name == output)
            count = elements if inside else min(touched.get(name, tensor.size), tensor.size)
            return count * (tensor.nbytes // tensor.size)

        moves = [(name, Move("host", "I", "read", moved(name), "host")) for name in layer.inputs]
        moves += [(name, Move("host", "O", "write", moved(name), "host")) for name in layer.outputs]
        return tuple(moves)
    fused = [int(name in member.fused_inputs or name in resident) for name in layer.inputs]
    stays = output in resident
    inside, outside = int(member.writes_inside or stays), int(member.writes_outside and not stays)
    named = add_moves(elements, size, fused, inside, outside, target)
    read = [name for name in layer.inputs for _ in ("dram", "tile-buffer")]
    names = [*read, *[output] * (len(named) - len(read))]
    return tuple((name, move) for name, move in zip(names, named, strict=True) if move.bytes)


def touched_elements(graph: Graph, layer: HostLayer) -> dict[str, int]:
    """Of which tensors a layer touches a part, or elements several times: so many; all of the others."""
    match layer.operator:
        case StridedOperator(loops=loops):
            names = (*layer.inputs[: len(loops.inputs)], layer.outputs[0])
            return {
                name: math.prod(n for n, stride in zip(loops.shape, access.strides, strict=True) if stride)
                for name, access in zip(names, loops.accesses, strict=True)
            }
        case Gather(rows=rows):
            return {layer.inputs[0]: rows.outer * graph.tensors[layer.inputs[1]].size * rows.inner}
        case Moments(rows=rows, width=width, block=block, room=room):
            return {layer.outputs[0]: rows.outer * (width // block) * room}
    return {}


def copy_moves(layer: HostLayer, target: Target, resident: Set[str]) -> tuple[tuple[str, Move], ...]:
    """(tensor, move) of a copy by Gemmini: of what it copies, not of all that the tensors hold."""
    assert isinstance(layer.operator, Copy)
    nbytes = math.prod(layer.operator.loops.shape) * target.element_bytes
    read, written = layer.inputs[0], layer.outputs[0]
    places: dict[str, Memory] = {
        name: "tile-buffer" if name in resident else "dram" for name in (read, written)
    }
    return (
        (read, Move("L3", "I", "read", nbytes, places[read])),
        (written, Move("L3", "O", "write", nbytes, places[written])),
    )


def add_moves(
    computed: Number, stored: Number, fused: Sequence[Number], copied: Number, written: Number, target: Target
) -> list[Move]:
    """All accesses of an add (some may be zero): per operand from DRAM and tile buffer, then the output.

    Of `stored` elements it computes `computed` (overlapping regions several times); `fused` is the
    strength of every operand's fusion, `copied` and `written` say where the output goes.
    """
    e, word = target.element_bytes, target.accumulator_bytes_per_word
    moves = []
    for sigma in fused:
        moves.append(Move("L3", "I", "read", computed * (1 - sigma) * e, "dram"))
        moves.append(Move("L3", "I", "read", computed * sigma * e, "tile-buffer"))
    return [
        *moves,
        Move("L3", "O", "write", computed * copied * e, "tile-buffer"),
        Move("L3", "O", "write", stored * written * e, "dram"),
        Move("L1", "psum", "write", 2 * computed * word, "accumulator"),
        Move("L1", "O", "read", computed * word, "accumulator"),
    ]
