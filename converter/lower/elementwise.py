"""Element-wise operators of two values: residual adds for Gemmini, the rest strided loops on the core."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fadiff.converter.ir.graph import Activation
from fadiff.converter.ir.host import Add, Binary, ScaleShift, Where
from fadiff.converter.ir.loops import Access
from fadiff.converter.ir.strided import Strided, common_loops, dense
from fadiff.converter.lower.context import Lowering
from fadiff.converter.lower.integers import FUNCTIONS, lower_integers, select
from fadiff.converter.plan.plan import Step

_FUNCTIONS = {**FUNCTIONS, **{op: op.lower() for op in ("PRelu", "And", "Or", "Xor")}}


def residual_scales(a: float, b: float, out: float) -> tuple[float, float, float]:
    """A, B and C of out = C (A a + B b) with A, B <= 1, every step in float32."""
    m = max(np.float32(a), np.float32(b))
    return float(np.float32(a) / m), float(np.float32(b) / m), float(m / np.float32(out))


def lower_binary(lowering: Lowering, step: Step) -> None:
    """Add, Sub, Mul, ... with broadcasting; variadic ones as a chain."""
    if lowering.program.is_integer(step.head.inputs[0]):
        lower_integers(lowering, step)
        return
    first, *others = (lowering.value(v) for v in step.head.inputs)
    if not others:
        lowering.values[step.output] = first
        return
    for other in others[:-1]:
        partial = _partial(lowering, step, first, other)
        _binary(lowering, step, first, other, partial, "none")
        first = partial
    _binary(lowering, step, first, others[-1], _output(lowering, step, first, others[-1]), step.activation)


def _partial(lowering: Lowering, step: Step, a: Strided, b: Strided) -> Strided:
    """A tensor for an intermediate of a variadic operator, on the scale of the result."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    scale = lowering.scale(step.output)
    tensor = lowering.graph.tensor(f"{step.output}.partial", shape, lowering.element, scale)
    return dense(tensor, shape, scale)


def _output(lowering: Lowering, step: Step, *operands: Strided) -> Strided:
    """Stored like the first operand that has the result's shape and a tensor of its own."""
    shape = lowering.program.shapes[step.output]
    for operand in operands:
        if operand.shape == shape and lowering.is_whole(operand):
            return lowering.output_like(step, operand)
    return lowering.output(step)


def _binary(
    lowering: Lowering, step: Step, a: Strided, b: Strided, out: Strided, activation: Activation
) -> None:
    shape = out.shape
    a, b = a.expand(shape), b.expand(shape)
    function = _FUNCTIONS[step.head.op]
    if function in ("add", "sub"):  # an operand of zeros has no scale of its own
        a, b = (v.with_scale(o.scale or 1.0) if _is_zero(lowering, v) else v for v, o in ((a, b), (b, a)))
    loops = common_loops((a, b, out))
    if loops is None:
        a, b = (v if common_loops((v, out)) is not None else lowering.copy(v) for v in (a, b))
        loops = common_loops((a, b, out))
    if loops is None:
        a, b = lowering.copy(a), lowering.copy(b)
        plain = replace(out, axes=a.axes)
        assert plain.shape == out.shape
        loops = common_loops((a, b, out))
    assert loops is not None
    whole = all(access == Access(0, (1,)) for access in loops.accesses) and all(
        lowering.is_whole(v) for v in (a, b, out)
    )
    if function == "add" and whole:
        a_scale, b_scale, scale = residual_scales(a.scale or 1.0, b.scale or 1.0, out.scale or 1.0)
        lowering.host(step, Add(a_scale, b_scale, scale, activation), out, a, b)
        return
    scales = binary_scales(function, a.scale or 1.0, b.scale or 1.0, out.scale or 1.0)
    lowering.host(step, Binary(loops, function, *scales, activation), out, a, b)


def _is_zero(lowering: Lowering, value: Strided) -> bool:
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
    loops = common_loops((condition, a, b, out))
    if loops is None:
        condition, a, b = (lowering.copy(v) for v in (condition, a, b))
        out = lowering.output(step)
        loops = common_loops((condition, a, b, out))
        assert loops is not None
    z = np.float32(out.scale or 1.0)
    operator = Where(loops, float(np.float32(a.scale or 1.0) / z), float(np.float32(b.scale or 1.0) / z))
    lowering.host(step, operator, out, condition, a, b)


def lower_batch_norm(lowering: Lowering, step: Step) -> None:
    """A batch normalisation that no convolution absorbed: op `scale_shift` with float32 vectors."""
    node = step.head
    gamma, beta, mean, variance = (
        np.asarray(lowering.program.constants[v], np.float64) for v in node.inputs[1:5]
    )
    factor = gamma / np.sqrt(variance + float(node.attributes.get("epsilon", 1e-5)))
    value = lowering.value(node.inputs[0])
    out = lowering.output_like(step, value)
    input_scale, output_scale = value.scale or 1.0, out.scale or 1.0
    multiplier = (factor * input_scale / output_scale).astype(np.float32)
    addend = ((beta - mean * factor) / output_scale).astype(np.float32)
    rank = len(value.axes)
    vectors = []
    for name, data in (("multiplier", multiplier), ("addend", addend)):
        tensor = lowering.graph.tensor(f"{step.name}.{name}", data.shape, "float32", None, data)
        axes = tuple(((data.size, 1),) if axis == 1 else () for axis in range(rank))
        vectors.append(Strided(tensor, 0, axes, None).expand(value.shape))
    loops = common_loops((value, *vectors, out))
    assert loops is not None
    lowering.host(step, ScaleShift(loops, step.activation), out, value, *vectors)
