"""Host layers in exact arithmetic: docs/host-ops.md, written as ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fadiff.converter.check.reference import floats, rows
from fadiff.converter.check.reference.emit import Emit, operand, sloped, store
from fadiff.converter.ir import host
from fadiff.converter.ir.graph import HostLayer
from fadiff.converter.ir.host import Integer, Quantise, Select

_BITWISE = {"and": "BitwiseAnd", "or": "BitwiseOr", "xor": "BitwiseXor"}
COMPARISONS = {
    "equal": "Equal",
    "greater": "Greater",
    "greater_or_equal": "GreaterOrEqual",
    "less": "Less",
    "less_or_equal": "LessOrEqual",
}


def integer(emit: Emit, layer: HostLayer, operator: Integer) -> None:
    """The functions of two integers of docs/host-ops.md."""
    function = operator.function
    a, b = operand(emit, layer, 0), operand(emit, layer, 1)
    if function in ("modulo", "remainder"):
        result = emit.op("Mod", a, b, fmod=int(function == "remainder"))
    elif function.startswith("shift"):
        pair = (emit.cast(v, "uint32") for v in (a, b))
        direction = function.removeprefix("shift_").upper()
        result = emit.cast(emit.op("BitShift", *pair, direction=direction), "int32")
    elif function == "not_equal":
        result = emit.op("Not", emit.op("Equal", a, b))
    else:
        result = emit.op({**_BITWISE, **COMPARISONS}.get(function, function.capitalize()), a, b)
    store(emit, layer, emit.cast(result, emit.tensors[layer.outputs[0]].dtype))


def select(emit: Emit, layer: HostLayer, operator: Select) -> None:
    """condition != 0 ? a : b."""
    condition = emit.cast(operand(emit, layer, 0), "bool")
    store(emit, layer, emit.op("Where", condition, operand(emit, layer, 1), operand(emit, layer, 2)))


def quantise(emit: Emit, layer: HostLayer, operator: Quantise) -> None:
    """An element: sat8(rne(f32(a) * scale))."""
    value = emit.cast(operand(emit, layer, 0), "float32")
    store(emit, layer, emit.element(emit.scaled(value, operator.scale)))


def add(emit: Emit, layer: HostLayer, operator: host.Add) -> None:
    """sat8(rne(relu(sat8(rne(a * A)) + sat8(rne(b * B))) * C))."""
    a = emit.element(emit.scaled(emit.flat(layer.inputs[0]), operator.a_scale))
    b = emit.element(emit.scaled(emit.flat(layer.inputs[1]), operator.b_scale))
    total = emit.op("Add", emit.word(a), emit.word(b))
    if operator.activation == "relu":
        total = emit.op("Max", total, emit.zero())
    emit.write_dense(layer.outputs[0], emit.element(emit.scaled(total, operator.scale)))


def copy(emit: Emit, layer: HostLayer, operator: host.Copy) -> None:
    """Elements moved between two strided accesses."""
    store(emit, layer, operand(emit, layer, 0))


def lookup(emit: Emit, layer: HostLayer, operator: host.Lookup) -> None:
    """table[q + 128]; of bytes q is what their eight bits are as int8."""
    index = emit.op("Add", emit.cast(operand(emit, layer, 0), "int32"), emit.constant(np.int32(128)))
    if emit.tensors[layer.inputs[0]].dtype == "uint8":
        index = emit.op("Mod", index, emit.constant(np.int32(256)))
    store(emit, layer, emit.op("Gather", emit.flat(layer.inputs[1]), index))


def table_product(emit: Emit, layer: HostLayer, operator: host.TableProduct) -> None:
    """table[a + 128] * b, requantised."""
    index = emit.op("Add", emit.cast(operand(emit, layer, 0), "int32"), emit.constant(np.int32(128)))
    a, b = emit.op("Gather", emit.flat(layer.inputs[2]), index), operand(emit, layer, 1)
    product = emit.cast(emit.op("Mul", emit.word(a), emit.word(b)), "float32")
    factor = emit.constant(np.float32(operator.scale))
    store(emit, layer, emit.element(emit.op("Mul", _rectified(emit, operator, product), factor)))


def formula(emit: Emit, layer: HostLayer, operator: host.Formula) -> None:
    """Primitives of one float32 value, one after the other."""
    x, results = operand(emit, layer, 0), list[str]()

    def primitive_operand(given: str) -> str:
        if given == "x":
            return x
        return results[int(given[1:])] if given[0] == "v" else emit.constant(np.float32(given))

    for step in operator.formula:
        primitive, *values = step.split()
        values = [primitive_operand(given) for given in values]
        if primitive in COMPARISONS:
            results.append(emit.cast(emit.op(COMPARISONS[primitive], *values), "float32"))
        elif primitive == "where":
            results.append(emit.op("Where", _truth(emit, values[0]), *values[1:]))
        else:
            results.append(emit.op(primitive.capitalize(), *values))
    store(emit, layer, results[-1])


def fill(emit: Emit, layer: HostLayer, operator: host.Fill) -> None:
    """Every element the same."""
    shape = emit.tensors[layer.outputs[0]].shape
    emit.write_dense(layer.outputs[0], emit.constant(np.full(shape, operator.value, emit.graph.element_type)))


def scale_shift(emit: Emit, layer: HostLayer, operator: host.ScaleShift) -> None:
    """sat8(rne(relu(f32(x) * multiplier + addend))), or without sat8(rne(...)) beside an int8 array."""
    x = emit.cast(operand(emit, layer, 0), "float32")
    y = emit.op("Add", emit.op("Mul", x, operand(emit, layer, 1)), operand(emit, layer, 2))
    y = _rectified(emit, operator, y)
    store(emit, layer, y if emit.graph.is_kept_float(layer) else emit.element(y))


def _rectified(emit: Emit, operator: host.ScaleShift | host.Binary | host.TableProduct, value: str) -> str:
    if operator.activation != "relu":
        return value
    return emit.op("Max", value, emit.constant(np.float32(0)))


def where(emit: Emit, layer: HostLayer, operator: host.Where) -> None:
    """condition != 0 ? sat8(rne(a * A)) : sat8(rne(b * B))."""
    condition = _truth(emit, operand(emit, layer, 0))
    a = emit.element(emit.scaled(operand(emit, layer, 1), operator.a_scale))
    b = emit.element(emit.scaled(operand(emit, layer, 2), operator.b_scale))
    store(emit, layer, emit.op("Where", condition, a, b))


def _truth(emit: Emit, value: str) -> str:
    return emit.cast(value, "bool")


def binary(emit: Emit, layer: HostLayer, operator: host.Binary) -> None:
    """The functions of two values of docs/host-ops.md."""
    if emit.graph.is_kept_float(layer):
        floats.binary(emit, layer, operator)
        return
    function = operator.function
    a, b = operand(emit, layer, 0), operand(emit, layer, 1)
    a_scale, b_scale, scale = operator.a_scale, operator.b_scale, operator.scale
    factor = emit.constant(np.float32(scale))
    if function in ("add", "sub"):
        total = emit.op(function.capitalize(), emit.scaled(a, a_scale), emit.scaled(b, b_scale))
        result = emit.element(emit.op("Mul", _rectified(emit, operator, total), factor))
    elif function == "mul":
        product = emit.cast(emit.op("Mul", emit.word(a), emit.word(b)), "float32")
        result = emit.element(emit.op("Mul", _rectified(emit, operator, product), factor))
    elif function == "div":
        result = emit.element(emit.op("Mul", _rectified(emit, operator, _quotient(emit, a, b)), factor))
    elif function in ("max", "min"):
        pair = (emit.element(emit.scaled(a, a_scale)), emit.element(emit.scaled(b, b_scale)))
        result = emit.op(function.capitalize(), *pair)
    elif function == "prelu":
        product = emit.cast(emit.op("Mul", emit.word(a), emit.word(b)), "float32")
        negative = emit.element(emit.op("Mul", product, factor))
        result = sloped(emit, a, emit.element(emit.scaled(a, a_scale)), negative)
    elif function in COMPARISONS:
        pair = (emit.scaled(a, a_scale), emit.scaled(b, b_scale))
        result = emit.cast(emit.op(COMPARISONS[function], *pair), emit.graph.element_type)
    else:
        result = emit.cast(
            emit.op(function.capitalize(), _truth(emit, a), _truth(emit, b)), emit.graph.element_type
        )
    store(emit, layer, result)


def _quotient(emit: Emit, a: str, b: str) -> str:
    """f32(a) / f32(b); among integers 0 / 0 = 0 (a / 0 is an infinity that saturates)."""
    quotient = emit.op("Div", emit.cast(a, "float32"), emit.cast(b, "float32"))
    if emit.is_float:
        return quotient
    undefined = emit.op("IsNaN", quotient)
    return emit.op("Where", undefined, emit.constant(np.float32(0)), quotient)


def average_pool(emit: Emit, layer: HostLayer, operator: host.AveragePool) -> None:
    """sat8(rne(f32(sum) * (ratio / f32(count))))."""
    value, (_, channels, height, width) = _channels_first(emit, layer.inputs[0])
    p, q = _out_size(emit, layer)
    top, left, bottom, right = operator.window.pads
    kernel, stride, dilation = operator.window.kernel, operator.window.stride, operator.window.dilation
    value, window = emit.cast(value, "float32"), operator.window
    padded = _padded(emit, value, window, (height, width), (p, q), np.float32(0))
    ones = emit.constant(np.ones((channels, 1, *kernel), np.float32))
    total = emit.op("Conv", padded, ones, group=channels, **_attributes(window))
    counts = [
        _counts(n, s, k, d, before, after, size, operator.count_include_pad)
        for n, s, k, d, before, after, size in zip(
            (p, q), stride, kernel, dilation, (top, left), (bottom, right), (height, width), strict=True
        )
    ]
    # a window of nothing but padding has the mean 0
    divisor = np.maximum(counts[0][:, None] * counts[1][None, :], 1).astype(np.float32)
    factor = emit.constant(np.float32(operator.ratio) / divisor)
    result = emit.element(emit.op("Mul", total, factor))
    emit.write_dense(layer.outputs[0], emit.op("Transpose", result, perm=[0, 2, 3, 1]))


def _counts(
    outputs: int, stride: int, kernel: int, dilation: int, before: int, after: int, size: int, with_pads: bool
) -> np.ndarray:
    """How many taps of each window count, along one axis."""
    taps = np.arange(outputs)[:, None] * stride + np.arange(kernel)[None, :] * dilation - before
    low, high = (-before, size + after) if with_pads else (0, size)
    return np.asarray(((taps >= low) & (taps < high)).sum(1))


def max_pool(emit: Emit, layer: HostLayer, operator: host.MaxPool) -> None:
    """Largest element of each window; padding never wins."""
    value, (_, _, *size) = _channels_first(emit, layer.inputs[0])
    lowest = emit.lowest_of(layer.inputs[0])
    padded = _padded(emit, value, operator.window, size, _out_size(emit, layer), lowest)
    value = emit.op("MaxPool", padded, **_attributes(operator.window))
    emit.write_dense(layer.outputs[0], emit.op("Transpose", value, perm=[0, 2, 3, 1]))


def _out_size(emit: Emit, layer: HostLayer) -> Sequence[int]:
    """Height and width of the result."""
    shape = emit.tensors[layer.outputs[0]].shape
    return (1, shape[1]) if len(shape) == 3 else shape[1:3]


def _padded(
    emit: Emit, value: str, window: host.PoolWindow, size: Sequence[int], out: Sequence[int], fill: np.generic
) -> str:
    """An image with the padding that windows touch, past the edge (ceil_mode), too."""
    axes = zip(size, out, window.stride, window.kernel, window.dilation, window.pads[:2], strict=True)
    behind = [max(0, (n - 1) * s + (k - 1) * d + 1 - size - before) for size, n, s, k, d, before in axes]
    return emit.op("Pad", value, emit.ints([0, 0, *window.pads[:2], 0, 0, *behind]), emit.constant(fill))


def _attributes(window: host.PoolWindow) -> dict[str, Sequence[int]]:
    return {"strides": window.stride, "dilations": window.dilation, "kernel_shape": window.kernel}


def global_average_pool(emit: Emit, layer: HostLayer, operator: host.GlobalAveragePool) -> None:
    """sat8(rne(float32(sum over H, W) * scale))."""
    value, _ = _channels_first(emit, layer.inputs[0])
    total = emit.op("ReduceSum", emit.word(value), emit.ints([2, 3]), keepdims=0)
    emit.write_dense(layer.outputs[0], emit.element(emit.scaled(total, operator.scale)))


def _channels_first(emit: Emit, tensor: str) -> tuple[str, tuple[int, int, int, int]]:
    """An N H W C (or N W C) tensor as N C H W."""
    shape = emit.tensors[tensor].shape
    n, h, w, c = (shape[0], 1, *shape[1:]) if len(shape) == 3 else shape
    value = emit.reshape(emit.flat(tensor), (n, h, w, c))
    return emit.op("Transpose", value, perm=[0, 3, 1, 2]), (n, c, h, w)


_LAYERS: Mapping[type[host.HostOperator], Callable[[Emit, HostLayer, Any], None]] = {
    host.Add: add,
    host.ArgMax: rows.arg_max,
    host.AveragePool: average_pool,
    host.Binary: binary,
    host.Copy: copy,
    host.Exponentials: rows.exponentials,
    host.Fill: fill,
    host.FloatProduct: floats.float_product,
    host.FloatSums: floats.float_sums,
    host.Formula: formula,
    host.Gather: rows.gather,
    host.GlobalAveragePool: global_average_pool,
    host.Integer: integer,
    host.InverseRoot: rows.inverse_root,
    host.LayerNorm: rows.layer_norm,
    host.LogSoftmax: rows.log_softmax,
    host.Lookup: lookup,
    host.TableProduct: table_product,
    host.MaxPool: max_pool,
    host.Moments: rows.moments,
    host.Planes: floats.planes,
    host.Quantise: quantise,
    host.Reduce: rows.reduce,
    host.ResizeLinear: rows.resize_linear,
    host.ScaleShift: scale_shift,
    host.Scatter: rows.scatter,
    host.Select: select,
    host.Softmax: rows.softmax,
    host.ToFloat: floats.to_float,
    host.ToInt8: floats.to_int8,
    host.Where: where,
}


def host_layer(emit: Emit, layer: HostLayer) -> None:
    """One host layer as ONNX nodes."""
    _LAYERS[type(layer.operator)](emit, layer, layer.operator)
