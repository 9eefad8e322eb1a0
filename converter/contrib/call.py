"""Function: the record of a contrib operator; Call: one node of it, as the writers of its body see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from fadiff.converter.decompose.nodes import Nodes

MICROSOFT = "com.microsoft"
LEARNING = "ai.onnx.ml"


@dataclass(frozen=True)
class Call:
    """A node, with what is known of the values around it.

    `shapes` has static shapes only; `producers` are the nodes that compute values.
    """

    proto: NodeProto
    constants: Mapping[str, onnx.TensorProto]
    shapes: Mapping[str, tuple[int, ...]]
    producers: Mapping[str, NodeProto]

    def input(self, index: int) -> str:
        """Name of an input, empty when absent."""
        return str(self.proto.input[index]) if index < len(self.proto.input) else ""

    def output(self, index: int) -> str:
        """Name of an output, empty when nobody wants it."""
        return str(self.proto.output[index]) if index < len(self.proto.output) else ""

    def attribute(self, name: str, default: Any = None) -> Any:
        """Value of an attribute; texts are decoded."""
        for attribute in self.proto.attribute:
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def attributes(self, *names: str) -> dict[str, Any]:
        """Those of some attributes that the node has."""
        return {name: value for name in names if (value := self.attribute(name)) is not None}

    def constant(self, index: int) -> np.ndarray | None:
        """Content of an input that is constant."""
        tensor = self.constants.get(self.input(index))
        return None if tensor is None else numpy_helper.to_array(tensor)

    def shape(self, index: int) -> tuple[int, ...] | None:
        """Shape of an input where it is known and static."""
        return self.shapes.get(self.input(index))

    def unshaped(self, *indices: int) -> str | None:
        """The refusal of a shape that is not known, of any of these inputs that are there."""
        unknown = next((v for i in indices if (v := self.input(i)) and v not in self.shapes), None)
        return None if unknown is None else f"the shape of {unknown} is not static"

    def sizes(self, index: int) -> tuple[int, ...]:
        """Shape of an input of which a constraint has asked for one."""
        return self.shapes[self.input(index)]


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
        for attribute in call.proto.attribute:
            value = call.attribute(attribute.name)
            if attribute.name not in self.attributes and value not in self.neutral.get(attribute.name, ()):
                return f"attribute {attribute.name}={value}"
        extra = next((v for v in call.proto.input[self.inputs :] if v), None)
        if extra is not None:
            return f"input {extra} is not understood"
        asked = next((i for i, v in enumerate(call.proto.output) if v and i not in self.outputs), None)
        if asked is not None:
            return f"its output {call.output(asked)} is not computed"
        return next((why for c in self.constraints if (why := c(call)) is not None), None)
