"""Decomposition: an operator that is written as others; Nodes: these, as they are written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir

from fadiff.converter.ir.edit import Editor
from fadiff.converter.ir.program import Node, Program

_AXES_AS_INPUT = {"ReduceSum": 13}
_OTHER_REDUCTIONS = 18
_SLICES_BY_INPUTS = 10


class Nodes:
    """New nodes and constants in place of a node, in the opset of the model; values by name."""

    def __init__(self, edit: Editor, place: onnx_ir.Node, opset: int) -> None:
        self.name = place.name or place.op_type
        self.opset = opset
        self._edit, self._place = edit, place
        self._made, self._constants = 0, dict[tuple[str, tuple[int, ...], bytes], str]()

    def op(self, op: str, *inputs: str, label: str = "", **attributes: Any) -> str:
        """One node with one output; returns the value's name."""
        return self.ops(op, 1, *inputs, label=label, **attributes)[0]

    def ops(self, op: str, count: int, *inputs: str, label: str = "", **attributes: Any) -> list[str]:
        """One node with `count` outputs."""
        called = f"{self.name}.{label or op}_{self._made}"
        self._made += 1
        values = [self._edit.value(name) if name else None for name in inputs]
        made = self._edit.insert(
            self._place, op, values, f"{called}.out", called=called, outputs=count, **attributes
        )
        return [value.name for value in made if value.name]

    def constant(self, array: np.ndarray | np.generic, label: str = "constant") -> str:
        """A new initializer, the old one where it has the same content."""
        array = np.asarray(array, order="C")
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            wanted = f"{self.name}.{label}_{len(self._constants)}"
            self._constants[key] = str(self._edit.constant(wanted, array).name)
        return self._constants[key]

    def ints(self, values: Sequence[int]) -> str:
        """An int64 vector."""
        return self.constant(np.asarray(values, np.int64))

    def number(self, value: float) -> str:
        """A float32 scalar."""
        return self.constant(np.float32(value))

    def give(self, value: str, output: str) -> None:
        """`value` is what the replaced node gave as `output`."""
        if output:
            called = f"{self.name}.{output}"
            (made,) = self._edit.insert(
                self._place, "Identity", [self._edit.value(value)], f"{called}.out", called=called
            )
            self._edit.replace(self._edit.value(output), made)
            self._made += 1

    # frequent operators --------------------------------------------------------------------

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """The same elements under another shape."""
        return self.op("Reshape", value, self.ints(shape))

    def transpose(self, value: str, order: Sequence[int]) -> str:
        """Axes permuted; the value itself where the order is the identity."""
        return value if list(order) == list(range(len(order))) else self.op("Transpose", value, perm=order)

    def slice(self, value: str, axis: int, start: int, end: int) -> str:
        """Indices start to end of an axis."""
        if self.opset < _SLICES_BY_INPUTS:
            return self.op("Slice", value, axes=[axis], starts=[start], ends=[end])
        return self.op("Slice", value, self.ints([start]), self.ints([end]), self.ints([axis]))

    def pick(self, value: str, axis: int, index: int) -> str:
        """One index of an axis, which disappears."""
        return self.op("Gather", value, self.constant(np.int64(index)), axis=axis)

    def reduce(self, op: str, value: str, axes: Sequence[int]) -> str:
        """A Reduce operator over the axes, which stay with size one."""
        if self.opset >= _AXES_AS_INPUT.get(op, _OTHER_REDUCTIONS):
            return self.op(op, value, self.ints(axes), keepdims=1)
        return self.op(op, value, axes=list(axes), keepdims=1)


Constraint = Callable[[Program, Node], str | None]
"""Why a node is not written as others; None: it is."""


def always(program: Program, node: Node) -> bool:
    """Always."""
    return True


@dataclass(frozen=True)
class Decomposition:
    """One operator that is written as others where it `applies` and the constraints hold.

    The docstrings of both are the rules in docs/SUPPORTED_OPS.md.
    """

    op: str
    write: Callable[[Nodes, Program, Node], None]
    constraints: tuple[Constraint, ...] = ()
    applies: Callable[[Program, Node], bool] = always


MICROSOFT = "com.microsoft"
LEARNING = "ai.onnx.ml"


@dataclass(frozen=True)
class Function:
    """One operator of ONNX Runtime or of another domain, with a body in standard ones.

    The docstrings of the constraints are the rules in docs/SUPPORTED_OPS.md.

    Attributes:
        inputs: how many of them the body reads; further ones are refused.
        attributes: those that it reads.
        neutral: further attributes, by the values that change nothing; others are refused.
        outputs: by index, those it gives; others are refused where somebody reads them.
    """

    op: str
    write: Callable[[Nodes, Program, Node], None]
    inputs: int
    attributes: tuple[str, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    neutral: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    outputs: tuple[int, ...] = (0,)
    domain: str = MICROSOFT

    def refuses(self, program: Program, node: Node) -> str | None:
        """Why the body does not say what a node does; None where it does."""
        for name, value in node.attributes.items():
            if name not in self.attributes and value not in self.neutral.get(name, ()):
                return f"attribute {name}={value}"
        extra = next((v for v in node.inputs[self.inputs :] if v), None)
        if extra is not None:
            return f"input {extra} is not understood"
        asked = next((v for i, v in enumerate(node.outputs) if v and i not in self.outputs), None)
        if asked is not None:
            return f"its output {asked} is not computed"
        return next((why for c in self.constraints if (why := c(program, node)) is not None), None)


def unshaped(program: Program, node: Node, *indices: int) -> str | None:
    """The refusal of a shape that is not known, of any of these inputs that are there."""
    unknown = next((v for i in indices if (v := node.input(i)) and v not in program.shapes), None)
    return None if unknown is None else f"the shape of {unknown} is not static"
