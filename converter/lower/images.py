"""Images: pools, averages over all pixels, Resize (nearest by index, linear by two taps per axis)."""

from __future__ import annotations

import numpy as np

from fadiff.converter.decompose.products import resized, scales_of
from fadiff.converter.ir.host import AveragePool, GlobalAveragePool, MaxPool, PoolWindow, ResizeLinear
from fadiff.converter.ir.operators import window_of
from fadiff.converter.ir.strided import StridedView
from fadiff.converter.lower import constraints as limits
from fadiff.converter.lower.constraints import Operator, spatial_mean
from fadiff.converter.lower.context import IMAGE_ORDER, Lowering, image_shape
from fadiff.converter.lower.movement import gather_axis
from fadiff.converter.lower.rows import lower_reduce
from fadiff.converter.plan.plan import Step


def whole_image(lowering: Lowering, value: StridedView) -> StridedView:
    """The value as a whole dense N H W C tensor, copied when it is not one."""
    rank = len(value.axes)
    order = (0, *range(2, rank), 1)
    tensor = lowering.graph.tensors[value.tensor]
    shape = tuple(value.shape[i] for i in order)
    in_place = tensor.shape == shape and lowering.is_dense(value, order)
    return value if in_place else lowering.copy(value, order, "nhwc")


def _pooled(lowering: Lowering, step: Step) -> tuple[StridedView, StridedView, PoolWindow]:
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


def lower_resize(lowering: Lowering, step: Step) -> None:
    """Resize (and Upsample): `gather` per axis for nearest, `resize_linear` for linear."""
    node, program = step.head, lowering.program
    value = lowering.value(node.inputs[0])
    shape = program.shapes[step.output]
    scales = scales_of(program, node)
    changed = [axis for axis in range(len(shape)) if shape[axis] != value.shape[axis]]

    def along(axis: int, rows: np.ndarray) -> np.ndarray:
        return resized(node, rows, shape[axis], None if scales is None else float(scales[axis]))

    if node.attributes.get("mode", "nearest") == "nearest":
        if not changed:
            lowering.values[step.output] = value
        for axis in changed:
            index = along(axis, np.arange(value.shape[axis])[None])[0].astype(np.int32)
            value = gather_axis(lowering, step, value, axis, index, last=axis == changed[-1])
        return
    source = whole_image(lowering, value)
    out = lowering.output(step, IMAGE_ORDER)
    inputs = [source.tensor]
    for axis, name in ((2, "rows"), (3, "columns")):
        index, weight = _taps(along(axis, np.eye(value.shape[axis])))
        inputs.append(lowering.graph.tensor(f"{step.name}.{name}", index.shape, "int32", None, index))
        inputs.append(
            lowering.graph.tensor(f"{step.name}.{name}.weight", weight.shape, "float32", None, weight)
        )
    scale = float(np.float32(source.scale or 1.0) / np.float32(out.scale or 1.0))
    lowering.host(step, ResizeLinear(scale), out, *inputs)


def _taps(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices [out, 2] and weights [out, 2] of linear interpolation, of those [size, out] of all pixels."""
    low = np.argmax(weights != 0, axis=0)
    high = np.minimum(low + 1, len(weights) - 1)
    places = np.arange(weights.shape[1])
    second = np.where(high > low, weights[high, places], np.float32(0))
    return np.stack([low, high], 1).astype(np.int32), np.stack([weights[low, places], second], 1)


_IMAGE = (limits.float_values, limits.image)
_RESIZED = (limits.constant_inputs, limits.float_values, limits.known_resize)
OPERATORS = (
    Operator("AveragePool", "core", lower_average_pool, (*_IMAGE, limits.windows_begin_inside)),
    Operator("GlobalAveragePool", "core", lower_global_average_pool, _IMAGE),
    Operator("GlobalMaxPool", "core", lower_global_max_pool, _IMAGE),
    Operator(
        "MaxPool",
        "store",
        lower_max_pool,
        (*_IMAGE, limits.windows_begin_inside, limits.one_output, limits.row_major_indices),
    ),
    Operator("ReduceMean", "core", lower_mean, (limits.known_axes, limits.float_values)),
    Operator("Resize", "core", lower_resize, _RESIZED),
    Operator("Upsample", "core", lower_resize, _RESIZED),
)
