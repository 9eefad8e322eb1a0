"""Affine quantisation: what integers with a scale and a zero point mean, and which a number becomes.

Saturation does the work of a Clip: quantisation tools drop what their integers cannot exceed anyway.  Hard
swish, x * Clip(x + 3, 0, 6) / 6, is left without its Clip: x + 3 is quantised to 0..6.  Where a value is
stored our integers saturate, too; inside a table there are none, and x * (x + 3) / 6 would be left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir
from onnx_ir import DataType, Value

from fadiff.converter.ir.edit import content_of
from fadiff.converter.ir.kinds import ARITHMETIC, KEEPS_SCALE, Kind, named

EIGHT_BITS = (DataType.INT8, DataType.UINT8)
WIDE = (np.int16, np.uint16)


def along_axis(
    node: onnx_ir.Node, data: np.ndarray, scale: np.ndarray, zero: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Scale and zero point in a shape that broadcasts to the constant `data`."""
    axis, blocks = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    if scale.size == 1:
        return scale.reshape(()), zero.reshape(-1)[0]
    if blocks:
        repeated = (np.repeat(v, blocks, axis) if v.ndim else v for v in (scale, zero))
        first, second = repeated
        return first, second
    shape = [-1 if i == axis % data.ndim else 1 for i in range(data.ndim)]
    return scale.reshape(shape), zero.reshape(shape)


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


_JOINS = (named(ARITHMETIC | Kind.JOIN) - {"Sub"}) | {"Sum"}
_KEEPS_SIGN = _JOINS | named(KEEPS_SCALE | Kind.POOL | Kind.GLOBAL_POOL | Kind.SUM | Kind.RESIZE)
_NEVER = named(Kind.NOT_NEGATIVE)


class NotNegative(set[Value]):
    """Values that cannot be below zero."""

    def see(self, node: onnx_ir.Node) -> None:
        """Add what a node gives, if it is such."""
        inputs = [value for value in node.inputs if value is not None]
        read = inputs if node.op_type in _JOINS else inputs[:1]
        inherits = node.op_type in _KEEPS_SIGN and all(map(self._has, read))
        if node.op_type in _NEVER or inherits or _is_even_power(node):
            self.update(node.outputs)

    def _has(self, value: Value) -> bool:
        array = content_of(value)
        return value in self or (array is not None and bool(np.all(array >= 0)))


def _is_even_power(node: onnx_ir.Node) -> bool:
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    exponent = content_of(node.inputs[1]) if node.op_type == "Pow" else None
    return exponent is not None and bool(np.all(np.rint(exponent) % 2 == 0))


_STEPS = 255
_ROUNDED = 2
"""So many steps the ranges of two values may part that only differ by rounding."""

Limits = tuple[float, float]


def reach(op: str, limits: Sequence[Limits | None], constants: Sequence[np.ndarray | None]) -> Limits | None:
    """Where a sum, difference, product or quotient with one number takes the range of its other input.

    Args:
        op: the operator.
        limits: the range of each input, where it is known.
        constants: each input that is constant.

    None where that is not known, or for any other operator.
    """
    if op not in named(ARITHMETIC) or len(limits) != 2:
        return None
    place = next((i for i, array in enumerate(constants) if array is not None and array.size == 1), None)
    span = None if place is None else limits[1 - place]
    if place is None or span is None:
        return None
    number = float(np.asarray(constants[place]).reshape(-1)[0])
    if op == "Div" and (place == 0 or number == 0):
        return None
    results = sorted(_apply(op, number, end, first=place == 0) for end in span)
    return results[0], results[1]


def leaves(found: Limits | None, limits: Limits) -> bool:
    """Whether a range goes beyond the limits by more than rounding."""
    if found is None:
        return False
    slack = _ROUNDED * (limits[1] - limits[0]) / _STEPS
    return found[0] < limits[0] - slack or found[1] > limits[1] + slack


def _apply(op: str, number: float, end: float, *, first: bool) -> float:
    left, right = (number, end) if first else (end, number)
    if op == "Add":
        return left + right
    if op == "Sub":
        return left - right
    return left * right if op == "Mul" else left / right
