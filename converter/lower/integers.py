"""Integers on the core, kept in 32 bits: arithmetic, comparisons, choices, and ways to and from floats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fadiff.converter.ir.host import HostOperator, Integer, Quantise, Select
from fadiff.converter.ir.loops import Loops
from fadiff.converter.ir.program import Node
from fadiff.converter.ir.strided import Strided, common_loops, dense
from fadiff.converter.lower.context import Lowering
from fadiff.converter.plan.plan import Step

FUNCTIONS = {
    **{op: op.lower() for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Greater", "Less")},
    "GreaterOrEqual": "greater_or_equal",
    "LessOrEqual": "less_or_equal",
    "Sum": "add",
}
"""Operators that floats and integers have in common."""
_BITWISE = {"BitwiseAnd": "and", "BitwiseOr": "or", "BitwiseXor": "xor"}


def lower_integers(lowering: Lowering, step: Step) -> None:
    """Operators of two integers with broadcasting (op `integer`); variadic ones as a chain."""
    first, *others = (lowering.value(v) for v in step.head.inputs)
    if not others:
        lowering.values[step.output] = first
        return
    for other in others[:-1]:
        shape = np.broadcast_shapes(first.shape, other.shape)
        partial = dense(lowering.graph.tensor(f"{step.output}.partial", shape, "int32"), shape, None)
        _integer(lowering, step, (first, other), partial)
        first = partial
    _integer(lowering, step, (first, others[-1]), lowering.output(step))


def _integer(lowering: Lowering, step: Step, operands: tuple[Strided, Strided], out: Strided) -> None:
    function = _function(step.head)
    _strided(lowering, step, lambda loops: Integer(loops, function), operands, out)


def _function(node: Node) -> str:
    if node.op == "Mod":
        return "remainder" if node.attributes.get("fmod", 0) else "modulo"
    if node.op == "BitShift":
        return f"shift_{str(node.attributes['direction']).lower()}"
    return {**FUNCTIONS, **_BITWISE}[node.op]


def lower_cast(lowering: Lowering, step: Step) -> None:
    """Cast of an integer: to a float (op `quantise`), to a boolean (is it 0?), or between sizes (nothing)."""
    name, program = step.head.inputs[0], lowering.program
    value = lowering.value(name)
    if program.is_float(step.output):
        out = lowering.output(step)
        scale = float(np.float32(1.0 / np.float32(out.scale or 1.0)))
        _strided(lowering, step, lambda loops: Quantise(loops, scale), (value,), out)
    elif program.is_bool(step.output):
        zero = lowering.graph.tensor(f"{step.name}.zero", (1,), "int32", None, np.zeros(1, np.int32))
        nothing = replace(dense(zero, (1,), None), axes=tuple(() for _ in value.axes))
        out = lowering.output(step)
        _strided(lowering, step, lambda loops: Integer(loops, "not_equal"), (value, nothing), out)
    else:
        lowering.values[step.output] = value


def select(lowering: Lowering, step: Step) -> None:
    """Where on integers: op `select`."""
    condition, a, b = (lowering.value(v) for v in step.head.inputs)
    _strided(lowering, step, Select, (condition, a, b), lowering.output(step))


def _strided(
    lowering: Lowering,
    step: Step,
    operator: Callable[[Loops], HostOperator],
    operands: tuple[Strided, ...],
    out: Strided,
) -> None:
    """A host layer that walks all operands together, copied where their strides do not fit."""
    operands = tuple(value.expand(out.shape) for value in operands)
    loops = common_loops((*operands, out))
    if loops is None:
        operands = tuple(lowering.copy(value) for value in operands)
        loops = common_loops((*operands, out))
        assert loops is not None
    lowering.host(step, operator(loops), out, *operands)
