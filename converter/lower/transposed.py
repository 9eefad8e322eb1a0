"""ConvTranspose as ordinary convolutions, one per phase of the stride.

Output pixels o with the same (o + pad) modulo stride see the same taps, so each phase is a
stride-1 convolution of the input with every stride-th tap, reversed, that writes every stride-th
output pixel.  No multiplication by inserted zeros remains.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from fadiff.converter.ir.builder import weight_view
from fadiff.converter.ir.dims import Dims
from fadiff.converter.ir.graph import TensorCoreLayer, View
from fadiff.converter.ir.program import Node
from fadiff.converter.lower.context import Lowering, image_shape
from fadiff.converter.plan.plan import Step


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
    strides, dilations, pads = _window(node, (height, width), (out_height, out_width), (r, s))
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
    node: Node, size: tuple[int, int], out: tuple[int, int], kernel: tuple[int, int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Strides, dilations and leading pads per axis (two axes; a 1-D layer has a unit first one)."""
    rank = len(node.attributes.get("kernel_shape", node.attributes.get("strides", (1, 1))))
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
