"""drop-padding-taps: rows and columns of a kernel that only ever meet padding are cut off.

A 5 x 5 kernel with padding 2 on a 2 x 2 image has 3 x 3 taps that ever see a pixel; the others multiply
zeros.  Networks with many strides end like this, and small images get there early.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fadiff.converter.ir.builder import weight_view
from fadiff.converter.ir.graph import Graph, Layer, Tensor, TensorCoreLayer


class _Axis(NamedTuple):
    """A kernel along one axis of the image."""

    taps: int
    outputs: int
    size: int
    stride: int
    dilation: int
    before: int
    after: int

    def dead(self) -> tuple[int, int]:
        """Taps at the start and at the end that meet no pixel for any output, as far as padding goes."""
        last = (self.outputs - 1) * self.stride - self.before
        start = sum(last + tap * self.dilation < 0 for tap in range(self.taps))
        end = sum(tap * self.dilation - self.before >= self.size for tap in range(self.taps))
        return min(start, self.before // self.dilation), min(end, self.after // self.dilation)


def drop_padding_taps(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """Legal for constant weights in dense storage: the sums lose terms that are zero."""
    tensors = dict(graph.tensors)
    layers: list[Layer] = []
    notes = []
    for layer in graph.layers:
        smaller = _cropped(layer, tensors) if isinstance(layer, TensorCoreLayer) else None
        layers.append(smaller or layer)
        if smaller is not None and isinstance(layer, TensorCoreLayer):
            was, now = ((d.R, d.S) for d in (layer.dims, smaller.dims))
            notes.append(f"{layer.name}: {was[0]} x {was[1]} taps became {now[0]} x {now[1]}")
    if not notes:
        return graph, ()
    used = {name for layer in layers for name in (*layer.inputs, *layer.outputs)}
    used |= {*graph.inputs, *graph.outputs}
    kept = {name: tensor for name, tensor in tensors.items() if name in used}
    return replace(graph, layers=tuple(layers), tensors=kept), tuple(notes)


def _cropped(layer: TensorCoreLayer, tensors: dict[str, Tensor]) -> TensorCoreLayer | None:
    """The layer with a smaller kernel, its weights added to `tensors`; None if all taps are needed."""
    d, (top, left, bottom, right) = layer.dims, layer.pads
    weight = tensors[layer.weight.tensor]
    if weight.data is None or layer.weight != weight_view(weight.name, d):
        return None
    height, width = layer.input_size
    up, down = _Axis(d.R, d.P, height, layer.stride[0], layer.dilation[0], top, bottom).dead()
    before, after = _Axis(d.S, d.Q, width, layer.stride[1], layer.dilation[1], left, right).dead()
    rows, columns = d.R - up - down, d.S - before - after
    if not (up or down or before or after) or rows < 1 or columns < 1:
        return None
    data = np.ascontiguousarray(weight.data[:, up : d.R - down, before : d.S - after])
    name = f"{weight.name}.{rows}x{columns}"
    if name in tensors and not np.array_equal(np.asarray(tensors[name].data), data):
        return None  # two layers see different taps of one kernel: one of them keeps it whole
    tensors[name] = replace(weight, name=name, shape=data.shape, data=data)
    dims = d.replace({"R": rows, "S": columns})
    pads = (
        top - up * layer.dilation[0],
        left - before * layer.dilation[1],
        bottom - down * layer.dilation[0],
        right - after * layer.dilation[1],
    )
    return replace(layer, dims=dims, weight=weight_view(name, dims), pads=pads)
