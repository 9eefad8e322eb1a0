"""Softmax and log-softmax that an exporter spelled out: exponentials over their sum.

Computed operator by operator in int8, exponentials and sums would lose all that is small.
"""

from __future__ import annotations

from fadiff.converter.decompose.nodes import Nodes
from fadiff.converter.ir.kinds import Kind, is_a
from fadiff.converter.ir.operators import reduction_axes
from fadiff.converter.ir.program import Node, Program

_MOVES = Kind.RESHAPE | Kind.SAME
_BY_AXIS = 13
"""From this opset on a softmax has one axis; before, all from `axis` on."""


def over_their_sum(program: Program, node: Node) -> bool:
    """Exponentials are divided by their sum (or multiplied by its reciprocal): a softmax."""
    return _softmax(program, node) is not None


def less_their_logarithm(program: Program, node: Node) -> bool:
    """The logarithm of the sum of their exponentials is taken from values: a log-softmax."""
    return _log_softmax(program, node) is not None


def softmax(nodes: Nodes, program: Program, node: Node) -> None:
    """One Softmax of what the exponentials are of."""
    found = _softmax(program, node)
    assert found is not None
    nodes.give(nodes.op("Softmax", found[0], axis=found[1]), node.outputs[0])


def log_softmax(nodes: Nodes, program: Program, node: Node) -> None:
    """One LogSoftmax."""
    found = _log_softmax(program, node)
    assert found is not None
    nodes.give(nodes.op("LogSoftmax", found[0], axis=found[1]), node.outputs[0])


def _softmax(program: Program, node: Node) -> tuple[str, int] | None:
    """The value and axis of a softmax whose last node is this Div or Mul."""
    pairs = [node.inputs] if node.op == "Div" else [node.inputs, node.inputs[::-1]]
    for exponentials, divisor in pairs:
        exponential = program.producer.get(exponentials)
        if exponential is None or exponential.op != "Exp":
            continue
        last = program.producer.get(divisor)
        if node.op == "Mul":
            if last is None or last.op != "Reciprocal":
                continue
            divisor = last.inputs[0]
        shape = program.shapes[exponentials]
        axis = _summed_axis(program, divisor, exponentials)
        if axis is not None and _is_row(program, divisor, shape, axis):
            return _without_shift(program, exponential.inputs[0], axis), axis
    return None


def _log_softmax(program: Program, node: Node) -> tuple[str, int] | None:
    value, subtrahend = node.inputs
    logarithm = _behind_moves(program, subtrahend)
    if logarithm is None or logarithm.op != "Log":
        return None
    total = _behind_moves(program, logarithm.inputs[0])
    exponential = program.producer.get(total.inputs[0]) if total is not None else None
    if exponential is None or exponential.op != "Exp" or exponential.inputs[0] != value:
        return None
    axis = _summed_axis(program, logarithm.inputs[0], exponential.outputs[0])
    if axis is None or not _is_row(program, subtrahend, program.shapes[value], axis):
        return None
    return _without_shift(program, value, axis), axis


def _summed_axis(program: Program, total: str, value: str) -> int | None:
    """The one axis that `total`, moved or not, is the sum of `value` along."""
    node = _behind_moves(program, total)
    if node is None or node.op != "ReduceSum" or node.inputs[0] != value:
        return None
    axes = reduction_axes(program, node)
    shape = program.shapes[value]
    if axes is None or len(axes) != 1 or (node.version < _BY_AXIS and axes[0] != len(shape) - 1):
        return None
    return axes[0]


def _behind_moves(program: Program, value: str) -> Node | None:
    node = program.producer.get(value)
    while node is not None and (is_a(node, _MOVES) or node.op == "Expand"):
        node = program.producer.get(node.inputs[0])
    return node


def _is_row(program: Program, value: str, shape: tuple[int, ...], axis: int) -> bool:
    """Whether a value has one element for each row of `shape` along `axis`, aligned with it."""
    node = program.producer.get(value)
    while node is not None and node.op == "Expand":
        value = node.inputs[0]
        node = program.producer.get(value)
    own = program.shapes.get(value, ())
    rows = tuple(1 if i == axis else size for i, size in enumerate(shape))
    return (1,) * (len(shape) - len(own)) + own == rows


def _without_shift(program: Program, value: str, axis: int) -> str:
    """x for x - c, where c is one number for each row: a softmax does not see it."""
    node = program.producer.get(value)
    if node is not None and node.op == "Sub" and node.inputs[1] not in program.constants:
        shape = program.shapes[value]
        if program.shapes[node.inputs[0]] == shape and _is_row(program, node.inputs[1], shape, axis):
            return node.inputs[0]
    return value
