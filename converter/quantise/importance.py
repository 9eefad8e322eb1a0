"""How much an error of an element counts: by what reads the value.

A product multiplies the errors of a channel by its weights, a function of one element by its slope: far out
on a sigmoid nothing is lost by saturation.  Elements whose errors count for nothing should not hold a range
open that others need narrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from fadiff.converter.ir.operators import WEIGHTED
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.scales import int8_steps
from fadiff.converter.read.runtime import run_region

_REACH, _FINE = 12.0, 85.0
_GRID = np.sinh(np.arange(-_REACH * _FINE, _REACH * _FINE + 1) / _FINE).astype(np.float32)
"""Fine around zero and reaching far: where slopes are looked at."""


@dataclass(frozen=True)
class Importance:
    """Squared factors that errors of a value's elements are multiplied by."""

    channels: np.ndarray = field(repr=False)
    """Broadcasts to the value."""
    slopes: np.ndarray | None = field(default=None, repr=False)
    """Squared slopes at _GRID, where a function of one element reads it."""

    def of(self, array: np.ndarray, stride: int = 1) -> np.ndarray:
        """Of every element of the value, or one in `stride`, in order."""
        channels = self.channels.reshape(self.channels.shape[max(0, self.channels.ndim - array.ndim) :])
        found = np.broadcast_to(channels, array.shape).reshape(-1)[::stride]
        if self.slopes is None:
            return found
        places = np.nan_to_num((np.arcsinh(array.reshape(-1)[::stride]) + _REACH) * _FINE + 0.5)
        return np.asarray(found * self.slopes[np.clip(places, 0, len(_GRID) - 1).astype(np.intp)])


def importances(
    model: onnx.ModelProto, program: Program, steps: Sequence[Step], values: Sequence[str]
) -> Mapping[str, Importance]:
    """Of the values of which all readers in int8 are known to be products with constants, or one function."""
    readers: dict[str, list[Step]] = {}
    for step in int8_steps(steps):
        for name in dict.fromkeys(program.activations(step.head)) if step.kind == "node" else (step.source,):
            readers.setdefault(name, []).append(step)
    found: dict[str, Importance] = {}
    for value in values:
        channels = _channels(program, value, readers.get(value, []))
        if channels is not None:
            found[value] = Importance(channels)
        elif len(some := readers.get(value, [])) == 1 and some[0].kind == "lookup":
            slopes = _slopes(model, some[0])
            after = _channels(program, some[0].output, readers.get(some[0].output, []))
            if slopes is not None and value not in program.outputs:
                found[value] = Importance(np.ones(1) if after is None else after, slopes)
    return found


def _channels(program: Program, value: str, readers: Sequence[Step]) -> np.ndarray | None:
    """Sums of squared weights for each channel, in a shape that broadcasts to the value."""
    if not readers or value in program.outputs:
        return None
    parts = [_energy(program, value, step.head) if step.kind == "node" else None for step in readers]
    if any(part is None for part in parts):
        return None
    return np.asarray(sum(part for part in parts if part is not None))


def _energy(program: Program, value: str, node: Node) -> np.ndarray | None:
    if node.op not in WEIGHTED or node.inputs[0] != value or node.attributes.get("transA", 0):
        return None
    weight = program.constant(node.inputs[1])
    if weight is None or node.inputs[1] in program.stored or (node.op == "MatMul" and weight.ndim != 2):
        return None
    squares = np.square(weight, dtype=np.float64)
    rank = len(program.shapes[value])
    if node.op == "Conv":
        groups = int(node.attributes.get("group", 1))
        by_input = squares.reshape(groups, -1, *weight.shape[1:]).sum((1, *range(3, weight.ndim + 1)))
        return np.asarray(by_input.reshape(-1, *(1 for _ in range(rank - 2))))
    if node.op == "ConvTranspose":
        by_input = squares.sum(tuple(range(1, weight.ndim)))
        return np.asarray(by_input.reshape(-1, *(1 for _ in range(rank - 2))))
    return np.asarray(squares.sum(0 if node.attributes.get("transB", 0) else 1))


def _slopes(model: onnx.ModelProto, step: Step) -> np.ndarray | None:
    """Squared slopes of the function that a lookup is, at _GRID."""
    nodes = (node.proto for node in step.nodes)
    values = run_region(model, nodes, step.source, _GRID, step.output)
    if values.dtype != np.float32:
        return None
    with np.errstate(all="ignore"):
        slopes = np.gradient(values.astype(np.float64), _GRID.astype(np.float64))
    return np.nan_to_num(slopes, nan=0.0, posinf=0.0, neginf=0.0) ** 2
