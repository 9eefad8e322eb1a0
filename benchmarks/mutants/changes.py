"""Small wrong changes of source: one comparison, sum, product, condition or small number each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SWAPPED: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip
_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
_MOST = 16
"""Larger numbers are limits that no small test reaches."""


@dataclass(frozen=True)
class Mutant:
    """A changed source file."""

    path: Path
    function: str
    """Qualified name of the one that it stands in; "" where it runs when the module is imported."""
    lines: range
    """Those of the innermost statement, or of the head of a compound one."""
    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after}"


def places(source: str) -> list[int]:
    """What can be changed: positions in `ast.walk`."""
    nodes = list(ast.walk(ast.parse(source)))
    within = {id(part) for node in nodes for part in _parts_of_number(node)}
    return [place for place, node in enumerate(nodes) if id(node) not in within and _is_changeable(node)]


def _parts_of_number(node: ast.AST) -> list[ast.expr]:
    """-1 is one number, and so is 2**20."""
    if isinstance(node, ast.UnaryOp) and _is_changeable(node):
        return [node.operand]
    is_power = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
    parts = [node.left, node.right] if is_power else []  # type: ignore[attr-defined]
    return parts if all(isinstance(part, ast.Constant) for part in parts) else []


def mutant(path: Path, source: str, place: int) -> Mutant:
    """The file with the node at a place changed."""
    tree = ast.parse(source)
    node = next(other for i, other in enumerate(ast.walk(tree)) if i == place)
    assert isinstance(node, ast.expr)
    function, lines = next(
        (function, lines) for inner, function, lines in _statements(tree) if any(n is node for n in inner)
    )
    before = ast.unparse(node)
    _change(node)
    return Mutant(path, function, lines, node.lineno, before, ast.unparse(node), ast.unparse(tree))


def _is_changeable(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return type(node.ops[0]) in _SWAPPED
    if isinstance(node, (ast.BinOp, ast.BoolOp)):
        return type(node.op) in _SWAPPED
    return isinstance(node, ast.IfExp) or _number(node) is not None


def _number(node: ast.AST) -> int | None:
    """The small number that a node is, with its sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value <= _MOST:
        return node.value
    return None


def _change(node: ast.expr) -> None:
    if isinstance(node, ast.Compare):
        node.ops[0] = _SWAPPED[type(node.ops[0])]()
    elif isinstance(node, (ast.BinOp, ast.BoolOp)):
        node.op = _SWAPPED[type(node.op)]()
    elif isinstance(node, ast.IfExp):
        node.body, node.orelse = node.orelse, node.body
    elif isinstance(node, ast.UnaryOp):
        node.operand = ast.Constant(-(_number(node) or 0) - 1)
    elif isinstance(node, ast.Constant):
        node.value += 1  # type: ignore[operator]


def _statements(
    tree: ast.AST, within: str = "", function: str = ""
) -> Iterator[tuple[list[ast.AST], str, range]]:
    """Each statement: its nodes without those of statements in it, the function around it, its lines."""
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, _STATEMENTS):
            continue
        own = list(_own(child))
        is_compound = any(isinstance(inner, _STATEMENTS) for inner in ast.iter_child_nodes(child))
        ends = [node.end_lineno or 0 for node in own if isinstance(node, ast.expr)]
        if isinstance(child, ast.match_case):
            first = last = child.pattern.lineno
        else:
            first, last = child.lineno, child.end_lineno or child.lineno
        last = max(ends, default=first) if is_compound else last
        yield own, function, range(first, last + 1)
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            name = f"{within}.{child.name}" if within else child.name
            yield from _statements(child, name, name if isinstance(child, ast.FunctionDef) else function)
        else:
            yield from _statements(child, within, function)


def _own(statement: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, _STATEMENTS):
            yield child
            yield from _own(child)
