"""Errors of the front end: one line, with file, node and remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class BadInput(Exception):
    """Something the user gave cannot be used; the message is one line that names it and the remedy."""


class ModelError(BadInput, ValueError):
    """A model that cannot be converted."""


@dataclass(frozen=True)
class Unsupported:
    """One node that cannot be lowered: why, and what the user can do about it."""

    node: str
    op: str
    domain: str
    reason: str
    remedy: str = "replace it before exporting"

    def __str__(self) -> str:
        domain = self.domain or "ai.onnx"
        return f"{self.node} ({domain}.{self.op}): {self.reason}; {self.remedy}"


class UnsupportedError(ModelError):
    """Every unsupported node of a model, in one message; nodes refused alike are listed together.

    Attributes:
        problems: one entry per node.
        file: the model.
    """

    def __init__(self, file: str, problems: Iterable[Unsupported], advice: str = "") -> None:
        self.problems = tuple(problems)
        self.file = file
        groups: dict[tuple[str, ...], list[Unsupported]] = {}
        for problem in self.problems:
            kind = _NAMES.sub("", problem.reason)
            groups.setdefault((problem.domain, problem.op, kind, problem.remedy), []).append(problem)
        count = len(self.problems)
        what = "operator is" if count == 1 else "operators are"
        said = " | ".join(map(_line, groups.values()))
        super().__init__(f"{file}: {count} {what} not supported: {said}{advice and f' || {advice}'}")


_NAMES = re.compile(r"\S*[/.\d\[\]_]\S*")
"""Words that differ between the reasons of like nodes: names of values, shapes, numbers."""
_MOST_NAMED = 3


def _line(alike: Sequence[Unsupported]) -> str:
    """One refusal, or several of one operator for the same reason."""
    first, count = alike[0], len(alike)
    if count == 1:
        return str(first)
    named = ", ".join(problem.node for problem in alike[:_MOST_NAMED])
    more = f" and {count - _MOST_NAMED} more" if count > _MOST_NAMED else ""
    domain = first.domain or "ai.onnx"
    return f"{domain}.{first.op} x {count}: nodes {named}{more}: {first.reason}; {first.remedy}"


def one_line(error: BaseException) -> str:
    """The message of a library's error without line breaks; of what caused it, where it says that."""
    while error.__cause__ is not None and str(error.__cause__):
        error = error.__cause__
    return " ".join(str(error).split())
