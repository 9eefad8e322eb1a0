"""Layers that are kept in float32 beside an int8 array: docs/host-ops.md (Layers in float), to the bit.

Every product and every sum is rounded on its own, in the order of the C: ONNX Runtime's own kernels sum in
an order of theirs.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from fadiff.converter.check.reference.emit import Emit, operand, sloped, store
from fadiff.converter.ir.graph import HostLayer
from fadiff.converter.ir.host import (
    WIDE_LEAST,
    WIDE_STEPS,
    Binary,
    FloatProduct,
    FloatSums,
    Planes,
    ToFloat,
    ToInt8,
)


def to_float(emit: Emit, layer: HostLayer, operator: ToFloat) -> None:
    """f32(x) * scale."""
    emit.write_dense(layer.outputs[0], emit.scaled(emit.flat(layer.inputs[0]), operator.scale))


def to_int8(emit: Emit, layer: HostLayer, operator: ToInt8) -> None:
    """sat8(rne(x / scale))."""
    steps = emit.op("Div", emit.flat(layer.inputs[0]), emit.constant(np.float32(operator.scale)))
    emit.write_dense(layer.outputs[0], emit.element(steps))


def planes(emit: Emit, layer: HostLayer, _: Planes) -> None:
    """rne(x / step) as 128 high + low, low from -64 to 63."""
    x, (integers, step) = emit.flat(layer.inputs[0]), layer.outputs
    largest = emit.op("ReduceMax", emit.op("Abs", x), keepdims=1)
    seen = emit.op("Greater", largest, emit.constant(np.float32(WIDE_LEAST)))
    unit = emit.op("Div", largest, emit.constant(np.float32(WIDE_STEPS)))
    emit.write_dense(step, emit.op("Where", seen, unit, emit.constant(np.ones(1, np.float32))))
    steps = emit.op("Round", emit.op("Div", x, emit.flat(step)))
    shifted = emit.op("Add", steps, emit.constant(np.float32(64)))
    high = emit.op("Floor", emit.op("Mul", shifted, emit.constant(np.float32(1 / 128))))
    low = emit.op("Sub", steps, emit.op("Mul", high, emit.constant(np.float32(128))))
    both = emit.op("Concat", high, low, axis=0)
    emit.write_dense(integers, emit.cast(both, "int8"))


def float_sums(emit: Emit, layer: HostLayer, operator: FloatSums) -> None:
    """(128 f32(high) + f32(low)) * (step * scale) + bias, every step in float32."""
    sums, step, scales, *bias = layer.inputs
    channels = emit.tensors[scales].size
    pixels = emit.tensors[layer.outputs[0]].size // channels
    both = emit.cast(emit.reshape(emit.flat(sums), (2, pixels, channels)), "float32")
    high, low = (emit.op("Gather", both, emit.constant(np.int64(plane)), axis=0) for plane in (0, 1))
    total = emit.op("Add", emit.op("Mul", high, emit.constant(np.float32(128))), low)
    value = emit.op("Mul", total, emit.op("Mul", emit.flat(step), emit.flat(scales)))
    if bias:
        value = emit.op("Add", value, emit.flat(bias[0]))
    emit.write_dense(layer.outputs[0], _bounded(emit, operator, value))


def binary(emit: Emit, layer: HostLayer, operator: Binary) -> None:
    """One operation, then ReLU and upper bound."""
    a, b = operand(emit, layer, 0), operand(emit, layer, 1)
    if operator.function == "prelu":
        value = sloped(emit, a, a, emit.op("Mul", a, b))
    else:
        value = emit.op(operator.function.capitalize(), a, b)
    store(emit, layer, _bounded(emit, operator, value))


def float_product(emit: Emit, layer: HostLayer, operator: FloatProduct) -> None:
    """Bias, then one product after the other: kernel rows, kernel columns, input channels."""
    g, n, k, c, p, q, r, s = operator.dims
    pixels = n * p * q
    weight, offset, strides = layer.inputs[1], operator.weight.offset, operator.weight.strides
    total = emit.constant(np.zeros((g, 1, k), np.float32))
    if len(layer.inputs) > 2:
        total = emit.reshape(emit.flat(layer.inputs[2]), (g, 1, k))
    total = emit.op("Expand", total, emit.ints((g, pixels, k)))
    image = _padded(emit, layer, operator)
    for y, x in np.ndindex(r, s):
        seen = emit.reshape(_seen(emit, operator, image, y, x), (c, g, pixels, 1))
        start = offset + y * strides[1] + x * strides[2]
        weights = emit.read(weight, start, (c, g, 1, k), (strides[3], strides[0], 0, strides[4]))
        total = emit.op("Scan", total, seen, weights, body=_body(), num_scan_inputs=2)
    sizes = (g, n, p, q, k)
    value = _bounded(emit, operator, emit.reshape(total, sizes))
    emit.write(layer.outputs[0], value, operator.output.offset, sizes, operator.output.strides)


def _padded(emit: Emit, layer: HostLayer, operator: FloatProduct) -> str:
    """The input with its padding: [G, N, H, W, C]."""
    g, n, _, c, *_ = operator.dims
    sizes = (g, n, *operator.input_size, c)
    image = emit.read(layer.inputs[0], operator.input.offset, sizes, operator.input.strides)
    top, left, bottom, right = operator.pads
    return emit.op("Pad", image, emit.ints([0, 0, top, left, 0, 0, 0, bottom, right, 0]))


def _seen(emit: Emit, operator: FloatProduct, image: str, y: int, x: int) -> str:
    """Elements that one tap of the kernel meets: [C, G, N, P, Q]."""
    p, q = operator.dims[4:6]
    strides, (apart, aside) = operator.stride, operator.dilation
    starts = (y * apart, x * aside)
    ends = (starts[0] + (p - 1) * strides[0] + 1, starts[1] + (q - 1) * strides[1] + 1)
    axes = emit.ints((2, 3))
    tap = emit.op("Slice", image, emit.ints(starts), emit.ints(ends), axes, emit.ints(strides))
    return emit.op("Transpose", tap, perm=[4, 0, 1, 2, 3])


def _body() -> onnx.GraphProto:
    """total + x * w, both rounded."""
    values = [helper.make_empty_tensor_value_info(name) for name in ("total", "x", "w")]
    for value in values:
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["term"]),
        helper.make_node("Add", ["total", "term"], ["sum"]),
    ]
    result = helper.make_empty_tensor_value_info("sum")
    result.type.tensor_type.elem_type = TensorProto.FLOAT
    return helper.make_graph(nodes, "product", values, [result])


def _bounded(emit: Emit, operator: Binary | FloatProduct | FloatSums, value: str) -> str:
    if operator.activation == "relu":
        value = emit.op("Max", value, emit.constant(np.float32(0)))
    if operator.ceiling is not None:
        value = emit.op("Min", value, emit.constant(np.float32(operator.ceiling)))
    return value
