"""Host layers in exact arithmetic: docs/host-ops.md, written as ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from converter.check.reference import floats, integers, rows
from converter.check.reference.emit import Emit
from converter.check.reference.strided import operand, store
from converter.ir.graph import HostLayer


def _attributes(layer: HostLayer) -> Any:
    return layer.attributes


def add(emit: Emit, layer: HostLayer) -> None:
    """sat8(rne(relu(sat8(rne(a * A)) + sat8(rne(b * B))) * C))."""
    attributes = _attributes(layer)
    a = emit.element(emit.scaled(emit.flat(layer.inputs[0]), attributes["a_scale"]))
    b = emit.element(emit.scaled(emit.flat(layer.inputs[1]), attributes["b_scale"]))
    total = emit.op("Add", emit.word(a), emit.word(b))
    if attributes["activation"] == "relu":
        total = emit.op("Max", total, emit.zero())
    emit.write_dense(layer.outputs[0], emit.element(emit.scaled(total, attributes["scale"])))


def copy(emit: Emit, layer: HostLayer) -> None:
    """Elements moved between two strided accesses."""
    attributes = _attributes(layer)
    value = emit.read(layer.inputs[0], attributes["offset"], attributes["shape"], attributes["strides"])
    emit.write(
        layer.outputs[0], value, attributes["out_offset"], attributes["shape"], attributes["out_strides"]
    )


def lookup(emit: Emit, layer: HostLayer) -> None:
    """table[q + 128]."""
    index = emit.op("Add", emit.cast(operand(emit, layer, 0), "int32"), emit.constant(np.int32(128)))
    store(emit, layer, emit.op("Gather", emit.flat(layer.inputs[1]), index))


def formula(emit: Emit, layer: HostLayer) -> None:
    """Primitives of one float32 value, one after the other."""
    attributes = _attributes(layer)
    x, results = operand(emit, layer, 0), list[str]()

    def primitive_operand(given: str) -> str:
        if given == "x":
            return x
        return results[int(given[1:])] if given[0] == "v" else emit.constant(np.float32(given))

    for step in attributes["formula"]:
        primitive, *values = step.split()
        values = [primitive_operand(given) for given in values]
        if primitive in integers.COMPARISONS:
            results.append(emit.cast(emit.op(integers.COMPARISONS[primitive], *values), "float32"))
        elif primitive == "where":
            results.append(emit.op("Where", _truth(emit, values[0]), *values[1:]))
        else:
            results.append(emit.op(primitive.capitalize(), *values))
    store(emit, layer, results[-1])


def fill(emit: Emit, layer: HostLayer) -> None:
    """Every element the same."""
    shape = emit.tensors[layer.outputs[0]].shape
    emit.write_dense(
        layer.outputs[0], emit.constant(np.full(shape, _attributes(layer)["value"], emit.element_type))
    )


def scale_shift(emit: Emit, layer: HostLayer) -> None:
    """sat8(rne(relu(f32(x) * multiplier + addend)))."""
    x = emit.cast(operand(emit, layer, 0), "float32")
    y = emit.op("Add", emit.op("Mul", x, operand(emit, layer, 1)), operand(emit, layer, 2))
    store(emit, layer, emit.element(_rectified(emit, layer, y)))


def _rectified(emit: Emit, layer: HostLayer, value: str) -> str:
    if _attributes(layer)["activation"] != "relu":
        return value
    return emit.op("Max", value, emit.constant(np.float32(0)))


def where(emit: Emit, layer: HostLayer) -> None:
    """condition != 0 ? sat8(rne(a * A)) : sat8(rne(b * B))."""
    attributes = _attributes(layer)
    condition = _truth(emit, operand(emit, layer, 0))
    a = emit.element(emit.scaled(operand(emit, layer, 1), attributes["a_scale"]))
    b = emit.element(emit.scaled(operand(emit, layer, 2), attributes["b_scale"]))
    store(emit, layer, emit.op("Where", condition, a, b))


def _truth(emit: Emit, value: str) -> str:
    return emit.cast(value, "bool")


_LOGIC = {"and": "And", "or": "Or", "xor": "Xor"}


def binary(emit: Emit, layer: HostLayer) -> None:
    """The functions of two values of docs/host-ops.md."""
    attributes = _attributes(layer)
    function = attributes["function"]
    a, b = operand(emit, layer, 0), operand(emit, layer, 1)
    a_scale, b_scale, scale = attributes["a_scale"], attributes["b_scale"], attributes["scale"]
    factor = emit.constant(np.float32(scale))
    if function in ("add", "sub"):
        total = emit.op(function.capitalize(), emit.scaled(a, a_scale), emit.scaled(b, b_scale))
        result = emit.element(emit.op("Mul", _rectified(emit, layer, total), factor))
    elif function == "mul":
        product = emit.cast(emit.op("Mul", emit.word(a), emit.word(b)), "float32")
        result = emit.element(emit.op("Mul", _rectified(emit, layer, product), factor))
    elif function == "div":
        result = emit.element(emit.op("Mul", _rectified(emit, layer, _quotient(emit, a, b)), factor))
    elif function in ("max", "min"):
        pair = (emit.element(emit.scaled(a, a_scale)), emit.element(emit.scaled(b, b_scale)))
        result = emit.op(function.capitalize(), *pair)
    elif function == "prelu":
        product = emit.cast(emit.op("Mul", emit.word(a), emit.word(b)), "float32")
        negative = emit.element(emit.op("Mul", product, factor))
        positive = emit.element(emit.scaled(a, a_scale))
        is_positive = emit.op("GreaterOrEqual", emit.word(a), emit.zero())
        result = emit.op("Where", is_positive, positive, negative)
    elif function in integers.COMPARISONS:
        pair = (emit.scaled(a, a_scale), emit.scaled(b, b_scale))
        result = emit.cast(emit.op(integers.COMPARISONS[function], *pair), emit.element_type)
    else:
        result = emit.cast(emit.op(_LOGIC[function], _truth(emit, a), _truth(emit, b)), emit.element_type)
    store(emit, layer, result)


def _quotient(emit: Emit, a: str, b: str) -> str:
    """f32(a) / f32(b); among integers 0 / 0 = 0 (a / 0 is an infinity that saturates)."""
    quotient = emit.op("Div", emit.cast(a, "float32"), emit.cast(b, "float32"))
    if emit.is_float:
        return quotient
    undefined = emit.op("IsNaN", quotient)
    return emit.op("Where", undefined, emit.constant(np.float32(0)), quotient)


def average_pool(emit: Emit, layer: HostLayer) -> None:
    """sat8(rne(f32(sum) * (ratio / f32(count))))."""
    attributes = _attributes(layer)
    value, (_, channels, height, width) = _channels_first(emit, layer.inputs[0])
    out_shape = emit.tensors[layer.outputs[0]].shape
    p, q = (1, out_shape[1]) if len(out_shape) == 3 else out_shape[1:3]
    top, left, bottom, right = attributes["pads"]
    kernel, stride, dilation = attributes["kernel"], attributes["stride"], attributes["dilation"]
    need = [
        (n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip((p, q), stride, kernel, dilation, strict=True)
    ]
    padding = [0, 0, top, left, 0, 0, max(0, need[0] - height - top), max(0, need[1] - width - left)]
    zero = emit.constant(np.float32(0))
    padded = emit.op("Pad", emit.cast(value, "float32"), emit.ints(padding), zero)
    ones = np.ones((channels, 1, *kernel), np.float32)
    window = {"strides": stride, "dilations": dilation, "kernel_shape": kernel}
    total = emit.op("Conv", padded, emit.constant(ones), group=channels, **window)
    counts = [
        _counts(n, s, k, d, before, after, size, bool(attributes["count_include_pad"]))
        for n, s, k, d, before, after, size in zip(
            (p, q), stride, kernel, dilation, (top, left), (bottom, right), (height, width), strict=True
        )
    ]
    # a window of nothing but padding has the mean 0
    divisor = np.maximum(counts[0][:, None] * counts[1][None, :], 1).astype(np.float32)
    factor = emit.constant(np.float32(attributes["ratio"]) / divisor)
    result = emit.element(emit.op("Mul", total, factor))
    emit.write_dense(layer.outputs[0], emit.op("Transpose", result, perm=[0, 2, 3, 1]))


def _counts(
    outputs: int, stride: int, kernel: int, dilation: int, before: int, after: int, size: int, with_pads: bool
) -> np.ndarray:
    """How many taps of each window count, along one axis."""
    taps = np.arange(outputs)[:, None] * stride + np.arange(kernel)[None, :] * dilation - before
    low, high = (-before, size + after) if with_pads else (0, size)
    return np.asarray(((taps >= low) & (taps < high)).sum(1))


def max_pool(emit: Emit, layer: HostLayer) -> None:
    """Largest element of each window; padding never wins."""
    attributes = _attributes(layer)
    value, shape = _channels_first(emit, layer.inputs[0])
    out_shape = emit.tensors[layer.outputs[0]].shape
    height, width = shape[2], shape[3]
    p, q = (1, out_shape[1]) if len(out_shape) == 3 else out_shape[1:3]
    bottom, right = (
        (count - 1) * stride + (kernel - 1) * dilation + 1 - size - before
        for count, stride, kernel, dilation, size, before in zip(
            (p, q),
            attributes["stride"],
            attributes["kernel"],
            attributes["dilation"],
            (height, width),
            attributes["pads"][:2],
            strict=True,
        )
    )
    top, left = attributes["pads"][:2]
    # pad with the smallest value explicitly, so that windows past the edge (ceil_mode) are expressed too
    value = emit.op(
        "Pad",
        value,
        emit.ints([0, 0, top, left, 0, 0, max(bottom, 0), max(right, 0)]),
        emit.constant(emit.lowest_of(layer.inputs[0])),
    )
    value = emit.op(
        "MaxPool",
        value,
        kernel_shape=attributes["kernel"],
        strides=attributes["stride"],
        dilations=attributes["dilation"],
    )
    emit.write_dense(layer.outputs[0], emit.op("Transpose", value, perm=[0, 2, 3, 1]))


def global_average_pool(emit: Emit, layer: HostLayer) -> None:
    """sat8(rne(float32(sum over H, W) * scale))."""
    value, _ = _channels_first(emit, layer.inputs[0])
    total = emit.op("ReduceSum", emit.word(value), emit.ints([2, 3]), keepdims=0)
    emit.write_dense(layer.outputs[0], emit.element(emit.scaled(total, _attributes(layer)["scale"])))


def _channels_first(emit: Emit, tensor: str) -> tuple[str, tuple[int, int, int, int]]:
    """An N H W C (or N W C) tensor as N C H W."""
    shape = emit.tensors[tensor].shape
    n, h, w, c = (shape[0], 1, *shape[1:]) if len(shape) == 3 else shape
    value = emit.reshape(emit.flat(tensor), (n, h, w, c))
    return emit.op("Transpose", value, perm=[0, 3, 1, 2]), (n, c, h, w)


HOST_OPS: Mapping[str, Callable[[Emit, HostLayer], None]] = {
    "add": add,
    "arg_max": rows.arg_max,
    "average_pool": average_pool,
    "binary": binary,
    "copy": copy,
    "fill": fill,
    "float_binary": floats.float_binary,
    "float_formula": formula,
    "float_max_pool": max_pool,
    "float_product": floats.float_product,
    "formula": formula,
    "gather": rows.gather,
    "global_average_pool": global_average_pool,
    "integer": integers.integer,
    "layer_norm": rows.layer_norm,
    "log_softmax": rows.log_softmax,
    "lookup": lookup,
    "max_pool": max_pool,
    "quantise": integers.quantise,
    "reduce": rows.reduce,
    "resize_linear": rows.resize_linear,
    "scale_shift": scale_shift,
    "select": integers.select,
    "softmax": rows.softmax,
    "to_float": floats.to_float,
    "to_int8": floats.to_int8,
    "where": where,
}
