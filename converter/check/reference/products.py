"""Convolutions and matrix products: in exact integer arithmetic, or float32 sums rounded once.

ONNX Runtime's float32 kernels are exact as long as every partial sum is an integer below 2^24,
whatever the order of additions.  The bound 128 * sum(|weights|) proves that per output channel;
where it fails the reduction is cut into pieces that satisfy it, and the pieces are added in int32.

Graphs in float32 are summed in float64, tap by tap, and rounded once: where large terms cancel, ONNX
Runtime's own float32 sums err more than the array's.
"""

from __future__ import annotations

import numpy as np

from fadiff.converter.check.reference.emit import Emit
from fadiff.converter.ir.graph import TensorCoreLayer

_EXACT = 2**24
_LARGEST_INPUT = 128
_EXACT_LENGTH = _EXACT // (_LARGEST_INPUT * _LARGEST_INPUT)
"""Two computed operands: 1024 products of at most 128 * 128 stay within 2^24."""


def product(emit: Emit, layer: TensorCoreLayer) -> None:
    """acc = sum(input * weight) + bias (int32), ReLU, then sat8(rne(float32(acc) * scale)), or acc itself."""
    dims = layer.dims
    if layer.op in ("gemm", "bmm"):
        accumulator = _matrix(emit, layer)
    else:
        accumulator = _taps(emit, layer) if emit.is_float else _convolution(emit, layer)
    if layer.bias is not None:
        bias = emit.constant(np.asarray(emit.tensors[layer.bias].data).reshape(dims.G, 1, 1, 1, dims.K))
        accumulator = emit.op("Add", accumulator, _exact(emit, bias) if emit.is_float else bias)
    if emit.is_float:
        accumulator = emit.cast(accumulator, "float32")
    if layer.activation == "relu":
        if emit.is_float:
            emit.unclipped.setdefault(layer.output.tensor, []).append(accumulator)
        accumulator = emit.op("Max", accumulator, emit.zero())
    if layer.polynomial is not None:
        accumulator = _igelu(emit, accumulator, *layer.polynomial)
    sizes = (dims.G, dims.N, dims.P, dims.Q, dims.K)
    result = accumulator
    if emit.tensors[layer.output.tensor].dtype != "int32":
        result = emit.element(_scaled(emit, layer, accumulator, sizes))
    emit.write(layer.output.tensor, result, layer.output.offset, sizes, layer.output.strides)


def _igelu(emit: Emit, q: str, b: int, c: int) -> str:
    """q * (sign(q) * ((min(|q|, -b) + b)^2 + c) + c), in int32."""
    offset = emit.constant(np.int32(c))
    size = emit.op("Min", emit.op("Abs", q), emit.constant(np.int32(-b)))
    below = emit.op("Add", size, emit.constant(np.int32(b)))
    polynomial = emit.op("Add", emit.op("Mul", below, below), offset)
    signed = emit.op("Where", emit.op("Less", q, emit.zero()), emit.op("Neg", polynomial), polynomial)
    return emit.op("Mul", q, emit.op("Add", signed, offset))


def _scaled(emit: Emit, layer: TensorCoreLayer, accumulator: str, sizes: tuple[int, ...]) -> str:
    """The product with the layer's scale, or with that of each row or channel, which is rounded before."""
    scales = layer.row_scale
    if layer.channel_scale is not None:
        factors = np.asarray(emit.tensors[layer.channel_scale].data) * np.float32(layer.scale)
        factors = factors.reshape(layer.dims.G, 1, 1, 1, layer.dims.K)
        return emit.op("Mul", emit.cast(accumulator, "float32"), emit.constant(factors))
    if scales is None:
        return emit.scaled(accumulator, layer.scale)
    rows = emit.scaled(emit.read(scales.tensor, scales.offset, sizes, scales.strides), layer.scale)
    return emit.op("Mul", emit.cast(accumulator, "float32"), rows)


def _convolution(emit: Emit, layer: TensorCoreLayer) -> str:
    dims, view = layer.dims, layer.input
    height, width = layer.input_size
    sizes = (dims.N, dims.G, dims.C, height, width)
    g, n, h, w, c = view.strides
    image = emit.read(view.tensor, view.offset, sizes, (n, g, c, h, w))
    image = _exact(emit, image)
    weight = _constant_weight(emit, layer).transpose(0, 4, 3, 1, 2)  # G K C R S
    out: str | None = None
    for begin, end in _pieces(weight, 2):
        piece = image
        if end - begin < dims.C:
            piece = emit.op("Slice", image, emit.ints([begin]), emit.ints([end]), emit.ints([2]))
        piece = emit.reshape(piece, (dims.N, dims.G * (end - begin), height, width))
        kernel = weight[:, :, begin:end].reshape(dims.G * dims.K, end - begin, dims.R, dims.S)
        part = emit.op(
            "Conv",
            piece,
            _exact(emit, emit.constant(kernel)),
            group=dims.G,
            kernel_shape=[dims.R, dims.S],
            strides=layer.stride,
            dilations=layer.dilation,
            pads=layer.pads,
        )
        part = emit.word(part)
        out = part if out is None else emit.op("Add", out, part)
    assert out is not None
    out = emit.reshape(out, (dims.N, dims.G, dims.K, dims.P, dims.Q))
    return emit.op("Transpose", out, perm=[1, 0, 3, 4, 2])


def _taps(emit: Emit, layer: TensorCoreLayer) -> str:
    """A convolution of floats as one matrix product per kernel tap."""
    dims, view = layer.dims, layer.input
    height, width = layer.input_size
    g, n, h, w, c = view.strides
    image = emit.read(view.tensor, view.offset, (dims.G, dims.N, height, width, dims.C), (g, n, h, w, c))
    top, left, bottom, right = layer.pads
    pads = emit.ints([0, 0, top, left, 0, 0, 0, bottom, right, 0])
    image = emit.op("Pad", _exact(emit, image), pads)
    weight = _constant_weight(emit, layer)
    rows = dims.N * dims.P * dims.Q
    out: str | None = None
    for r, s in np.ndindex(dims.R, dims.S):
        y, x = r * layer.dilation[0], s * layer.dilation[1]
        ends = (y + (dims.P - 1) * layer.stride[0] + 1, x + (dims.Q - 1) * layer.stride[1] + 1)
        seen = emit.op(
            "Slice", image, emit.ints([y, x]), emit.ints(ends), emit.ints([2, 3]), emit.ints(layer.stride)
        )
        kernel = _exact(emit, emit.constant(weight[:, r, s]))
        part = emit.op("MatMul", emit.reshape(seen, (dims.G, rows, dims.C)), kernel)
        out = part if out is None else emit.op("Add", out, part)
    assert out is not None
    return emit.reshape(out, (dims.G, dims.N, dims.P, dims.Q, dims.K))


def _exact(emit: Emit, value: str) -> str:
    """Elements in the type that sums them without rounding (of floats: hardly any)."""
    return emit.cast(value, "float64" if emit.is_float else "float32")


def _matrix(emit: Emit, layer: TensorCoreLayer) -> str:
    dims, view = layer.dims, layer.input
    rows = dims.N * dims.P * dims.Q
    left = emit.read(view.tensor, view.offset, (dims.G, dims.N, dims.P, dims.Q, dims.C), view.strides)
    left = _exact(emit, emit.reshape(left, (dims.G, rows, dims.C)))
    data = emit.tensors[layer.weight.tensor].data
    if data is None:
        g, _, _, c, k = layer.weight.strides
        right = emit.read(layer.weight.tensor, layer.weight.offset, (dims.G, dims.C, dims.K), (g, c, k))
        right = _exact(emit, right)
        length = dims.C if emit.is_float else _EXACT_LENGTH
        pieces = [(i, min(i + length, dims.C)) for i in range(0, dims.C, length)]
    else:
        matrix = _constant_weight(emit, layer).reshape(dims.G, dims.C, dims.K)
        right = ""
        pieces = [(0, dims.C)] if emit.is_float else _pieces(matrix, 1)
    out: str | None = None
    for begin, end in pieces:
        a, b = left, right
        if end - begin < dims.C:
            a = emit.op("Slice", left, emit.ints([begin]), emit.ints([end]), emit.ints([2]))
        if data is not None:  # constants stay int8 until they are used: a quarter of the bytes
            b = _exact(emit, emit.constant(matrix[:, begin:end]))
        elif end - begin < dims.C:
            b = emit.op("Slice", right, emit.ints([begin]), emit.ints([end]), emit.ints([1]))
        part = emit.word(emit.op("MatMul", a, b))
        out = part if out is None else emit.op("Add", out, part)
    assert out is not None
    return emit.reshape(out, (dims.G, dims.N, dims.P, dims.Q, dims.K))


def _constant_weight(emit: Emit, layer: TensorCoreLayer) -> np.ndarray:
    """Weights [G, R, S, C, K] as a numpy view of the constant."""
    data = np.asarray(emit.tensors[layer.weight.tensor].data).reshape(-1)
    dims = layer.dims
    return np.lib.stride_tricks.as_strided(
        data[layer.weight.offset :],
        (dims.G, dims.R, dims.S, dims.C, dims.K),
        tuple(stride * data.itemsize for stride in layer.weight.strides),
        writeable=False,
    )


def _pieces(weight: np.ndarray, axis: int) -> list[tuple[int, int]]:
    """Ranges of the C axis over which every output channel's sum of |weights| is small enough.

    `weight` is [G, K, C, R, S] with axis 2, or [G, C, K] with axis 1.
    """
    pieces, begin = [], 0
    slices = np.moveaxis(weight, axis, 0)
    running = np.zeros(slices.shape[1] * slices.shape[2], np.int64)
    for i, part in enumerate(slices):
        row = np.abs(part.astype(np.int32)).reshape(len(running), -1).sum(axis=1)
        if i > begin and int((running + row).max()) * _LARGEST_INPUT > _EXACT:
            pieces.append((begin, i))
            begin, running = i, np.zeros_like(running)
        running = running + row
    return [*pieces, (begin, weight.shape[axis])]
