"""Saturation that does the work of a Clip: quantisation tools drop what their integers cannot exceed anyway.

Hard swish, x * Clip(x + 3, 0, 6) / 6, is left without its Clip: x + 3 is quantised to 0..6.  Where a value is
stored our integers saturate, too; inside a table there are none, and x * (x + 3) / 6 would be left.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
    if op not in ("Add", "Sub", "Mul", "Div") or len(limits) != 2:
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
