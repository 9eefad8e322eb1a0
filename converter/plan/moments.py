"""Values that are polynomials in one value's elements and moments: what a normalisation is made of.

x is an element, m1 the mean of its row, m2 the mean of the squares, q the inverse square root of a
polynomial in these (the radicand).  Squared deviations, E[x^2] - E[x]^2, sums times 1 / n, powers,
reciprocals: however an exporter spells it, the polynomial is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fadiff.converter.ir.kinds import ARITHMETIC, Kind
from fadiff.converter.ir.operators import is_a, reduction_axes
from fadiff.converter.ir.program import Node, Program

Monomial = tuple[int, int, int, int]
"""Powers of x, m1, m2 and q."""
Terms = Mapping[Monomial, np.ndarray]
"""Coefficients (float64) that broadcast against the value they are of."""

ONE: Monomial = (0, 0, 0, 0)
X: Monomial = (1, 0, 0, 0)
M1: Monomial = (0, 1, 0, 0)
M2: Monomial = (0, 0, 1, 0)
M1_SQUARED: Monomial = (0, 2, 0, 0)
Q: Monomial = (0, 0, 0, 1)
ROOT: Monomial = (0, 0, 0, -1)
_HIGHEST = 2
_GUARD = 1e-6
"""A term added to a root, or a bound below it, up to this only keeps a row of zeros zero."""


@dataclass(frozen=True)
class _Value:
    """A polynomial and the shape it has; `aligned` if that broadcasts against x."""

    terms: Terms
    shape: tuple[int, ...]
    aligned: bool


class Moments:
    """Polynomials of the values that follow from `source`.

    Attributes:
        axes: of the rows; those of the first reduction.
        radicand: what q is the inverse root of; None before the root.
        guard: the largest number that guards the root.
    """

    def __init__(self, program: Program, source: str) -> None:
        self._program = program
        self._shape = program.shapes[source]
        self.axes: tuple[int, ...] = ()
        self.radicand: Terms | None = None
        self.guard = 0.0
        self._values = {source: _Value({X: np.asarray(1.0)}, self._shape, True)}

    def terms(self, value: str) -> Terms | None:
        """The polynomial of a value that has an element for each of the source."""
        found = self._values.get(value)
        return found.terms if found is not None and found.shape == self._shape and found.aligned else None

    def add(self, node: Node) -> bool:
        """Whether the output of a node is such a polynomial, too; if so it is known from now on."""
        if node.domain != "" or not node.inputs or node.outputs[0] not in self._program.shapes:
            return False
        terms = self._compute(node)
        if terms is None:
            return False
        terms = {monomial: c for monomial, c in terms.items() if np.any(c)}
        shape = self._program.shapes[node.outputs[0]]
        known = [self._values[v] for v in node.inputs if v in self._values]
        moved = is_a(node, Kind.REDUCE | Kind.RESHAPE)
        aligned = self._is_aligned(shape) if moved else known[0].aligned
        self._values[node.outputs[0]] = _Value(terms, shape, aligned)
        return True

    def _compute(self, node: Node) -> Terms | None:
        first = self._values.get(node.inputs[0])
        if is_a(node, ARITHMETIC):
            return self._binary(node)
        if node.op in ("Max", "Clip", "Relu"):
            return self._bounded(node)
        if first is None:
            return None
        if is_a(node, Kind.SUM):
            return self._reduced(node, first)
        if is_a(node, Kind.RESHAPE):
            return first.terms if self._keeps_rows(first) else None
        if node.op == "Expand":
            return first.terms if first.aligned and not _has(first.terms, 0) else None
        if node.op == "Identity" or (node.op == "Cast" and self._program.is_float(node.outputs[0])):
            return first.terms
        if node.op == "Neg":
            return _scaled(first.terms, -1)
        if node.op == "Sqrt":
            return self._root(first.terms, ROOT)
        if node.op == "Reciprocal":
            return _inverse(first.terms)
        if node.op == "Pow":
            return self._power(first.terms, self._program.constant(node.inputs[1]))
        return None

    # operators -------------------------------------------------------------------------------

    def _binary(self, node: Node) -> Terms | None:
        values = [self._operand(name) for name in node.inputs]
        a, b = values
        if a is None or b is None or not self._fit(a, b):
            return None
        if node.op == "Add" and (guarded := self._guarded(a.terms, b.terms)) is not None:
            return guarded
        if is_a(node, Kind.ADDITIVE):
            return _sum(a.terms, b.terms if node.op == "Add" else _scaled(b.terms, -1))
        if node.op == "Div":
            inverse = _inverse(b.terms)
            return None if inverse is None else _product(a.terms, inverse)
        return _product(a.terms, b.terms)

    def _operand(self, name: str) -> _Value | None:
        constant = self._program.constant(name)
        if constant is None:
            return self._values.get(name)
        if constant.size == 1:
            return _Value({ONE: np.asarray(constant.reshape(-1)[0], np.float64)}, (), True)
        rank = len(self._shape)
        padded = (1,) * (rank - constant.ndim) + constant.shape
        fits = len(padded) == rank and all(p in (1, s) for p, s in zip(padded, self._shape, strict=True))
        return _Value({ONE: constant.reshape(padded).astype(np.float64)}, padded, True) if fits else None

    def _fit(self, a: _Value, b: _Value) -> bool:
        """Whether elements that meet by broadcasting belong to one row."""
        return (a.aligned and b.aligned) or a.shape == b.shape or () in (a.shape, b.shape)

    def _guarded(self, a: Terms, b: Terms) -> Terms | None:
        """A root with a tiny number added."""
        for root, other in ((a, b), (b, a)):
            if (
                set(root) == {ROOT}
                and set(other) == {ONE}
                and np.all((other[ONE] >= 0) & (other[ONE] <= _GUARD))
            ):
                self.guard = max(self.guard, float(np.max(other[ONE])))
                return root
        return None

    def _bounded(self, node: Node) -> Terms | None:
        """Max(v, c), Clip(v, c) of what is never less than c; Max(root, c) with a tiny c."""
        names = [v for v in node.inputs if v]
        values = [self._values[v] for v in names if v in self._values]
        bounds = [self._program.constant(v) for v in names if v not in self._values]
        if node.op == "Relu":
            bounds = [np.zeros(())]
        if node.version < 11 and node.op == "Clip":
            if "max" in node.attributes:
                return None
            bounds = [np.asarray(node.attributes.get("min", 0.0))]
        if len(values) != 1 or len(bounds) != 1 or bounds[0] is None or bounds[0].size != 1:
            return None
        if node.op == "Clip" and node.version >= 11 and not node.input(1):
            return None
        terms, bound = values[0].terms, float(bounds[0].reshape(-1)[0])
        if bound <= 0 and _variance(terms):
            return terms
        if set(terms) == {ROOT} and bound <= _GUARD:
            self.guard = max(self.guard, bound)
            return terms
        return None

    def _reduced(self, node: Node, value: _Value) -> Terms | None:
        axes = reduction_axes(self._program, node)
        if value.shape != self._shape or not value.aligned or not axes or (self.axes and axes != self.axes):
            return None
        if any(c.ndim for c in value.terms.values()):
            return None
        self.axes = axes
        count = np.prod([self._shape[axis] for axis in axes]) if node.op == "ReduceSum" else 1
        means: dict[Monomial, np.ndarray] = {}
        for (x, m1, m2, q), c in value.terms.items():
            if x > _HIGHEST:
                return None
            monomial = (0, m1 + (x == 1), m2 + (x == 2), q)
            means[monomial] = means.get(monomial, np.asarray(0.0)) + c * count
        return means

    def _root(self, terms: Terms, monomial: Monomial) -> Terms | None:
        if self.radicand is not None or not _variance(terms):
            return None
        self.radicand = terms
        return {monomial: np.asarray(1.0)}

    def _power(self, terms: Terms, exponent: np.ndarray | None) -> Terms | None:
        if exponent is None or exponent.size != 1:
            return None
        power = float(exponent.reshape(-1)[0])
        if power == 2:
            return _product(terms, terms)
        if power in (0.5, -0.5):
            return self._root(terms, ROOT if power > 0 else Q)
        return _inverse(terms) if power == -1 else None

    # rows ------------------------------------------------------------------------------------

    @property
    def _rows(self) -> tuple[int, ...]:
        return tuple(1 if axis in self.axes else size for axis, size in enumerate(self._shape))

    def _is_aligned(self, shape: tuple[int, ...]) -> bool:
        return (1,) * (len(self._shape) - len(shape)) + shape == self._rows

    def _keeps_rows(self, value: _Value) -> bool:
        """Whether a value is one number per row, in the order of rows."""
        return not _has(value.terms, 0) and np.prod(value.shape) == np.prod(self._rows)


# polynomials ---------------------------------------------------------------------------------------


def _has(terms: Terms, variable: int) -> bool:
    return any(monomial[variable] for monomial in terms)


def _variance(terms: Terms) -> bool:
    """Whether a polynomial is a m2 + c or a (m2 - m1^2) + c with a > 0 and c >= 0: never negative."""
    if any(c.ndim for c in terms.values()) or not {M2} <= terms.keys() <= {M2, M1_SQUARED, ONE}:
        return False
    a, centre, c = (float(terms.get(monomial, 0.0)) for monomial in (M2, M1_SQUARED, ONE))
    return a > 0 and c >= 0 and (centre == 0 or bool(np.isclose(centre, -a, rtol=1e-5)))


def _scaled(terms: Terms, factor: float) -> Terms:
    return {monomial: c * factor for monomial, c in terms.items()}


def _sum(a: Terms, b: Terms) -> Terms:
    out = dict(a)
    for monomial, c in b.items():
        out[monomial] = np.asarray(out[monomial] + c) if monomial in out else c
    return out


def _product(a: Terms, b: Terms) -> Terms | None:
    out: dict[Monomial, np.ndarray] = {}
    for first, c in a.items():
        for second, d in b.items():
            x, m1, m2, q = (i + j for i, j in zip(first, second, strict=True))
            if x > _HIGHEST or abs(q) > 1:
                return None
            monomial = (x, m1, m2, q)
            out[monomial] = np.asarray(out.get(monomial, np.asarray(0.0)) + c * d)
    return out


def _inverse(terms: Terms) -> Terms | None:
    """1 / c, or 1 / (c q): nothing else has an inverse here."""
    if len(terms) != 1:
        return None
    ((monomial, c),) = terms.items()
    if monomial not in (ONE, Q, ROOT) or not np.all(c):
        return None
    return {(0, 0, 0, -monomial[3]): np.asarray(1 / c)}
