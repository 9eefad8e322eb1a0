"""What the front end says when it cannot go on: one line, with file, node and remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class ModelError(ValueError):
    """A model that cannot be converted; the message is one line for the user."""


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
    """Every unsupported node of a model, in one message.

    Attributes:
        problems: one entry per node.
    """

    def __init__(self, file: str, problems: Iterable[Unsupported]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        what = "operator is" if count == 1 else "operators are"
        super().__init__(f"{file}: {count} {what} not supported: " + " | ".join(map(str, self.problems)))


def one_line(error: BaseException) -> str:
    """The message of a library's error without line breaks."""
    return " ".join(str(error).split())
