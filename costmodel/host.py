"""Bytes moved by layers that have no mapping: the residual add, and operators run by the core."""

from __future__ import annotations

from converter.graph import Graph, HostLayer
from costmodel.fusion import Member
from costmodel.nest import product
from costmodel.shape import extents
from costmodel.target import Target
from costmodel.traffic import Memory, Move


def host_moves(
    graph: Graph, layer: HostLayer, member: Member, target: Target
) -> tuple[tuple[str, Move], ...]:
    """(tensor, move) of one host layer, over all group tiles when it is a member of a fusion group.

    `add` streams both operands through the accumulator (two mvins, one mvout).  Any other operator
    moves its inputs and outputs once through the core: memory `host`.
    """
    if layer.op != "add":
        moves = [
            (name, Move("host", "I", "read", graph.tensors[name].nbytes, "host")) for name in layer.inputs
        ]
        moves += [
            (name, Move("host", "O", "write", graph.tensors[name].nbytes, "host")) for name in layer.outputs
        ]
        return tuple(moves)
    output = layer.outputs[0]
    size = graph.tensors[output].size
    computed = product([sum(extents(axis)) for axis in member.computed])
    elements = computed * (size // product(member.size))
    e, word = target.element_bytes, target.accumulator_bytes_per_word
    moves = []
    for name in layer.inputs:
        source: Memory = "tile-buffer" if name in member.fused_inputs else "dram"
        moves.append((name, Move("L3", "I", "read", elements * e, source)))
    if member.writes_inside:
        moves.append((output, Move("L3", "O", "write", elements * e, "tile-buffer")))
    if member.writes_outside:
        moves.append((output, Move("L3", "O", "write", size * e, "dram")))
    moves.append((output, Move("L1", "psum", "write", 2 * elements * word, "accumulator")))
    moves.append((output, Move("L1", "O", "read", elements * word, "accumulator")))
    return tuple(moves)
