"""Tensor-core layers: convolutions, also transposed ones, and matrix products with constant weights.

The array pads with the integer 0.  A value that has a zero point is stored in a larger image instead, whose
border holds that; the convolution reads it without padding.  Who writes the value writes into that image
(write-in-place), so that only the border costs anything: copies of one number by the core.

ConvTranspose is one convolution per phase of the stride: output pixels o with the same (o + pad) modulo
stride see the same taps, so each phase is a stride-1 convolution of the input with every stride-th tap,
reversed, that writes every stride-th output pixel.  No multiplication by inserted zeros remains.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from fadiff.converter.ir.builder import weight_view
from fadiff.converter.ir.graph import TensorCoreLayer, View
from fadiff.converter.ir.loops import Dims
from fadiff.converter.ir.operators import window_of
from fadiff.converter.ir.program import Node
from fadiff.converter.ir.strided import StridedView, dense, merged
from fadiff.converter.lower import constraints as limits
from fadiff.converter.lower.constraints import Operator
from fadiff.converter.lower.context import IMAGE_ORDER, Lowering, image_shape, view
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.weights import Quantised

Pads = tuple[int, int, int, int]
"""Top, left, bottom, right."""


def bordered(lowering: Lowering, node: Node) -> StridedView:
    """The input of a convolution where that has a zero point: the image and the border that it needs.

    All convolutions that read the value share one image, which has the widest border.
    """
    value = node.inputs[0]
    pads = _pads(lowering, node)
    readers = [reader for reader in lowering.program.consumers(value) if reader.op == "Conv"]
    top, left, bottom, right = np.max([_pads(lowering, reader) for reader in readers], axis=0).tolist()
    widest = (top, left, bottom, right)
    if value not in lowering.bordered:
        lowering.bordered[value] = _stored(lowering, value, widest)
    image = lowering.bordered[value]
    rank = len(image.axes)
    for axis, before, most, after in _spatial(rank, pads, widest):
        count = lowering.program.shapes[value][axis] + before + after
        part = image.slice(axis, most - before, 1, count)
        assert part is not None
        image = part
    return image


def _stored(lowering: Lowering, value: str, pads: Pads) -> StridedView:
    """The value in the middle of a larger image, and its zero point around it."""
    inner, zero = lowering.value(value), lowering.zero(value)
    rank = len(inner.axes)
    shape = list(inner.shape)
    for axis, before, _, after in _spatial(rank, pads, pads):
        shape[axis] += before + after
    order = IMAGE_ORDER if rank == 4 else (0, 2, 1)
    tensor = lowering.graph.tensor(
        f"{inner.tensor}.bordered", tuple(shape[i] for i in order), "int8", inner.scale, zero=zero
    )
    whole = dense(tensor, tuple(shape), inner.scale, order)
    number = lowering.graph.tensor(f"{tensor}.zero", (1,), "int8", inner.scale, np.array([zero], np.int8))
    one = dense(number, (1,) * rank, inner.scale)
    middle = whole
    for axis, before, _, after in _spatial(rank, pads, pads):
        size = inner.shape[axis]
        for start, count in ((0, before), (before + size, after)):
            if count:  # the strip of this side, as wide as what the axes before have left
                strip = middle.slice(axis, start, 1, count)
                assert strip is not None
                lowering.move(one.expand(strip.shape), strip, f"border{axis}{'<' if start == 0 else '>'}")
        part = middle.slice(axis, before, 1, size)
        assert part is not None
        middle = part
    lowering.move(inner, middle, "inside")
    return whole


def _pads(lowering: Lowering, node: Node) -> Pads:
    shape = lowering.program.shapes[node.inputs[0]]
    plane = (shape[2], shape[3]) if len(shape) == 4 else (1, shape[2])
    return window_of(node, plane, lowering.program.shapes[node.inputs[1]][2:]).pads


def _spatial(rank: int, pads: Pads, widest: Pads) -> list[tuple[int, int, int, int]]:
    """Spatial axes, of each its number, what is before it, what is before it at most, and behind it."""
    top, left, bottom, right = pads
    sides = [(top, widest[0], bottom), (left, widest[1], right)][4 - rank :]
    return [(axis + 2, *side) for axis, side in enumerate(sides)]


def lower_conv(lowering: Lowering, step: Step) -> None:
    """Conv (1-D, 2-D; any groups): weights K C R S become [G, R, S, C, K]."""
    node = step.head
    weight = lowering.weight(node.inputs[1])
    assert weight is not None
    groups = int(node.attributes.get("group", 1))
    data = weight.data if weight.data.ndim == 4 else weight.data[:, :, None, :]
    out_channels, per_group, r, s = data.shape
    n, height, width, channels = image_shape(lowering.program.shapes[node.inputs[0]])
    window = window_of(node, (height, width), weight.data.shape[2:])
    pads, source = window.pads, lowering.value(node.inputs[0])
    if lowering.zero(node.inputs[0]) and any(pads):
        source, pads = bordered(lowering, node), (0, 0, 0, 0)
        _, height, width, _ = image_shape(source.shape)
    source, strides = lowering.image(source)
    dims = Dims(
        groups, n, out_channels // groups, channels // groups, window.output[0], window.output[1], r, s
    )
    depthwise = groups > 1 and dims.C == 1 and dims.K == 1
    stored = data.reshape(groups, dims.K, per_group, r, s).transpose(0, 3, 4, 2, 1)
    rank = len(source.axes)
    out = lowering.output(step, (0, *range(2, rank), 1))
    image = (window.output[0] * window.output[1] * out_channels, window.output[1] * out_channels)
    lowering.graph.tensor_core(
        TensorCoreLayer(
            step.name,
            "depthwise" if depthwise else "conv",
            dims,
            view(source, dims.C, *strides),
            weight_view(lowering.weights(node.inputs[1], stored, weight), dims),
            view(out, dims.K, *image, out_channels, 1),
            (height, width),
            bias=lowering.bias(step, groups, dims.K),
            stride=window.stride,
            dilation=window.dilation,
            pads=pads,
            activation=lowering.activation(step),
            onnx_nodes=step.onnx_nodes,
            channel_scale=lowering.channel_scale(step, groups, weight),
            channel_block=weight.block,
        ),
        scales=(source.scale or 1.0, weight.scale, out.scale or 1.0),
    )


def lower_gemm(lowering: Lowering, step: Step) -> None:
    """Gemm with constant B: rows become P, transposes and alpha fold into the weights."""
    node = step.head
    weight = lowering.weight(node.inputs[1])
    assert weight is not None
    matrix = weight.data.T if node.attributes.get("transB", 0) else weight.data
    alpha = np.float32(node.attributes.get("alpha", 1.0))
    if lowering.is_float:
        product = replace(weight, data=matrix * alpha)
    else:
        product = replace(weight, data=matrix, step=weight.step * alpha)
    value = lowering.value(node.inputs[0])
    if node.attributes.get("transA", 0):
        value = value.transpose((1, 0))
    lower_matrix_product(lowering, step, value, product)


def lower_matrix_product(lowering: Lowering, step: Step, value: StridedView, weight: Quantised) -> None:
    """[..., M, C] times a constant [C, K]: all leading axes are rows."""
    c, k = weight.data.shape
    rows = value.size // c
    order, merged_c = _reduction_order(value)
    flat = value.reshape((rows, c)) if merged_c is not None else None
    factors = merged(flat.axes[0]) if flat is not None else ()
    repeated = any(stride == 0 for _, stride in factors)  # mvin with stride 0 fetches one row for all
    if flat is None or len(factors) > 1 or repeated:
        flat = lowering.copy(value).reshape((rows, c))
        assert flat is not None
        order, merged_c, factors = None, (c, 1), merged(flat.axes[0])
    matrix = weight.data
    if order is not None:
        sizes = [size for size, _ in merged(value.axes[-1])]
        matrix = matrix.reshape(*sizes, k).transpose(*order, len(order)).reshape(c, k)
    row_stride = factors[0][1] if factors else c
    dims = Dims(K=k, C=c, P=rows)
    out = lowering.output(step)
    lowering.graph.tensor_core(
        TensorCoreLayer(
            step.name,
            "gemm",
            dims,
            view(flat, rows * row_stride, rows * row_stride, row_stride, row_stride, 1),
            weight_view(lowering.weights(step.head.inputs[1], matrix.reshape(1, 1, 1, c, k), weight), dims),
            view(out, rows * k, rows * k, k, k, 1),
            (rows, 1),
            bias=lowering.bias(step, 1, k),
            activation=lowering.activation(step),
            onnx_nodes=step.onnx_nodes,
            channel_scale=lowering.channel_scale(step, 1, weight),
            channel_block=weight.block,
        ),
        scales=(flat.scale or 1.0, weight.scale, out.scale or 1.0),
    )


def _reduction_order(value: StridedView) -> tuple[tuple[int, ...] | None, tuple[int, int] | None]:
    """How to permute weight rows so that the reduction axis is walked with stride 1.

    The factors of a flattened N H W C image come as C, H, W: storing the weight rows as H, W, C
    makes them one contiguous run.
    """
    factors = merged(value.axes[-1])
    order = tuple(sorted(range(len(factors)), key=lambda i: -factors[i][1]))
    run = merged(tuple(factors[i] for i in order))
    if not run:
        return None, (1, 1)
    if len(run) > 1 or run[0][1] != 1:
        return None, None
    return (order if len(factors) > 1 else None), run[0]


@dataclass(frozen=True)
class _Phase:
    """One axis of one phase: taps, input cut and pads, and where the outputs go."""

    taps: tuple[int, ...]
    first: int
    size: int
    before: int
    after: int
    outputs: range


def lower_conv_transpose(lowering: Lowering, step: Step) -> None:
    """ConvTranspose (1-D, 2-D; groups, dilation, output_padding): stride-1 convolutions per phase."""
    node = step.head
    weight = lowering.weight(node.inputs[1])
    assert weight is not None
    source, (n_stride, h_stride, w_stride, _) = lowering.image(lowering.value(node.inputs[0]))
    n, height, width, channels = image_shape(source.shape)
    groups = int(node.attributes.get("group", 1))
    data = weight.data if weight.data.ndim == 4 else weight.data[:, :, None, :]
    _, k, r, s = data.shape
    c = channels // groups
    data = data.reshape(groups, c, k, r, s).transpose(0, 3, 4, 1, 2)
    rank = len(source.axes)
    out = lowering.output(step, (0, *range(2, rank), 1))
    _, out_height, out_width, out_channels = image_shape(out.shape)
    sizes = (height, width), (out_height, out_width), (r, s)
    strides, dilations, pads = _window(node, weight.data.ndim - 2, *sizes)
    rows = _phases(height, out_height, r, strides[0], dilations[0], pads[0])
    columns = _phases(width, out_width, s, strides[1], dilations[1], pads[1])
    bias = lowering.bias(step, groups, k)
    image = out_height * out_width * out_channels
    for number, (y, x) in enumerate(itertools.product(rows, columns)):
        taps = _taps(data, y.taps, x.taps)
        dims = Dims(groups, n, k, c, len(y.outputs), len(x.outputs), taps.shape[1], taps.shape[2])
        name = lowering.graph.tensor(
            f"{node.inputs[1]}.{number}", taps.shape, lowering.element, lowering.unit(weight), taps
        )
        offset = source.offset + y.first * h_stride + x.first * w_stride
        out_offset = (y.outputs.start * out_width + x.outputs.start) * out_channels
        lowering.graph.tensor_core(
            TensorCoreLayer(
                f"{step.name}.{number}" if number else step.name,
                "depthwise" if groups > 1 and c == 1 and k == 1 else "conv",
                dims,
                View(source.tensor, offset, (c, n_stride, h_stride, w_stride, 1)),
                weight_view(name, dims),
                View(
                    out.tensor,
                    out_offset,
                    (k, image, strides[0] * out_width * out_channels, strides[1] * out_channels, 1),
                ),
                (y.size, x.size),
                bias=bias,
                pads=(y.before, x.before, y.after, x.after),
                activation=step.activation,
                onnx_nodes=step.onnx_nodes,
            ),
            scales=(source.scale or 1.0, weight.scale, out.scale or 1.0),
        )


def _taps(data: np.ndarray, rows: tuple[int, ...], columns: tuple[int, ...]) -> np.ndarray:
    """Weights [G, R, S, C, K] of the chosen taps; a phase without taps gets one zero."""
    out = np.zeros((data.shape[0], max(1, len(rows)), max(1, len(columns)), *data.shape[3:]), data.dtype)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            if row >= 0 and column >= 0:  # -1: a hole of the dilation
                out[:, i, j] = data[:, row, column]
    return out


def _window(
    node: Node, rank: int, size: tuple[int, int], out: tuple[int, int], kernel: tuple[int, int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Strides, dilations and leading pads per axis (two axes; a 1-D layer has a unit first one)."""
    missing = (1,) * (2 - rank)
    strides = (*missing, *node.attributes.get("strides", (1,) * rank))
    dilations = (*missing, *node.attributes.get("dilations", (1,) * rank))
    pads = (*(0 for _ in missing), *node.attributes.get("pads", (0,) * (2 * rank))[:rank])
    auto_pad = node.attributes.get("auto_pad", "NOTSET")
    if auto_pad in ("SAME_UPPER", "SAME_LOWER") or "output_shape" in node.attributes:
        extra = node.attributes.get("output_padding", (0,) * rank)
        extra = (*(0 for _ in missing), *extra)
        begin = []
        for i in range(2):
            full = strides[i] * (size[i] - 1) + extra[i] + (kernel[i] - 1) * dilations[i] + 1
            total = max(0, full - out[i])
            begin.append(
                total - total // 2 if auto_pad == "SAME_LOWER" or auto_pad == "NOTSET" else total // 2
            )
        pads = tuple(begin)
    return strides, dilations, pads


def _phases(size: int, out: int, kernel: int, stride: int, dilation: int, pad: int) -> list[_Phase]:
    phases = []
    for phase in range(stride):
        start = (phase - pad) % stride
        outputs = range(start, out, stride)
        if not outputs:
            continue
        # tap r reaches output o from input (o + pad - r dilation) / stride
        reach = [r for r in range(kernel) if (phase - r * dilation) % stride == 0]
        first_j = (start + pad - phase) // stride
        shifts = {r: (r * dilation - phase) // stride for r in reach}
        span = range(min(shifts.values()), max(shifts.values()) + 1) if reach else range(1)
        by_shift = {shift: r for r, shift in shifts.items()}
        taps = tuple(by_shift.get(shift, -1) for shift in reversed(span)) if reach else ()
        first = first_j - span[-1]
        last = first_j + len(outputs) - 1 - span[0]
        cut_first, cut_last = max(0, first), min(size - 1, last)
        if cut_first > cut_last:  # these outputs see padding only: one zero tap on any pixel
            phases.append(_Phase((), 0, 1, 0, len(outputs) - 1, outputs))
            continue
        phases.append(
            _Phase(taps, cut_first, cut_last - cut_first + 1, cut_first - first, last - cut_last, outputs)
        )
    return phases


_OPERANDS = (limits.constant_weight, limits.constant_bias)
OPERATORS = (
    Operator(
        "Conv",
        "array",
        lower_conv,
        (limits.float_values, limits.image, *_OPERANDS, limits.channels_of_groups),
    ),
    Operator(
        "ConvTranspose",
        "array",
        lower_conv_transpose,
        (limits.float_values, limits.image, *_OPERANDS, limits.few_phases),
    ),
    Operator("Gemm", "array", lower_gemm, (limits.float_values, limits.rows_of_gemm, *_OPERANDS)),
)
