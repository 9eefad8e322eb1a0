"""What follows from a node: the axes it reduces, where it writes, whether its scale is that of its input."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx

from fadiff.converter.ir.kinds import ELEMENTWISE, KEEPS_SCALE, Kind, is_a
from fadiff.converter.ir.program import FLOATS, INTEGERS, Node, Program

_LINEAR = frozenset(("Mul", "Div", "Identity", "Dropout", "Cast"))


def reduction_axes(program: Program, node: Node) -> tuple[int, ...] | None:
    """Axes of a Reduce operator, sorted and non-negative; None when computed at run time."""
    rank = len(program.shapes[node.inputs[0]])
    axes = node.attributes.get("axes")
    if node.input(1):
        array = program.constant(node.input(1))
        if array is None:
            return None
        axes = tuple(int(a) for a in array.reshape(-1))
    if not axes:
        return () if node.attributes.get("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(a % rank for a in axes))


def written_positions(program: Program, node: Node) -> tuple[str, int] | None:
    """The value with the positions at which a Scatter writes whole slices, and the axis they count along.

    None where it writes anything else than data[..., positions, ...] = updates.
    """
    data, indices, updates = (program.shapes[name] for name in node.inputs[:3])
    if node.op == "ScatterND":
        whole = indices[-1:] == (1,) and updates == (*indices[:-1], *data[1:])
        return (node.inputs[1], 0) if whole else None
    axis = int(node.attributes.get("axis", 0)) % len(data)
    if not indices == updates == (*data[:axis], indices[axis], *data[axis + 1 :]):
        return None
    positions = node.inputs[1]
    while (before := program.producer.get(positions)) is not None and before.op in ("Expand", "Identity"):
        positions = before.inputs[0]
    shape = program.shapes[positions]
    along = shape[axis - len(data)] if len(data) - axis <= len(shape) else 1
    return (positions, axis) if along == math.prod(shape) == indices[axis] else None


def padding(program: Program, node: Node) -> tuple[list[int], list[int], float] | None:
    """Elements that a Pad puts before and behind each axis, and their value; None where that is computed."""
    rank = len(program.shapes[node.inputs[0]])
    if node.version < 11:
        pads = list(node.attributes.get("pads", ()))
        return pads[:rank], pads[rank:], float(node.attributes.get("value", 0.0))
    given, fill = program.constant(node.inputs[1]), program.constant(node.input(2))
    axes = program.constant(node.input(3)) if node.input(3) else np.arange(rank)
    if given is None or axes is None or (node.input(2) and fill is None):
        return None
    begin, end = [0] * rank, [0] * rank
    for i, axis in enumerate(axes.tolist()):
        begin[axis], end[axis] = int(given[i]), int(given[i + len(axes)])
    return begin, end, 0.0 if fill is None or not fill.size else float(fill.reshape(-1)[0])


def keeps_scale(node: Node) -> bool:
    """Whether the output of a node has its first input's scale."""
    if node.op in ("Resize", "Upsample"):
        return bool(node.attributes.get("mode", "nearest") == "nearest")
    if node.op == "Pad":
        return bool(node.attributes.get("mode", "constant") != "constant")
    return is_a(node, KEEPS_SCALE)


def is_square(program: Program, node: Node) -> bool:
    """Whether a node is Pow with the constant exponent 2."""
    exponent = program.constant(node.inputs[1]) if node.op == "Pow" else None
    return exponent is not None and bool(np.all(exponent == 2))


def extremes_taken(program: Program, value: str) -> tuple[Node, ...]:
    """The nodes that read a value, moved or not, if all of them only see its maxima, or all its minima.

    (A softmax does not see what lies far enough below its maximum.)  Empty where others read it as well.
    """
    readers = list[Node]()
    pending = [value]
    while pending:
        moved = pending.pop()
        if moved in program.outputs:
            return ()
        for node in program.consumers(moved):
            if is_a(node, Kind.MAXIMUM | Kind.MINIMUM):
                readers.append(node)
            elif keeps_scale(node) and node.inputs[0] == moved:
                pending.extend(v for v in node.outputs if v)
            else:
                return ()
    alike = any(all(is_a(node, kind) for node in readers) for kind in (Kind.MAXIMUM, Kind.MINIMUM))
    return tuple(readers) if alike else ()


def is_tabulated(program: Program, node: Node) -> bool:
    """Whether an element-wise node can be part of a table of one value: numbers in and out, no randomness."""
    if node.op == "Dropout":
        training = program.constant(node.input(2))
        return not node.input(2) or (training is not None and not training.any())
    kinds = (*FLOATS, *INTEGERS, onnx.TensorProto.BOOL)
    return is_a(node, ELEMENTWISE) and all(program.types.get(v) in kinds for v in node.outputs if v)


def linear_factor(program: Program, nodes: Sequence[Node]) -> float | None:
    """c when a chain of element-wise nodes computes x -> c x with c > 0, else None.

    Such a chain needs no work at all: the int8 numbers stay, their scale is multiplied by c.
    """
    factor = np.float32(1.0)
    for node in nodes:
        if node.op not in _LINEAR or len(list(program.activations(node))) != 1:
            return None
        if node.op == "Cast" and not (program.is_float(node.inputs[0]) and program.is_float(node.outputs[0])):
            return None
        if node.op in ("Mul", "Div"):
            constant = next(program.constants[v] for v in node.inputs if v in program.constants)
            if node.op == "Div" and node.inputs[0] in program.constants:
                return None
            value = np.float32(constant.reshape(-1)[0])
            factor = factor * value if node.op == "Mul" else factor / value
    return float(factor) if np.isfinite(factor) and factor > 0 else None
