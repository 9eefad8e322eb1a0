"""C integer expressions with the constants folded away.

An expression is a Python int (known now) or a C expression as text.  Text is either an atom or is
wrapped in parentheses, so that expressions compose without thinking about precedence.
"""

from __future__ import annotations

Expr = int | str


def bare(x: Expr) -> str:
    """Text of `x` without its outermost parentheses (for arguments, initialisers, bounds)."""
    text = str(x)
    if not text.startswith("("):
        return text
    depth = 0
    for position, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return text[1:-1] if position == len(text) - 1 else text
    return text


def add(*terms: Expr) -> Expr:
    """Sum; integer terms are folded and go last."""
    constant = sum(t for t in terms if isinstance(t, int))
    parts = [bare(t) if " - " not in str(t) else str(t) for t in terms if isinstance(t, str)]
    if not parts:
        return constant
    if constant:
        parts.append(str(constant))
    if len(parts) == 1:
        return parts[0] if parts[0] in terms else f"({parts[0]})"
    return f"({' + '.join(parts).replace('+ -', '- ')})"


def sub(a: Expr, b: Expr) -> Expr:
    """Difference a - b."""
    if isinstance(b, int):
        return add(a, -b)
    if a == b:
        return 0
    return f"({a} - {b})"


def mul(*factors: Expr) -> Expr:
    """Product; integer factors are folded and go last."""
    constant = 1
    parts: list[str] = []
    for factor in factors:
        if isinstance(factor, int):
            constant *= factor
        else:
            parts.append(factor)
    if constant == 0 or not parts:
        return constant if not parts else 0
    if constant != 1:
        parts.append(str(constant))
    return parts[0] if len(parts) == 1 else f"({' * '.join(parts)})"


def minimum(a: Expr, b: Expr) -> Expr:
    """The smaller one, through the MIN macro of the firmware."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return f"MIN({bare(a)}, {bare(b)})"


def div(a: Expr, b: int) -> Expr:
    """Floor division by a positive constant (operands are non-negative)."""
    if isinstance(a, int):
        return a // b
    return a if b == 1 else f"({a} / {b})"


def box_extent(outputs: Expr, stride: int, kernel: Expr, dilation: int) -> Expr:
    """Input pixels under `outputs` consecutive windows: (p - 1) stride + (r - 1) dilation + 1."""
    return add(mul(outputs, stride), mul(kernel, dilation), 1 - stride - dilation)


def plus(base: str, offset: Expr) -> str:
    """A pointer, moved."""
    return base if offset == 0 else f"{base} + {bare(offset)}"
