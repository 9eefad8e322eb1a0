"""Layer and RMS normalisations that an exporter spelled out in primitive operators.

centred:  d = x - mean(x);  y = d / sqrt(mean(d^2) + eps) * gamma + beta
RMS:      y = x / sqrt(mean(x^2) + eps) * gamma
The root may be followed by a Div, or by a Reciprocal (or 1 / root) and a Mul.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from converter.ir.program import Node, Program


@dataclass(frozen=True)
class Norm:
    """A matched normalisation over the last axis; `gamma` and `beta` are constant names or empty."""

    nodes: tuple[Node, ...]
    source: str
    output: str
    epsilon: float
    centred: bool
    gamma: str
    beta: str


def find_norms(program: Program) -> Iterator[Norm]:
    """All normalisations none of whose inner values is read from outside."""
    for node in program.nodes:
        if node.op == "ReduceMean" and _over_last_axis(program, node):
            norm = _match(program, node)
            if norm is not None and _is_closed(program, norm):
                yield norm


def _match(program: Program, mean: Node) -> Norm | None:
    square = program.producer.get(mean.inputs[0])
    deviation = _squared(program, square)
    if square is None or deviation is None:
        return None
    nodes = [square, mean]
    source, centred = deviation, False
    subtract = program.producer.get(deviation)
    if subtract is not None and subtract.op == "Sub":
        centre = program.producer.get(subtract.inputs[1])
        if centre is not None and centre.op == "ReduceMean" and centre.inputs[0] == subtract.inputs[0]:
            if not _over_last_axis(program, centre):
                return None
            source, centred = subtract.inputs[0], True
            nodes += [centre, subtract]
    add = _sole(program, mean, "Add")
    epsilon = _scalar(program, add)
    root = _sole(program, add, "Sqrt") if epsilon is not None else None
    if add is None or root is None or epsilon is None:
        return None
    nodes += [add, root]
    scaled = _sole(program, root, "Div")
    if scaled is None or scaled.inputs[0] != deviation:
        inverse = _sole(program, root, "Reciprocal") or scaled
        if inverse is None or (inverse.op == "Div" and _scalar(program, inverse) != 1.0):
            return None
        nodes.append(inverse)
        scaled = _sole(program, inverse, "Mul")
        if scaled is None or deviation not in scaled.inputs:
            return None
    nodes.append(scaled)
    last, gamma, beta = scaled, "", ""
    multiply = _sole(program, last, "Mul")
    if multiply is not None and _vector(program, multiply):
        nodes.append(multiply)
        last, gamma = multiply, _vector(program, multiply)
        shift = _sole(program, last, "Add")
        if centred and shift is not None and _vector(program, shift):
            nodes.append(shift)
            last, beta = shift, _vector(program, shift)
    return Norm(tuple(nodes), source, last.outputs[0], epsilon, centred, gamma, beta)


def _over_last_axis(program: Program, node: Node) -> bool:
    axes = node.attributes.get("axes")
    if node.input(1):
        array = program.constant(node.input(1))
        axes = None if array is None else tuple(array.reshape(-1).tolist())
    rank = len(program.shapes.get(node.inputs[0], ()))
    return (
        axes is not None and tuple(axes) in ((-1,), (rank - 1,)) and bool(node.attributes.get("keepdims", 1))
    )


def _squared(program: Program, node: Node | None) -> str | None:
    """v when a node computes v * v."""
    if node is None:
        return None
    if node.op == "Mul" and node.inputs[0] == node.inputs[1]:
        return node.inputs[0]
    exponent = program.constant(node.input(1)) if node.op == "Pow" else None
    return (
        node.inputs[0]
        if exponent is not None and exponent.size == 1 and float(exponent.reshape(-1)[0]) == 2
        else None
    )


def _sole(program: Program, node: Node | None, op: str) -> Node | None:
    reader = program.sole_consumer(node.outputs[0]) if node is not None else None
    return reader if reader is not None and reader.op == op else None


def _scalar(program: Program, node: Node | None) -> float | None:
    """The one-element constant operand of a node."""
    for name in node.inputs if node is not None else ():
        array = program.constant(name)
        if array is not None and array.size == 1:
            return float(np.asarray(array).reshape(-1)[0])
    return None


def _vector(program: Program, node: Node) -> str:
    """Name of a constant operand that varies along the last axis only, else empty."""
    length = program.shapes[node.outputs[0]][-1]
    for name in node.inputs:
        array = program.constant(name)
        if array is not None and array.size in (1, length) and (array.size == 1 or array.shape[-1] == length):
            return name
    return ""


def _is_closed(program: Program, norm: Norm) -> bool:
    inside = {node.name for node in norm.nodes}
    for node in norm.nodes:
        for value in node.outputs:
            if value == norm.output:
                continue
            if value in program.outputs or any(r.name not in inside for r in program.consumers(value)):
                return False
    return program.is_float(norm.source)
