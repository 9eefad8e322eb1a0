"""Numbers that the formulas take: Python integers, numpy columns of many mappings, or torch tensors.

A formula made of operators serves all three; here is what operators cannot say of integers and columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = Any
"""int, numpy array, or (where a formula says so) torch tensor."""
Ints = NDArray[np.int64]
Function = TypeVar("Function", bound=Callable[..., Any])


def largest(a: Number, b: Number) -> Number:
    """Maximum, of columns row by row."""
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


def smallest(a: Number, b: Number) -> Number:
    """Minimum, of columns row by row."""
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def positive(value: Number) -> Number:
    """The value where it is positive, else 0; of tensors, too."""
    return value * (value > 0)


def occurs(value: Number) -> bool:
    """Whether a number, or any of a column or tensor, is not zero."""
    return bool(value) if isinstance(value, int | float) else bool(value.any())


def remembered(function: Function) -> Function:
    """Remembers what a function of integers found; of columns it is computed every time."""
    known = lru_cache(maxsize=1 << 16)(function)

    def call(*arguments: Any) -> Any:
        try:
            return known(*arguments)
        except TypeError:  # columns have no hash
            return function(*arguments)

    return call  # type: ignore[return-value]


def tabulate(function: Callable[..., float], *arguments: Number) -> Number:
    """`function` of small integers for every row of columns, called once per distinct row."""
    if not any(isinstance(argument, np.ndarray) for argument in arguments):
        return function(*arguments)
    columns = np.broadcast_arrays(*arguments)
    key = np.zeros_like(columns[0])
    for column in columns:
        key = key * (int(column.max(initial=0)) + 1) + column
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    rows = zip(*(column.ravel()[first].tolist() for column in columns), strict=True)
    found = np.array([function(*row) for row in rows] or [0])
    return found[inverse].reshape(key.shape)
