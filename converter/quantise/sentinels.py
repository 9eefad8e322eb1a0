"""Numbers that only stand for "not here" are left out of ranges.

A model that takes maxima marks what must not win with -1e9, the lowest float or -infinity.  As part of a
range that number would leave no steps for the others; in int8 whatever saturates at -128 loses just as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fadiff.converter.ir.kinds import Kind, is_a
from fadiff.converter.ir.operators import extremes_taken, keeps_scale, padding
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.plan.plan import BLANK, Step

Ranges = Mapping[str, tuple[float, float]]

_BELOW = 16.0
"""So far below the smallest number a softmax has nothing: exp(-16) is 1e-7."""


def without_sentinels(
    program: Program, steps: Sequence[Step], ranges: Ranges
) -> dict[str, tuple[float, float]]:
    """`ranges` with those of values that hold such numbers replaced by what the other elements take."""
    out = dict(ranges)
    for step in steps:
        if step.output not in out or step.kind != "node":
            continue
        marked = _marked(program, step.head)
        readers = extremes_taken(program, step.output) if marked is not None else ()
        others = _range_of(program, out, marked[0]) if marked is not None else None
        if marked is None or others is None or not readers:
            continue
        lowest = marked[1] < 0
        if lowest == (is_a(readers[0], Kind.MINIMUM)):
            continue
        low, high = others
        room = _BELOW if any(is_a(reader, Kind.SOFTMAX) for reader in readers) else 0.0
        out[step.output] = (low - room, high) if lowest else (low, high)
    return out


def _marked(program: Program, node: Node) -> tuple[str, float] | None:
    """The value whose elements a Where or Pad keeps, and what it puts in the place of others."""
    if node.op == "Pad" and node.attributes.get("mode", "constant") == "constant":
        found = padding(program, node)
        return (node.inputs[0], found[2]) if found is not None and abs(found[2]) >= -BLANK else None
    if node.op != "Where":
        return None
    for kept, fill in (node.inputs[1:], node.inputs[:0:-1]):
        constant = program.constant(fill)
        if constant is not None and kept not in program.constants and constant.size:
            if np.all(constant <= BLANK):
                return kept, float(constant.max())
            if np.all(constant >= -BLANK):
                return kept, float(constant.min())
    return None


def _range_of(program: Program, ranges: Ranges, value: str) -> tuple[float, float] | None:
    """The range of a value, or of the one that it is a part or a move of."""
    while value not in ranges:
        node = program.producer.get(value)
        if node is None or not keeps_scale(node):
            return None
        value = node.inputs[0]
    return ranges[value]
