"""Exponentials by additions and multiplications that float32 rounds one by one: C and reference are equal.

exp(x) = 2^n p(x - n log 2), n the nearest integer to x / log 2, p a polynomial; libraries round theirs
in ways of their own.
"""

from __future__ import annotations

import math

Formula = tuple[str, ...]

_LOW, _HIGH = -69.0, 88.0
"""Beyond, the result is as good as zero, or the largest number."""
_SHIFT = 100
"""Shift of n, so that it is positive: the power is put together from its bits."""
_BITS = (64, 64, 64, 32, 16, 8, 4, 2, 1)
_LOG2_HIGH, _LOG2_LOW = 0.693359375, -2.12194440e-4
"""log 2 in two parts: products with n round only in the second."""
_COEFFICIENTS = tuple(1 / math.factorial(i) for i in range(7, -1, -1))


def without_library(formula: Formula) -> Formula:
    """The same function without `exp` and `tanh` (absolute error of about 1e-7 of the result or of 1)."""
    writer = _Writer()
    names: dict[str, str] = {}
    for place, step in enumerate(formula):
        primitive, *operands = step.split()
        read = [names.get(operand, operand) for operand in operands]
        if primitive == "exp":
            names[f"v{place}"] = writer.exponential(*read)
        elif primitive == "tanh":
            names[f"v{place}"] = writer.tanh(*read)
        else:
            names[f"v{place}"] = writer.op(primitive, *read)
    return tuple(writer.steps)


class _Writer:
    """Grows a formula."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def op(self, primitive: str, *operands: str | float) -> str:
        self.steps.append(" ".join((primitive, *map(str, operands))))
        return f"v{len(self.steps) - 1}"

    def tanh(self, x: str) -> str:
        """1 - 2 / (exp(2 x) + 1)."""
        above = self.op("add", self.exponential(self.op("mul", x, 2.0)), 1.0)
        return self.op("sub", 1.0, self.op("div", 2.0, above))

    def exponential(self, x: str) -> str:
        bounded = self.op("min", self.op("max", x, _LOW), _HIGH)
        n = self.op("floor", self.op("add", self.op("mul", bounded, 1 / math.log(2)), 0.5))
        rest = self.op("sub", bounded, self.op("mul", n, _LOG2_HIGH))
        rest = self.op("sub", rest, self.op("mul", n, _LOG2_LOW))
        value: str | float = _COEFFICIENTS[0]
        for coefficient in _COEFFICIENTS[1:]:
            value = self.op("add", self.op("mul", value, rest), coefficient)
        value = self.op("mul", value, 2.0**-_SHIFT)
        left = self.op("add", n, float(_SHIFT))
        for bits in _BITS:
            is_set = self.op("less", bits - 0.5, left)
            if bits > 1:
                left = self.op("where", is_set, self.op("sub", left, float(bits)), left)
            value = self.op("where", is_set, self.op("mul", value, 2.0**bits), value)
        return str(value)
