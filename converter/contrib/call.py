"""Call: one node of a contrib operator, as the writers of its body see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper


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
