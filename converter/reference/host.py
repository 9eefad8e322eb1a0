"""Host layers in exact arithmetic: docs/host-ops.md, written as ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from converter.graph import HostLayer
from converter.reference.emit import Emit


def _attributes(layer: HostLayer) -> Any:
    return layer.attributes


def add(emit: Emit, layer: HostLayer) -> None:
    """sat8(rne(relu(sat8(rne(a * A)) + sat8(rne(b * B))) * C))."""
    attributes = _attributes(layer)
    a = emit.saturate(emit.scaled(emit.flat(layer.inputs[0]), attributes["a_scale"]))
    b = emit.saturate(emit.scaled(emit.flat(layer.inputs[1]), attributes["b_scale"]))
    total = emit.op("Add", emit.cast(a, "int32"), emit.cast(b, "int32"))
    if attributes["activation"] == "relu":
        total = emit.op("Max", total, emit.constant(np.int32(0)))
    emit.write_dense(layer.outputs[0], emit.saturate(emit.scaled(total, attributes["scale"])))


def copy(emit: Emit, layer: HostLayer) -> None:
    """Elements moved between two strided accesses."""
    attributes = _attributes(layer)
    value = emit.read(layer.inputs[0], attributes["offset"], attributes["shape"], attributes["strides"])
    emit.write(
        layer.outputs[0], value, attributes["out_offset"], attributes["shape"], attributes["out_strides"]
    )


def lookup(emit: Emit, layer: HostLayer) -> None:
    """table[q + 128]."""
    attributes = _attributes(layer)
    value = emit.read(layer.inputs[0], attributes["offset"], attributes["shape"], attributes["strides"])
    index = emit.op("Add", emit.cast(value, "int32"), emit.constant(np.int32(128)))
    out = emit.op("Gather", emit.flat(layer.inputs[1]), index)
    emit.write(layer.outputs[0], out, 0, attributes["shape"], attributes["out_strides"])


def max_pool(emit: Emit, layer: HostLayer) -> None:
    """Largest element of each window; padding never wins."""
    attributes = _attributes(layer)
    value, shape = _channels_first(emit, layer.inputs[0])
    out_shape = emit.tensors[layer.outputs[0]].shape
    height, width = shape[2], shape[3]
    p, q = (1, *out_shape)[-3:-1] if len(out_shape) == 3 else out_shape[1:3]
    bottom, right = (
        (count - 1) * stride + (kernel - 1) * dilation + 1 - size - before
        for count, stride, kernel, dilation, size, before in zip(
            (p, q), attributes["stride"], attributes["kernel"], attributes["dilation"], (height, width),
            attributes["pads"][:2], strict=True
        )
    )
    top, left = attributes["pads"][:2]
    # pad with the smallest value explicitly, so that windows past the edge (ceil_mode) are expressed too
    value = emit.op("Pad", value, emit.ints([0, 0, top, left, 0, 0, max(bottom, 0), max(right, 0)]),
                    emit.constant(np.int8(-128)))
    value = emit.op("MaxPool", value, kernel_shape=attributes["kernel"], strides=attributes["stride"],
                    dilations=attributes["dilation"])
    emit.write_dense(layer.outputs[0], emit.op("Transpose", value, perm=[0, 2, 3, 1]))


def global_average_pool(emit: Emit, layer: HostLayer) -> None:
    """sat8(rne(float32(sum over H, W) * scale))."""
    value, _ = _channels_first(emit, layer.inputs[0])
    total = emit.op("ReduceSum", emit.cast(value, "int32"), emit.ints([2, 3]), keepdims=0)
    emit.write_dense(layer.outputs[0], emit.saturate(emit.scaled(total, _attributes(layer)["scale"])))


def _channels_first(emit: Emit, tensor: str) -> tuple[str, tuple[int, int, int, int]]:
    """An N H W C (or N W C) tensor as N C H W."""
    shape = emit.tensors[tensor].shape
    n, h, w, c = (shape[0], 1, *shape[1:]) if len(shape) == 3 else shape
    value = emit.reshape(emit.flat(tensor), (n, h, w, c))
    return emit.op("Transpose", value, perm=[0, 3, 1, 2]), (n, c, h, w)


HOST_OPS: Mapping[str, Callable[[Emit, HostLayer], None]] = {
    "add": add,
    "copy": copy,
    "global_average_pool": global_average_pool,
    "lookup": lookup,
    "max_pool": max_pool,
}
