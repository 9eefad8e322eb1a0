"""How far int8 reaches: the largest magnitude that 127 stands for, from what calibration saw.

Larger magnitudes saturate.  A narrow range makes finer steps for all others, and which counts for more
only the network can tell: `choose.py` asks it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fadiff.converter.ir.builder import INT8_MAX
from fadiff.converter.ir.kinds import Kind, is_a
from fadiff.converter.ir.operators import extremes_taken, keeps_scale, padding
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.plan.plan import BLANK, Step
from fadiff.converter.quantise.observe import BINS, Observed

Range = tuple[float, float]
_NARROWEST = 0.05
_CANDIDATES = 96
_BELOW = 16.0
"""So far below the smallest number a softmax has nothing: exp(-16) is 1e-7."""


def min_max(observed: Observed) -> float:
    """The largest magnitude: nothing saturates."""
    return observed.largest


def least_squares(observed: Observed) -> float:
    """The bound with the least mean squared error, of steps and of saturation together."""
    centres = (np.arange(BINS) + 0.5) * (observed.top / BINS)
    used = np.flatnonzero(observed.counts)
    centres, counts = centres[used], observed.counts[used]
    bounds = observed.largest * np.linspace(1, _NARROWEST, _CANDIDATES)
    steps = (bounds / INT8_MAX)[:, None]
    errors = np.minimum(np.rint(centres / steps), INT8_MAX) * steps - centres
    return float(bounds[np.argmin((errors**2) @ counts)])


METHODS: Mapping[str, Callable[[Observed], float]] = {
    "min-max": min_max,
    "least squares": least_squares,
}
"""The ways to find a range, by the name that users read."""


def ranges(observed: Mapping[str, Observed], method: str) -> dict[str, Range]:
    """A range for every value that was observed; one with no finite magnitude keeps its bounds."""
    alike = {id(seen): seen for seen in observed.values()}
    found = {key: _range(seen, method) for key, seen in alike.items()}
    return {name: found[id(seen)] for name, seen in observed.items()}


def _range(seen: Observed, method: str) -> Range:
    bound = METHODS[method](seen) if seen.counts.any() and np.isfinite(seen.largest) else np.inf
    return max(seen.low, -bound), min(seen.high, bound)


def without_sentinels(
    program: Program, steps: Sequence[Step], ranges: Mapping[str, Range]
) -> dict[str, Range]:
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


def _range_of(program: Program, ranges: Mapping[str, Range], value: str) -> Range | None:
    """The range of a value, or of the one that it is a part or a move of."""
    while value not in ranges:
        node = program.producer.get(value)
        if node is None or not keeps_scale(node):
            return None
        value = node.inputs[0]
    return ranges[value]
