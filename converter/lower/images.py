"""Images: pools, averages over all pixels, Resize (nearest by index, linear by two taps per axis)."""

from __future__ import annotations

import numpy as np

from fadiff.converter.ir.host import AveragePool, GlobalAveragePool, MaxPool, PoolWindow, ResizeLinear
from fadiff.converter.ir.operators import window_of
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.ir.strided import Strided
from fadiff.converter.lower import constraints as limits
from fadiff.converter.lower.constraints import Operator, spatial_mean
from fadiff.converter.lower.context import IMAGE_ORDER, Lowering, image_shape
from fadiff.converter.lower.movement import gather_axis
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


def lower_resize(lowering: Lowering, step: Step) -> None:
    """Resize (and Upsample): `gather` per axis for nearest, `resize_linear` for linear."""
    node, program = step.head, lowering.program
    value = lowering.value(node.inputs[0])
    shape = program.shapes[step.output]
    coordinates = [
        source_coordinates(node, program, axis, value.shape[axis], shape[axis]) for axis in range(len(shape))
    ]
    if node.attributes.get("mode", "nearest") == "nearest":
        changed = [axis for axis in range(len(shape)) if shape[axis] != value.shape[axis]]
        if not changed:
            lowering.values[step.output] = value
        for axis in changed:
            index = _nearest(node, coordinates[axis], value.shape[axis])
            value = gather_axis(lowering, step, value, axis, index, last=axis == changed[-1])
        return
    source = whole_image(lowering, value)
    out = lowering.output(step, IMAGE_ORDER)
    inputs = [source.tensor]
    for axis, name in ((2, "rows"), (3, "columns")):
        index, weight = _taps(coordinates[axis], value.shape[axis])
        inputs.append(lowering.graph.tensor(f"{step.name}.{name}", index.shape, "int32", None, index))
        inputs.append(
            lowering.graph.tensor(f"{step.name}.{name}.weight", weight.shape, "float32", None, weight)
        )
    scale = float(np.float32(source.scale or 1.0) / np.float32(out.scale or 1.0))
    lowering.host(step, ResizeLinear(scale), out, *inputs)


def source_coordinates(node: Node, program: Program, axis: int, size: int, out: int) -> np.ndarray:
    """Where each output index falls in the input, by the node's coordinate_transformation_mode."""
    default = "half_pixel" if node.op == "Resize" and node.version >= 11 else "asymmetric"
    mode = node.attributes.get("coordinate_transformation_mode", default)
    scales = program.constant(node.input(2) if node.op == "Resize" and node.version >= 11 else node.input(1))
    scale = float(scales[axis]) if scales is not None and scales.size > axis else out / size
    index = np.arange(out, dtype=np.float64)
    if mode == "asymmetric":
        return index / scale
    if mode == "align_corners":
        return index * (size - 1) / (out - 1) if out > 1 else np.zeros(1)
    if mode == "pytorch_half_pixel" and out == 1:
        return np.zeros(1)
    if mode == "half_pixel_symmetric":
        adjustment = out / (size * scale)
        return size / 2 * (1 - adjustment) + (index + 0.5) / scale - 0.5
    return (index + 0.5) / scale - 0.5


def _nearest(node: Node, coordinates: np.ndarray, size: int) -> np.ndarray:
    default = "round_prefer_floor" if node.op == "Resize" and node.version >= 11 else "floor"
    mode = node.attributes.get("nearest_mode", default)
    # float32 as ONNX Runtime computes it, so that ties fall the same way
    x = coordinates.astype(np.float32)
    index = {
        "round_prefer_floor": np.ceil(x - np.float32(0.5)),
        "round_prefer_ceil": np.floor(x + np.float32(0.5)),
        "floor": np.floor(x),
        "ceil": np.ceil(x),
    }[mode]
    return np.asarray(np.clip(index, 0, size - 1), np.int32)


def _taps(coordinates: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices [out, 2] and weights [out, 2] of linear interpolation, clamped at the border."""
    x = np.clip(coordinates, 0, size - 1)
    low = np.floor(x).astype(np.int32)
    high = np.minimum(low + 1, size - 1).astype(np.int32)
    fraction = (x - low).astype(np.float32)
    return np.stack([low, high], 1), np.stack([np.float32(1) - fraction, fraction], 1)


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
