"""Functions of one float32 element as C: one static function per distinct formula of the graph."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fadiff.converter.ir.graph import Graph, HostLayer
from fadiff.converter.ir.host import Formula
from fadiff.emitters.gemmini.printer import CPrinter

_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_COMPARISONS = {
    "equal": "==",
    "greater": ">",
    "greater_or_equal": ">=",
    "less": "<",
    "less_or_equal": "<=",
}
_FUNCTIONS: Mapping[str, str] = {
    **{name: f"{name}f" for name in ("pow", "exp", "log", "sqrt", "erf", "tanh", "sin", "cos", "tan")},
    **{name: f"{name}f" for name in ("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")},
    **{name: f"{name}f" for name in ("floor", "ceil")},
    "abs": "fabsf",
    "round": "rintf",
    "max": "MAX",
    "min": "MIN",
}


def float_literal(value: float) -> str:
    """A C hexadecimal float constant: exact, the same on every compiler."""
    if not math.isfinite(value):
        return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
    return f"{float(value).hex()}f"


def formula_name(graph: Graph, layer: HostLayer) -> str:
    """The C function of a `formula` layer; layers with the same formula share it."""
    assert isinstance(layer.operator, Formula)
    return f"formula_{_formulas(graph).index(layer.operator.formula)}"


def print_formulas(c: CPrinter, graph: Graph) -> None:
    """All formulas of the graph, in order of first use."""
    for number, formula in enumerate(_formulas(graph)):
        c.line()
        with c.function(f"static float formula_{number}(float x)"):
            for place, step in enumerate(formula):
                primitive, *operands = step.split()
                c.line(f"const float v{place} = {_expression(primitive, [_operand(o) for o in operands])};")
            c.line(f"return v{len(formula) - 1};")


def _formulas(graph: Graph) -> list[tuple[str, ...]]:
    operators = (layer.operator for layer in graph.layers if isinstance(layer, HostLayer))
    return list(dict.fromkeys(o.formula for o in operators if isinstance(o, Formula)))


def _operand(operand: str) -> str:
    return operand if operand[0] in "xv" else float_literal(float(operand))


def _expression(primitive: str, operands: list[str]) -> str:
    if primitive in _OPERATORS:
        return f"{operands[0]} {_OPERATORS[primitive]} {operands[1]}"
    if primitive in _COMPARISONS:
        return f"{operands[0]} {_COMPARISONS[primitive]} {operands[1]} ? 1.0f : 0.0f"
    if primitive == "neg":
        return f"-{operands[0]}"
    if primitive == "where":
        condition, then, otherwise = operands
        return f"{condition} != 0.0f ? {then} : {otherwise}"
    return f"{_FUNCTIONS[primitive]}({', '.join(operands)})"
