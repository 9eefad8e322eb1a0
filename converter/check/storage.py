"""Between ONNX values and stored tensors: quantise inputs, restore outputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fadiff.converter.ir.graph import Graph, Tensor


def to_storage(tensor: Tensor, value: np.ndarray) -> np.ndarray:
    """An ONNX input as the tensor stores it: quantised (half to even, NaN to 0) and in storage order."""
    if tensor.onnx_axes is not None:
        value = value.transpose(tensor.onnx_axes)
    value = value.reshape(tensor.shape)
    if tensor.dtype in ("int8", "uint8") and tensor.scale is not None:
        scale, offset = tensor.meaning()
        limits = np.iinfo(tensor.dtype)
        steps = np.rint((value.astype(np.float32) - offset) / scale)
        return np.asarray(np.clip(np.nan_to_num(steps), limits.min, limits.max), tensor.dtype)
    return value.astype(tensor.dtype)


def store_inputs(graph: Graph, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """ONNX inputs, by ONNX name, as the graph's inputs store them, by tensor name."""
    tensors = {name: graph.tensors[name] for name in graph.inputs}
    return {name: to_storage(tensor, values[tensor.onnx_name or name]) for name, tensor in tensors.items()}


def from_storage(tensor: Tensor, stored: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A stored tensor as the ONNX value of `shape`: float32 when it has a scale."""
    if tensor.along is not None:
        scale, offset = tensor.meaning()
        stored = stored.reshape(tensor.shape).astype(np.float32) * scale + offset
    elif tensor.scale is not None:  # (exact where there is a zero point)
        stored = (stored.astype(np.float32) - np.float32(tensor.zero)) * np.float32(tensor.scale)
    if tensor.onnx_axes is not None:
        order = tensor.onnx_axes
        stored = stored.reshape([shape[i] for i in order]).transpose(np.argsort(order))
    return stored.reshape(shape)
