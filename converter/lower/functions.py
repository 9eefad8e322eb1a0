"""Functions of one value: of int8, or an input's bytes, tables of 256 entries; of float32 formulas.

ONNX Runtime computes the tables.  A formula is made of primitives that C and ONNX both have.  Exponentials
are additions and multiplications that float32 rounds one by one where C and reference have to be equal to the
bit: exp(x) = 2^n p(x - n log 2), n the nearest integer to x / log 2, p a polynomial; libraries round theirs
in ways of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx

from fadiff.converter.ir import host
from fadiff.converter.ir.host import Lookup
from fadiff.converter.ir.operators import is_square, linear_factor
from fadiff.converter.ir.program import FLOATS, Node, Program
from fadiff.converter.ir.scale import AxisScales, Part
from fadiff.converter.ir.strided import common_loops, dense
from fadiff.converter.lower.context import Lowering
from fadiff.converter.lower.elementwise import function_of
from fadiff.converter.plan.inputs import affine_of
from fadiff.converter.plan.plan import Step, clip_bounds
from fadiff.converter.read.runtime import run_part


def lower_lookup(lowering: Lowering, step: Step) -> None:
    """A chain of element-wise nodes over one value: op `lookup`, or nothing when it only scales.

    table[q + 128] = sat8(round_half_even(f((q - zero) * input scale) / output scale) + output zero) for q in
    -128..127; NaN becomes 0; a boolean result is 0 or 1, an integer result is not clipped (int32 table).
    """
    value = lowering.value(step.source)
    scale = lowering.scale(step.output) if step.output in lowering.quantisation.scales else None
    if scale is not None and linear_factor(lowering.program, step.nodes) is not None:
        lowering.values[step.output] = value.with_scale(scale)
        return
    steps = np.arange(-128, 128)
    is_float = lowering.program.is_float(step.source)
    zero, scaled = lowering.zero(step.source), np.float32(value.scale or 1.0)
    with np.errstate(over="ignore"):  # (steps of a mask may be the largest number there is)
        inputs = (steps - zero).astype(np.float32) * scaled if is_float else steps != 0
    feed = {step.source: np.asarray(inputs)}
    (outputs,) = run_part(lowering.program, step.nodes, [feed], step.output, scalars=True)
    dtype = lowering.dtype(step.output)
    with np.errstate(invalid="ignore", over="ignore"):
        if dtype == "int8":
            outputs = outputs.astype(np.float32) / np.float32(scale or 1.0)
        limits = np.iinfo(dtype)
        outputs = np.nan_to_num(np.rint(outputs), nan=0.0) + lowering.zero(step.output)
        table = np.clip(outputs, limits.min, limits.max).astype(dtype)
    out = lowering.output_like(step, value)
    name = lowering.graph.constant(f"{step.name}.table", (256,), dtype, scale, table)
    _, loops = lowering.walk(value, out)
    lowering.host(step, Lookup(loops), out, value, name)


def lower_bytes(lowering: Lowering, step: Step, order: Sequence[int]) -> None:
    """An input of bytes and what is computed of it first: op `lookup`, one for each channel of its own.

    table[i] = sat8(round_half_even(f((byte - zero) * scale) / output scale) + output zero) for the byte whose
    eight bits as int8 are i - 128.
    """
    program, value = lowering.program, step.source
    shape, order = program.shapes[value], tuple(order)
    scale, zero = program.byte_inputs[value]
    shift = float(np.float32(-scale * zero))
    along = AxisScales(len(order) - 1, (Part(shape[order[-1]], scale, shift),)) if zero else None
    axes = None if order == tuple(range(len(shape))) else order
    stored = tuple(shape[i] for i in order)
    name = lowering.graph.input(
        value, stored, "uint8", scale=scale, onnx_name=value, onnx_axes=axes, zero=zero, along=along
    )
    source, out = dense(name, shape, None, order), lowering.output(step, order)
    tables, axis = _tables(lowering, step)
    starts = [i for i in range(len(tables)) if i == 0 or not np.array_equal(tables[i], tables[i - 1])]
    for start, stop in zip(starts, [*starts[1:], len(tables)], strict=True):
        parts = (source, out)
        if len(starts) > 1:
            parts = (
                lowering.sliced(source, axis, start, 1, stop - start),
                lowering.sliced(out, axis, start, 1, stop - start),
            )
        loops = common_loops(parts)
        assert loops is not None  # (both lie alike)
        entries = lowering.graph.constant(f"{step.name}.table", (256,), "int8", out.scale, tables[start])
        lowering.host(step, Lookup(loops), out, source, entries)


def _tables(lowering: Lowering, step: Step) -> tuple[np.ndarray, int]:
    """Tables [channels, 256], and the axis of the input that the channels are; one where all are alike."""
    program, value = lowering.program, step.source
    scale, zero = program.byte_inputs[value]
    shape, axis = program.shapes[value], affine_of(program, step.nodes).axis
    bytes_ = (np.arange(256) + 128) % 256
    numbers = bytes_ if program.is_integer(value) else (bytes_ - zero).astype(np.float32) * np.float32(scale)
    sizes = [256, *(1 for _ in shape)] if axis in (None, 0) else [256, *(1 for _ in shape[1:])]
    if axis is not None:
        sizes[axis + len(sizes) - len(shape)] = shape[axis]
    fed = np.broadcast_to(numbers.reshape(-1, *(1 for _ in sizes[1:])), sizes)
    feed = {value: np.ascontiguousarray(fed, program.numpy_type(value))}
    (found,) = run_part(program, step.nodes, [feed], step.output)
    real = found.reshape(256, -1).T.astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        steps = np.nan_to_num(np.rint(real / np.float32(lowering.scale(step.output) or 1.0)), nan=0.0)
    return np.clip(steps + lowering.zero(step.output), -128, 127).astype(np.int8), axis or 0


Operand = str | float
"""The value itself ("x"), the result of an earlier primitive ("v3" of the fourth), or a constant."""
Formula = tuple[str, ...]
"""Primitives in order, as "mul v0 0.5"; the last one is the result.  Booleans are 0 and 1."""

_LOW, _HIGH = -69.0, 88.0
"""Beyond, the result is as good as zero, or the largest number."""
_SHIFT = 100
"""Shift of n, so that it is positive: the power is put together from its bits."""
_BITS = (64, 64, 64, 32, 16, 8, 4, 2, 1)
_LOG2_HIGH, _LOG2_LOW = 0.693359375, -2.12194440e-4
"""log 2 in two parts: products with n round only in the second."""
_COEFFICIENTS = tuple(1 / math.factorial(i) for i in range(7, -1, -1))


class _Growing:
    """A formula that grows."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def op(self, primitive: str, *operands: Operand) -> str:
        self.steps.append(" ".join((primitive, *map(str, operands))))
        return f"v{len(self.steps) - 1}"


def without_library(formula: Formula) -> Formula:
    """The same function without `exp` and `tanh` (absolute error of about 1e-7 of the result or of 1)."""
    writer = _PlainWriter()
    names: dict[str, str] = {}
    for place, step in enumerate(formula):
        primitive, *operands = step.split()
        read = [names.get(operand, operand) for operand in operands]
        if primitive == "exp":
            names[f"v{place}"] = writer.exponential(*read)
        elif primitive == "tanh":
            names[f"v{place}"] = writer.tanh(*read)
        else:
            names[f"v{place}"] = writer.op(primitive, *read)
    return tuple(writer.steps)


class _PlainWriter(_Growing):
    """Without exponentials."""

    def tanh(self, x: str) -> str:
        """1 - 2 / (exp(2 x) + 1)."""
        above = self.op("add", self.exponential(self.op("mul", x, 2.0)), 1.0)
        return self.op("sub", 1.0, self.op("div", 2.0, above))

    def exponential(self, x: str) -> str:
        bounded = self.op("min", self.op("max", x, _LOW), _HIGH)
        n = self.op("floor", self.op("add", self.op("mul", bounded, 1 / math.log(2)), 0.5))
        rest = self.op("sub", bounded, self.op("mul", n, _LOG2_HIGH))
        rest = self.op("sub", rest, self.op("mul", n, _LOG2_LOW))
        value: str | float = _COEFFICIENTS[0]
        for coefficient in _COEFFICIENTS[1:]:
            value = self.op("add", self.op("mul", value, rest), coefficient)
        value = self.op("mul", value, 2.0**-_SHIFT)
        left = self.op("add", n, float(_SHIFT))
        for bits in _BITS:
            is_set = self.op("less", bits - 0.5, left)
            if bits > 1:
                left = self.op("where", is_set, self.op("sub", left, float(bits)), left)
            value = self.op("where", is_set, self.op("mul", value, 2.0**bits), value)
        return str(value)


def lower_formula(lowering: Lowering, step: Step) -> None:
    """A chain of element-wise nodes over one value: op `formula`."""
    value = lowering.value(step.source)
    out = lowering.output_like(step, value)
    _, loops = lowering.walk(value, out)
    lowering.host(step, host.Formula(loops, formula_of(lowering.program, step)), out, value)


def has_formula(op: str) -> bool:
    """Whether `formula_of` knows an element-wise operator."""
    return op in _PRIMITIVES or op in _EXPANSIONS


def formula_of(program: Program, step: Step) -> Formula:
    """The nodes of a lookup step as primitives; every one satisfies `has_formula`."""
    writer = _Writer(program, step.source)
    for node in step.nodes:
        operands = [writer.operand(name) for name in node.inputs if name]
        if node.op in _EXPANSIONS:
            result = _EXPANSIONS[node.op](writer, node, *operands)
        elif node.op in _VARIADIC:
            result = operands[0]
            for operand in operands[1:]:
                result = writer.op(_PRIMITIVES[node.op], result, operand)
        else:
            result = writer.op(_PRIMITIVES[node.op], *operands)
        writer.values[node.outputs[0]] = result
    result = writer.values[step.output]
    if result != f"v{len(writer.steps) - 1}":  # the value itself, or a constant
        writer.op("add", result, 0.0)
    return tuple(writer.steps)


class _Writer(_Growing):
    """Of the values of a program."""

    def __init__(self, program: Program, source: str) -> None:
        super().__init__()
        self.program = program
        self.values: dict[str, Operand] = {source: "x"}

    def operand(self, name: str) -> Operand:
        constant = self.program.constant(name)
        return self.values[name] if constant is None else float(np.float32(constant.reshape(-1)[0]))

    def sigmoid(self, x: Operand) -> str:
        return self.op("div", 1.0, self.op("add", 1.0, self.op("exp", self.op("neg", x))))

    def softplus(self, x: Operand) -> str:
        """log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
        rest = self.op("log", self.op("add", 1.0, self.op("exp", self.op("neg", self.op("abs", x)))))
        return self.op("add", self.op("max", x, 0.0), rest)

    def below_zero(self, x: Operand, otherwise: Operand, then: Operand) -> str:
        return self.op("where", self.op("less", x, 0.0), then, otherwise)

    def hard_sigmoid(self, x: Operand, slope: float, shift: float) -> str:
        return self.op("min", self.op("max", self.op("add", self.op("mul", x, slope), shift), 0.0), 1.0)

    def exponential_unit(self, x: Operand, alpha: float, inner: float = 1.0, outer: float = 1.0) -> str:
        """outer * (x if x >= 0 else alpha * (exp(inner * x) - 1))."""
        below = self.op("sub", self.op("exp", self.op("mul", inner, self.op("min", x, 0.0))), 1.0)
        return self.op("mul", outer, self.below_zero(x, x, self.op("mul", alpha, below)))


def _attribute(node: Node, name: str, default: float) -> float:
    return float(np.float32(node.attributes.get(name, default)))


def _celu(w: _Writer, node: Node, x: Operand) -> Operand:
    alpha = _attribute(node, "alpha", 1.0)
    return w.exponential_unit(x, alpha, 1 / alpha)


def _selu(w: _Writer, node: Node, x: Operand) -> Operand:
    alpha = _attribute(node, "alpha", 1.67326319217681884765625)
    return w.exponential_unit(x, alpha, 1.0, _attribute(node, "gamma", 1.05070102214813232421875))


def _clip(w: _Writer, node: Node, x: Operand, *_: Operand) -> Operand:
    low, high = clip_bounds(w.program, node)
    result = x if low is None else w.op("max", x, low)
    return result if high is None else w.op("min", result, high)


def _gelu(w: _Writer, node: Node, x: Operand) -> Operand:
    half = w.op("mul", x, 0.5)
    if node.attributes.get("approximate", "none") == "tanh":
        cube = w.op("mul", w.op("mul", x, x), w.op("mul", x, 0.044715))
        inner = w.op("tanh", w.op("mul", w.op("add", x, cube), math.sqrt(2 / math.pi)))
    else:
        inner = w.op("erf", w.op("mul", x, math.sqrt(0.5)))
    return w.op("mul", half, w.op("add", inner, 1.0))


def _swish(w: _Writer, node: Node, x: Operand) -> Operand:
    default = 1.702 if node.op == "QuickGelu" else 1.0
    return w.op("mul", x, w.sigmoid(w.op("mul", x, _attribute(node, "alpha", default))))


def _pow(w: _Writer, node: Node, x: Operand, exponent: Operand) -> Operand:
    """A square is one product, which is rounded once."""
    return w.op("mul", x, x) if is_square(w.program, node) else w.op("pow", x, exponent)


def _cast(w: _Writer, node: Node, x: Operand) -> Operand:
    kind = w.program.types[node.outputs[0]]
    if kind in FLOATS or not w.program.is_float(node.inputs[0]):
        return x
    if kind == onnx.TensorProto.BOOL:
        return w.op("equal", w.op("equal", x, 0.0), 0.0)
    return w.below_zero(x, w.op("floor", x), w.op("ceil", x))  # towards zero


_VARIADIC = frozenset(("Sum", "Max", "Min"))

_SAME_NAME = (
    "Abs Acos Acosh Add Asin Asinh Atan Atanh Ceil Cos Cosh Div Equal Erf Exp Floor Greater "
    "GreaterOrEqual Less LessOrEqual Log Max Min Mul Neg Round Sin Sinh Sqrt Sub Sum Tan Tanh "
    "Where"
)
_PRIMITIVES: Mapping[str, str] = {
    **{op: function_of(op) for op in _SAME_NAME.split()},
    "And": "min",
    "Or": "max",
}
_EXPANSIONS: Mapping[str, Callable[..., Operand]] = {
    "Cast": _cast,
    "Celu": _celu,
    "Clip": _clip,
    "Dropout": lambda w, node, x, *_: x,
    "Elu": lambda w, node, x: w.exponential_unit(x, _attribute(node, "alpha", 1.0)),
    "Gelu": _gelu,
    "HardSigmoid": lambda w, node, x: w.hard_sigmoid(
        x, _attribute(node, "alpha", 0.2), _attribute(node, "beta", 0.5)
    ),
    "HardSwish": lambda w, node, x: w.op("mul", x, w.hard_sigmoid(x, 1 / 6, 0.5)),
    "Identity": lambda w, node, x: x,
    "LeakyRelu": lambda w, node, x: w.below_zero(x, x, w.op("mul", x, _attribute(node, "alpha", 0.01))),
    "Mish": lambda w, node, x: w.op("mul", x, w.op("tanh", w.softplus(x))),
    "Not": lambda w, node, x: w.op("equal", x, 0.0),
    "PRelu": lambda w, node, x, slope: w.below_zero(x, x, w.op("mul", x, slope)),
    "Pow": _pow,
    "QuickGelu": _swish,
    "Reciprocal": lambda w, node, x: w.op("div", 1.0, x),
    "Relu": lambda w, node, x: w.op("max", x, 0.0),
    "Selu": _selu,
    "Sigmoid": lambda w, node, x: w.sigmoid(x),
    "Sign": lambda w, node, x: w.op("sub", w.op("greater", x, 0.0), w.op("less", x, 0.0)),
    "Softplus": lambda w, node, x: w.softplus(x),
    "Softsign": lambda w, node, x: w.op("div", x, w.op("add", 1.0, w.op("abs", x))),
    "Swish": _swish,
    "ThresholdedRelu": lambda w, node, x: w.op(
        "where", w.op("greater", x, _attribute(node, "alpha", 1.0)), x, 0.0
    ),
    "Xor": lambda w, node, a, b: w.op("abs", w.op("sub", a, b)),
}
"""Functions of a writer, a node and its operands."""
