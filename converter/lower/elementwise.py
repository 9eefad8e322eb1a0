"""Element-wise operators of two values: residual adds for Gemmini, the rest loops on the core; integers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fadiff.converter.ir.graph import Activation
from fadiff.converter.ir.host import Add, Binary, HostOperator, Integer, Quantise, ScaleShift, Select, Where
from fadiff.converter.ir.loops import Access, Loops
from fadiff.converter.ir.operators import norm_affine
from fadiff.converter.ir.program import Node
from fadiff.converter.ir.strided import StridedView, dense
from fadiff.converter.lower import constraints as limits
from fadiff.converter.lower.constraints import Constraint, Lower, Operator
from fadiff.converter.lower.context import Lowering
from fadiff.converter.plan.plan import Step

_MOST_RATIO = 8.0
"""Steps of a sum in one of its coarser operand: the array rounds the other operand to these first."""


def function_of(op: str) -> str:
    """The function of two numbers that an operator is: GreaterOrEqual greater_or_equal, BitwiseAnd and."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", op).lower()
    return "add" if op == "Sum" else words.removeprefix("bitwise_")


def lower_integers(lowering: Lowering, step: Step) -> None:
    """Operators of two integers with broadcasting (op `integer`); variadic ones as a chain."""
    last = _all_but_last(lowering, step, lambda a, b, out: _integer(lowering, step, (a, b), out))
    if last is not None:
        _integer(lowering, step, last, lowering.output(step))


def _integer(
    lowering: Lowering, step: Step, operands: tuple[StridedView, StridedView], out: StridedView
) -> None:
    function = _function(step.head)
    _strided(lowering, step, lambda loops: Integer(loops, function), operands, out)


def _function(node: Node) -> str:
    if node.op == "Mod":
        return "remainder" if node.attributes.get("fmod", 0) else "modulo"
    if node.op == "BitShift":
        return f"shift_{str(node.attributes['direction']).lower()}"
    return function_of(node.op)


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
    operands: tuple[StridedView, ...],
    out: StridedView,
) -> None:
    """A host layer that walks all operands together, copied where their strides do not fit."""
    operands, loops = lowering.together([value.expand(out.shape) for value in operands], out)
    lowering.host(step, operator(loops), out, *operands)


def residual_scales(a: float, b: float, out: float) -> tuple[float, float, float]:
    """A, B and C of out = C (A a + B b) with A, B <= 1, every step in float32."""
    m = max(np.float32(a), np.float32(b))
    return float(np.float32(a) / m), float(np.float32(b) / m), float(m / np.float32(out))


def lower_binary(lowering: Lowering, step: Step) -> None:
    """Add, Sub, Mul, ... with broadcasting; variadic ones as a chain."""
    if lowering.program.is_integer(step.head.inputs[0]):
        lower_integers(lowering, step)
        return
    last = _all_but_last(lowering, step, lambda a, b, out: _binary(lowering, step, a, b, out, "none"))
    if last is not None:
        _binary(lowering, step, *last, _output(lowering, step, *last), step.activation)


def _all_but_last(
    lowering: Lowering, step: Step, join: Callable[[StridedView, StridedView, StridedView], None]
) -> tuple[StridedView, StridedView] | None:
    """The last two operands of a chain, all before them joined; None where there is only one, the result."""
    first, *others = (lowering.value(v) for v in step.head.inputs)
    if not others:
        lowering.values[step.output] = first
        return None
    scale, dtype = lowering.scale(step.output), lowering.dtype(step.output)  # (of the result)
    for other in others[:-1]:
        shape = np.broadcast_shapes(first.shape, other.shape)
        partial = dense(lowering.graph.tensor(f"{step.output}.partial", shape, dtype, scale), shape, scale)
        join(first, other, partial)
        first = partial
    return first, others[-1]


def _output(lowering: Lowering, step: Step, *operands: StridedView) -> StridedView:
    """Stored like the first operand that has the result's shape and a tensor of its own."""
    shape = lowering.program.shapes[step.output]
    for operand in operands:
        if operand.shape == shape and lowering.is_whole(operand):
            return lowering.output_like(step, operand)
    return lowering.output(step)


def _binary(
    lowering: Lowering, step: Step, a: StridedView, b: StridedView, out: StridedView, activation: Activation
) -> None:
    shape = out.shape
    a, b = a.expand(shape), b.expand(shape)
    function = function_of(step.head.op)
    if function in ("add", "sub"):  # an operand of zeros has no scale of its own
        a, b = (v.with_scale(o.scale or 1.0) if _is_zero(lowering, v) else v for v, o in ((a, b), (b, a)))
    (a, b), loops = lowering.together((a, b), out)
    whole = all(access == Access(0, (1,)) for access in loops.accesses) and all(
        lowering.is_whole(v) for v in (a, b, out)
    )
    scales = binary_scales(function, a.scale or 1.0, b.scale or 1.0, out.scale or 1.0)
    a_scale, b_scale, ratio = scales
    is_added = function == "add" and whole and (a_scale == b_scale or ratio <= _MOST_RATIO)
    operator = Add(*scales, activation) if is_added else Binary(loops, function, *scales, activation)
    lowering.host(step, operator, out, a, b)


def _is_zero(lowering: Lowering, value: StridedView) -> bool:
    data = lowering.graph.tensors[value.tensor].data
    return data is not None and not data.any()


def binary_scales(function: str, a: float, b: float, out: float) -> tuple[float, float, float]:
    """`a_scale`, `b_scale` and `scale` of docs/host-ops.md, in float32."""
    x, y, z = np.float32(a), np.float32(b), np.float32(out)
    if function in ("add", "sub"):
        return residual_scales(a, b, out)
    if function == "mul":
        return 1.0, 1.0, float(x * y / z)
    if function == "div":
        return 1.0, 1.0, float(x / y / z)
    if function in ("max", "min"):
        return float(x / z), float(y / z), 1.0
    if function == "prelu":
        return float(x / z), 1.0, float(x * y / z)
    return a, b, 1.0


def lower_where(lowering: Lowering, step: Step) -> None:
    """Where: both branches are brought to the result's scale."""
    if lowering.program.is_integer(step.output):
        select(lowering, step)
        return
    shape = lowering.program.shapes[step.output]
    condition, a, b = (lowering.value(v).expand(shape) for v in step.head.inputs)
    out = _output(lowering, step, a, b)
    (condition, a, b), loops = lowering.together((condition, a, b), out)
    z = np.float32(out.scale or 1.0)
    operator = Where(loops, float(np.float32(a.scale or 1.0) / z), float(np.float32(b.scale or 1.0) / z))
    lowering.host(step, operator, out, condition, a, b)


def lower_batch_norm(lowering: Lowering, step: Step) -> None:
    """A batch normalisation that no convolution absorbed: op `scale_shift` with float32 vectors."""
    node = step.head
    affine = norm_affine(lowering.program, node)
    assert affine is not None
    factor, shift = affine
    value = lowering.value(node.inputs[0])
    out = lowering.output_like(step, value)
    input_scale, output_scale = value.scale or 1.0, out.scale or 1.0
    multiplier = (factor * input_scale / output_scale).astype(np.float32)
    addend = (shift / output_scale).astype(np.float32)
    rank = len(value.axes)
    vectors = []
    for name, data in (("multiplier", multiplier), ("addend", addend)):
        tensor = lowering.graph.tensor(f"{step.name}.{name}", data.shape, "float32", None, data)
        axes = tuple(((data.size, 1),) if axis == 1 else () for axis in range(rank))
        vectors.append(StridedView(tensor, 0, axes, None).expand(value.shape))
    _, loops = lowering.together((value, *vectors), out)
    lowering.host(step, ScaleShift(loops, step.activation), out, value, *vectors)


def _records(ops: str, lower: Lower, *constraints: Constraint) -> tuple[Operator, ...]:
    return tuple(Operator(op, "core", lower, constraints) for op in ops.split())


OPERATORS = (
    Operator(
        "BatchNormalization",
        "core",
        lower_batch_norm,
        (limits.float_values, limits.inference_mode, limits.constant_inputs),
    ),
    *_records("BitShift BitwiseAnd BitwiseOr BitwiseXor Mod", lower_integers, limits.integers),
    Operator("Cast", "core", lower_cast, (limits.of_integers,)),
    Operator("Where", "core", lower_where, (limits.comparable,)),
    *_records("Add Div Max Min Mul Sub Sum", lower_binary, limits.numbers),
    *_records("And Or Xor", lower_binary, limits.booleans),
    *_records("Equal Greater GreaterOrEqual Less LessOrEqual", lower_binary, limits.comparable),
    *_records("PRelu", lower_binary, limits.float_values, limits.slopes),
)
