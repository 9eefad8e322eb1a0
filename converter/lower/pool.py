"""Pooling, and the averages over a whole image."""

from __future__ import annotations

import numpy as np

from fadiff.converter.ir.host import AveragePool, GlobalAveragePool, MaxPool, PoolWindow
from fadiff.converter.ir.strided import Strided
from fadiff.converter.ir.window import window_of
from fadiff.converter.lower.constraints import spatial_mean
from fadiff.converter.lower.context import Lowering, image_shape
from fadiff.converter.lower.rows import lower_reduce
from fadiff.converter.plan.plan import Step


def whole_image(lowering: Lowering, value: Strided) -> Strided:
    """The value as a whole dense N H W C tensor, copied when it is not one."""
    rank = len(value.axes)
    order = (0, *range(2, rank), 1)
    tensor = lowering.graph.tensors[value.tensor]
    shape = tuple(value.shape[i] for i in order)
    in_place = tensor.shape == shape and lowering.is_dense(value, order)
    return value if in_place else lowering.copy(value, order, "nhwc")


def _pooled(lowering: Lowering, step: Step) -> tuple[Strided, Strided, PoolWindow]:
    """Image, result and window of a pooling node."""
    node = step.head
    source = whole_image(lowering, lowering.value(node.inputs[0]))
    _, height, width, _ = image_shape(source.shape)
    window = window_of(node, (height, width), node.attributes["kernel_shape"])
    rank = len(source.axes)
    out = lowering.output(step, (0, *range(2, rank), 1))
    return source, out, PoolWindow(window.kernel, window.stride, window.dilation, window.pads)


def lower_max_pool(lowering: Lowering, step: Step) -> None:
    """MaxPool: padding is ignored, scale unchanged, so int8 maxima are exact."""
    source, out, window = _pooled(lowering, step)
    lowering.host(step, MaxPool(window), out, source)


def lower_average_pool(lowering: Lowering, step: Step) -> None:
    """AveragePool: the divisor of each window is counted as ONNX does."""
    source, out, window = _pooled(lowering, step)
    ratio = float(np.float32(source.scale or 1.0) / np.float32(out.scale or 1.0))
    counts_pads = bool(step.head.attributes.get("count_include_pad", 0))
    lowering.host(step, AveragePool(window, counts_pads, ratio), out, source)


def lower_global_average_pool(lowering: Lowering, step: Step) -> None:
    """GlobalAveragePool, and ReduceMean over the spatial axes: op `global_average_pool`."""
    source = whole_image(lowering, lowering.value(step.head.inputs[0]))
    _, height, width, _ = image_shape(source.shape)
    shape = lowering.program.shapes[step.output]
    out = lowering.output(step, (0, *range(2, len(shape)), 1) if len(shape) > 2 else None)
    count = np.float32(height * width)
    scale = np.float32(source.scale or 1.0) / (np.float32(out.scale or 1.0) * count)
    lowering.host(step, GlobalAveragePool(float(scale)), out, source)


def lower_global_max_pool(lowering: Lowering, step: Step) -> None:
    """GlobalMaxPool: a max_pool whose window is the image."""
    source = whole_image(lowering, lowering.value(step.head.inputs[0]))
    _, height, width, _ = image_shape(source.shape)
    rank = len(source.axes)
    out = lowering.output(step, (0, *range(2, rank), 1))
    window = PoolWindow((height, width), (1, 1), (1, 1), (0, 0, 0, 0))
    lowering.host(step, MaxPool(window), out, source)


def lower_mean(lowering: Lowering, step: Step) -> None:
    """ReduceMean: over the pixels of an N H W C image a global average pool, else a row reduction."""
    value = lowering.value(step.head.inputs[0])
    channels_last = len(value.axes) == 4 and value.axes[1] == ((value.shape[1], 1),)
    if channels_last and spatial_mean(lowering.program, step.head) is None:
        lower_global_average_pool(lowering, step)
    else:
        lower_reduce(lowering, step)
