"""Function: the record of a contrib operator; Call: one node of it, as the writers of its body see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fadiff.converter.decompose.nodes import Nodes
from fadiff.converter.ir.program import Node, Program

MICROSOFT = "com.microsoft"
LEARNING = "ai.onnx.ml"


@dataclass(frozen=True)
class Call:
    """A node of a program that may have shapes of few values, and those static only."""

    node: Node
    program: Program

    def input(self, index: int) -> str:
        """Name of an input, empty when absent."""
        return self.node.input(index)

    def output(self, index: int) -> str:
        """Name of an output, empty when nobody wants it."""
        return self.node.outputs[index] if index < len(self.node.outputs) else ""

    def attribute(self, name: str, default: Any = None) -> Any:
        """Value of an attribute."""
        return self.node.attributes.get(name, default)

    def attributes(self, *names: str) -> dict[str, Any]:
        """Those of some attributes that the node has."""
        return {name: value for name in names if (value := self.attribute(name)) is not None}

    def constant(self, index: int) -> np.ndarray | None:
        """Content of an input that is constant."""
        return self.program.constant(self.input(index))

    def shape(self, index: int) -> tuple[int, ...] | None:
        """Shape of an input where it is known and static."""
        return self.program.shapes.get(self.input(index))

    def unshaped(self, *indices: int) -> str | None:
        """The refusal of a shape that is not known, of any of these inputs that are there."""
        unknown = next((v for i in indices if (v := self.input(i)) and v not in self.program.shapes), None)
        return None if unknown is None else f"the shape of {unknown} is not static"

    def sizes(self, index: int) -> tuple[int, ...]:
        """Shape of an input of which a constraint has asked for one."""
        return self.program.shapes[self.input(index)]


Constraint = Callable[[Call], str | None]


@dataclass(frozen=True)
class Function:
    """One operator with a body in standard ones.

    The docstrings of the constraints are the rules in docs/SUPPORTED_OPS.md.

    Attributes:
        inputs: how many of them the body reads; further ones are refused.
        attributes: those that it reads.
        neutral: further attributes, by the values that change nothing; others are refused.
        outputs: by index, those it gives; others are refused where somebody reads them.
    """

    op: str
    write: Callable[[Nodes, Call], None]
    inputs: int
    attributes: tuple[str, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    neutral: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    outputs: tuple[int, ...] = (0,)
    domain: str = MICROSOFT

    def refuses(self, call: Call) -> str | None:
        """Why the body does not say what a node does; None where it does."""
        for name, value in call.node.attributes.items():
            if name not in self.attributes and value not in self.neutral.get(name, ()):
                return f"attribute {name}={value}"
        extra = next((v for v in call.node.inputs[self.inputs :] if v), None)
        if extra is not None:
            return f"input {extra} is not understood"
        asked = next((i for i, v in enumerate(call.node.outputs) if v and i not in self.outputs), None)
        if asked is not None:
            return f"its output {call.output(asked)} is not computed"
        return next((why for c in self.constraints if (why := c(call)) is not None), None)
