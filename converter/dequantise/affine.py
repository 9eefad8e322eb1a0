"""Affine quantisation: what integers with a scale and a zero point mean, and which a number becomes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx

EIGHT_BITS = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
WIDE = (np.int16, np.uint16)


def along_axis(
    node: onnx.NodeProto, data: np.ndarray, scale: np.ndarray, zero: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Scale and zero point in a shape that broadcasts to the constant `data`."""
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    blocks = next((a.i for a in node.attribute if a.name == "block_size"), 0)
    if scale.size == 1:
        return scale.reshape(()), zero.reshape(-1)[0]
    if blocks:
        repeated = (np.repeat(v, blocks, axis) if v.ndim else v for v in (scale, zero))
        first, second = repeated
        return first, second
    shape = [-1 if i == axis % data.ndim else 1 for i in range(data.ndim)]
    return scale.reshape(shape), zero.reshape(shape) if zero.size > 1 else zero.reshape(-1)[0]


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Whether numbers of this type are integers, those of 2 and 4 bits included."""
    try:
        _limits(dtype)
    except ValueError:
        return False
    return True


def is_lowest(zero: np.ndarray) -> bool:
    """Whether a zero point is the smallest integer of its 8-bit type: nothing below zero exists."""
    kinds = (np.int8, np.uint8, *WIDE)
    return zero.dtype in kinds and int(zero.reshape(-1)[0]) == np.iinfo(zero.dtype).min


def quantised(values: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """What QuantizeLinear makes of a constant (16-bit and smaller integer types)."""
    steps = np.rint(values / scale) + zero.astype(np.float32)
    return np.asarray(np.clip(steps, *_limits(zero.dtype)).astype(zero.dtype))


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Smallest and largest integer of a type, those of 2 and 4 bits included."""
    limits = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(limits.min), int(limits.max)
