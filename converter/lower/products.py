"""Tensor-core layers: convolutions and matrix products with constant weights."""

from __future__ import annotations

import numpy as np

from fadiff.converter.ir.builder import weight_view
from fadiff.converter.ir.dims import Dims
from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.converter.ir.strided import Strided, merged
from fadiff.converter.ir.window import window_of
from fadiff.converter.lower.context import Lowering, image_shape, view
from fadiff.converter.lower.padded import bordered
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.weights import Quantised


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
        product = Quantised(matrix * alpha, 1.0)
    else:
        product = Quantised(matrix, float(np.float32(weight.scale) * alpha))
    value = lowering.value(node.inputs[0])
    if node.attributes.get("transA", 0):
        value = value.transpose((1, 0))
    lower_matrix_product(lowering, step, value, product)


def lower_matrix_product(lowering: Lowering, step: Step, value: Strided, weight: Quantised) -> None:
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
        ),
        scales=(flat.scale or 1.0, weight.scale, out.scale or 1.0),
    )


def _reduction_order(value: Strided) -> tuple[tuple[int, ...] | None, tuple[int, int] | None]:
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
