"""Host layers: residual adds and pools."""

from __future__ import annotations

import numpy as np

from converter.lower.context import IMAGE_ORDER, Lowering, image_shape
from converter.lower.window import window_of
from converter.plan import Step
from converter.strided import Strided, common_loops, dense


def residual_scales(a: float, b: float, out: float) -> tuple[float, float, float]:
    """A, B and C of out = C (A a + B b) with A, B <= 1, every step in float32."""
    m = max(np.float32(a), np.float32(b))
    return (
        float(np.float32(a) / m),
        float(np.float32(b) / m),
        float(m / np.float32(out)),
    )


def lower_add(lowering: Lowering, step: Step) -> None:
    """Add of two equal shapes in the same storage: op `add`, which Gemmini's resadd executes."""
    a, b = (lowering.value(v) for v in step.head.inputs)
    if not lowering.is_whole(a):
        a, b = b, a
    out = lowering.output_like(step, a)
    loops = common_loops((a, b, out))
    if loops is None or len(loops.extents) > 1 or b.offset:
        b = lowering.copy(b, out.storage_order(), "aligned")
    a_scale, b_scale, scale = residual_scales(a.scale or 1.0, b.scale or 1.0, out.scale or 1.0)
    attributes = {"a_scale": a_scale, "b_scale": b_scale, "scale": scale, "activation": step.activation}
    lowering.graph.host(step.name, "add", (a.tensor, b.tensor), (out.tensor,), attributes, step.onnx_nodes)


def whole_image(lowering: Lowering, value: Strided) -> Strided:
    """The value as a whole dense N H W C tensor, copied when it is not one."""
    rank = len(value.axes)
    order = (0, *range(2, rank), 1)
    tensor = lowering.graph.tensors[value.tensor]
    shape = tuple(value.shape[i] for i in order)
    if (
        lowering.is_whole(value)
        and tensor.shape == shape
        and value.axes == dense("", value.shape, None, order).axes
    ):
        return value
    return lowering.copy(value, order, "nhwc")


def lower_max_pool(lowering: Lowering, step: Step) -> None:
    """MaxPool: padding is ignored, scale unchanged, so int8 maxima are exact."""
    node = step.head
    source = whole_image(lowering, lowering.value(node.inputs[0]))
    _, height, width, _ = image_shape(source.shape)
    window = window_of(node, (height, width), node.attributes["kernel_shape"])
    rank = len(source.axes)
    out = lowering.output(step, (0, *range(2, rank), 1))
    attributes = {
        "kernel": window.kernel,
        "stride": window.stride,
        "dilation": window.dilation,
        "pads": window.pads,
    }
    lowering.graph.host(step.name, "max_pool", (source.tensor,), (out.tensor,), attributes, step.onnx_nodes)


def lower_global_average_pool(lowering: Lowering, step: Step) -> None:
    """GlobalAveragePool, and ReduceMean over the spatial axes: op `global_average_pool`."""
    source = whole_image(lowering, lowering.value(step.head.inputs[0]))
    _, height, width, _ = image_shape(source.shape)
    shape = lowering.program.shapes[step.output]
    out = lowering.output(step, IMAGE_ORDER if len(shape) == 4 else None)
    count = np.float32(height * width)
    scale = np.float32(source.scale or 1.0) / (np.float32(out.scale or 1.0) * count)
    lowering.graph.host(
        step.name,
        "global_average_pool",
        (source.tensor,),
        (out.tensor,),
        {"scale": float(scale)},
        step.onnx_nodes,
    )
