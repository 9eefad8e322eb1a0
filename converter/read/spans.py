"""Ranges of numbers that a model expects, by the operators that read its inputs first.

Exporters often leave the normalisation of images in the graph: (x - mean) / std, x / 255, a batch
normalisation.  What that makes of a range tells which range was meant.
"""

from __future__ import annotations

import numpy as np
import onnx

from fadiff.converter.ir.kinds import MOVE, Kind, is_a
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.read.inputs import Spans

_USUAL = ((0.0, 255.0), (0.0, 1.0), (-1.0, 1.0))
"""Pixels, and pixels that somebody scaled."""
_DEVIATIONS = 3.0
_LEAST, _MOST = 0.9, 6.0
"""How wide a normalised range is at least, and how far it reaches: one to a few deviations."""


def suggested_spans(program: Program) -> Spans:
    """Smallest and largest number of inputs whose first operators normalise them.

    Inputs of other numbers are left out: bytes that become floats are 0 to 255.
    """
    spans = {}
    for name in program.inputs:
        if program.types[name] == onnx.TensorProto.UINT8:
            node = program.sole_consumer(name)
            if node is not None and node.op == "Cast":
                spans[name] = (0.0, 255.0)
        elif program.is_float(name):
            span = _span(program, name)
            if span is not None:
                spans[name] = span
    return spans


def _span(program: Program, value: str) -> tuple[float, float] | None:
    gain, shift = np.ones(1), np.zeros(1)
    found = False
    while (node := program.sole_consumer(value)) is not None and node.inputs[0] in (value, *node.inputs[1:]):
        if is_a(node, Kind.ARITHMETIC) or node.op == "BatchNormalization":
            step = _affine(program, node, value)
            if step is None:
                break
            try:
                gain, shift = gain * step[0], shift * step[0] + step[1]
            except ValueError:  # per channel, along different axes
                break
            found = True
        elif not is_a(node, MOVE) and node.op != "Cast":
            break
        value = node.outputs[0]
    if not found or not np.all(np.isfinite(gain)) or not np.all(gain) or np.all(gain == 1):
        return None  # what is only moved is a sum like any other
    moved = bool(np.any(shift))
    for low, high in _USUAL if moved else _USUAL[:1]:
        reach = np.maximum(np.abs(gain * low + shift), np.abs(gain * high + shift))
        width = np.abs(gain) * (high - low)
        if float(width.min()) >= _LEAST and float(reach.max()) <= _MOST:
            return low, high
    if not moved:  # a factor alone that makes no pixels small, as attention has on its queries
        return None
    ends = np.stack([(side - shift) / gain for side in (-_DEVIATIONS, _DEVIATIONS)])
    return float(ends.min()), float(ends.max())


def _affine(program: Program, node: Node, value: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Factor and summand (per channel, or one) that an operator applies to a value."""
    if node.op == "BatchNormalization":
        constants = [program.constant(v) for v in node.inputs[1:5]]
        if node.inputs[0] != value or any(c is None for c in constants):
            return None
        gamma, beta, mean, variance = (np.asarray(c, np.float64) for c in constants)
        factor = gamma / np.sqrt(variance + float(node.attributes.get("epsilon", 1e-5)))
        return factor, beta - mean * factor
    first = node.inputs[0] == value
    other = program.constant(node.inputs[1] if first else node.inputs[0])
    if other is None or (node.op == "Div" and not first):
        return None
    numbers = other.reshape(-1).astype(np.float64)
    one, none = np.ones(1), np.zeros(1)
    with np.errstate(divide="ignore"):
        return {
            "Add": (one, numbers),
            "Sub": (one, -numbers) if first else (-one, numbers),
            "Mul": (numbers, none),
            "Div": (1 / numbers, none),
        }[node.op]
