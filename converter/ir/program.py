"""Program: an ONNX graph as plain frozen data, the form that planning and lowering read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from fadiff.converter.ir.recurrence import Operation, State, shared_roles
from fadiff.converter.ir.stored import NOTHING_STORED, Constants, StoredWeights

FLOATS = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.DOUBLE,
)

NARROW_INTEGERS = (
    onnx.TensorProto.INT8,
    onnx.TensorProto.UINT8,
    onnx.TensorProto.INT16,
    onnx.TensorProto.UINT16,
)
INTEGERS = (
    *NARROW_INTEGERS,
    onnx.TensorProto.INT32,
    onnx.TensorProto.UINT32,
    onnx.TensorProto.INT64,
    onnx.TensorProto.UINT64,
)


@dataclass(frozen=True)
class Node:
    """One operator application.  An absent optional input or output is an empty string."""

    name: str
    op: str
    domain: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    proto: onnx.NodeProto = field(repr=False, compare=False)
    """The node as the model has it."""

    def input(self, index: int) -> str:
        """Name of an input, empty when absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def output(self, index: int) -> str:
        """Name of an output, empty when nobody wants it."""
        return self.outputs[index] if index < len(self.outputs) else ""

    def some(self, *names: str) -> dict[str, Any]:
        """Those of some attributes that the node has."""
        return {name: self.attributes[name] for name in names if name in self.attributes}


@dataclass(frozen=True)
class Program:
    """A normalised model, and what is read from it: nodes in topological order, constants, shapes and element
    types by value name."""

    model: onnx.ModelProto = field(repr=False, compare=False)
    weights: StoredWeights = field(repr=False, compare=False)
    """Inputs of the model's graph that are constants, stored on disk."""
    nodes: tuple[Node, ...]
    constants: Mapping[str, np.ndarray]
    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    states: tuple[State, ...] = ()
    """Outputs that are inputs of the next run: both are stored alike."""
    common_scales: Mapping[str, float] = field(default_factory=dict)
    """Of values that other programs have, too (what states come in by, outputs): the scale of all of them."""
    float_inputs: frozenset[str] = frozenset()
    """Inputs that the program around hands over in float32, on an int8 array, too."""
    byte_inputs: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Inputs that come as uint8, with scale and zero point; one node alone reads each."""

    @property
    def interface(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and type of every input."""
        return {name: (self.shapes[name], self.numpy_type(name)) for name in self.inputs}

    def changed(self, model: onnx.ModelProto) -> Program:
        """Of a model that has the ends of this one; what is known of inputs and states still holds."""
        kept = {
            name: getattr(self, name) for name in ("states", "common_scales", "float_inputs", "byte_inputs")
        }
        return replace(program_of(model, self.weights), **kept)

    @property
    def stored(self) -> frozenset[str]:
        """Names of the constants that are on disk."""
        return frozenset(self.weights)

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        """The node that computes a value."""
        return {value: node for node in self.nodes for value in node.outputs if value}

    @cached_property
    def _consumers(self) -> Mapping[str, tuple[Node, ...]]:
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.inputs):
                found.setdefault(value, []).append(node)
        return {value: tuple(nodes) for value, nodes in found.items()}

    @cached_property
    def roles(self) -> Mapping[str, str]:
        """Values of the equal steps of a recurrence by the first value that has the same role in its step.

        Steps are equal whatever their number: integers, which say what they pick, are not looked at.
        """
        return shared_roles([self._operation(node) for node in self.nodes])

    def _operation(self, node: Node) -> Operation:
        constants = [value for value in node.inputs if value in self.constants]
        kind = (
            node.op,
            node.domain,
            str(sorted((key, value) for key, value in node.attributes.items() if key != "body")),
            tuple(self.shapes.get(value) for value in (*node.inputs, *node.outputs)),
            tuple(self._content(value) for value in constants),
        )
        return Operation(kind, tuple(self.activations(node)), node.outputs)

    def _content(self, constant: str) -> str | bytes:
        """The key that tells a constant from others: its name, or all of a small one."""
        if not self.is_float(constant):
            return ""
        small = constant not in self.stored and self.constants[constant].size == 1
        return self.constants[constant].tobytes() if small else constant

    def consumers(self, value: str) -> tuple[Node, ...]:
        """The nodes that read a value."""
        return self._consumers.get(value, ())

    def sole_consumer(self, value: str) -> Node | None:
        """The one node that reads a value which is not a graph output, else None."""
        nodes = self.consumers(value)
        return nodes[0] if len(nodes) == 1 and value not in self.outputs else None

    def is_float(self, value: str) -> bool:
        """Whether a value holds floating-point numbers."""
        return self.types.get(value) in FLOATS

    def is_integer(self, value: str) -> bool:
        """Whether a value holds integers of 8 bits or more."""
        return self.types.get(value) in INTEGERS

    def is_bool(self, value: str) -> bool:
        """Whether a value holds booleans."""
        return self.types.get(value) == onnx.TensorProto.BOOL

    def numpy_type(self, value: str) -> np.dtype[Any]:
        """Element type of a value."""
        return onnx.helper.tensor_dtype_to_np_dtype(self.types[value])

    def constant(self, value: str) -> np.ndarray | None:
        """Content of a constant, None for a computed or absent value."""
        return self.constants.get(value) if value else None

    def activations(self, node: Node) -> Iterator[str]:
        """The inputs of a node that are computed, in order."""
        return (value for value in node.inputs if value and value not in self.constants)


def static_shapes(
    graph: onnx.GraphProto, values: Iterable[onnx.ValueInfoProto]
) -> dict[str, tuple[int, ...]]:
    """Shapes of constants, and of those of some values of which every size is known, by name."""
    found = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in values:
        tensor_type = value.type.tensor_type
        if tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in tensor_type.shape.dim):
            found[value.name] = tuple(d.dim_value for d in tensor_type.shape.dim)
    return found


def program_of(model: onnx.ModelProto, weights: StoredWeights = NOTHING_STORED) -> Program:
    """Read a normalised model (subgraphs already folded away or left as attributes)."""
    graph = model.graph
    opsets = {o.domain or "": o.version for o in model.opset_import}
    opsets.setdefault("", opsets.get("ai.onnx", 0))
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    types = {t.name: t.data_type for t in graph.initializer}
    values = (*graph.input, *graph.value_info, *graph.output)
    for value in values:
        kind = value.type.tensor_type.elem_type
        if kind or value.name not in types:  # (an output without a type may be a constant)
            types[value.name] = kind
    nodes = []
    for node in graph.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        nodes.append(
            Node(
                name=node.name,
                op=node.op_type,
                domain=domain,
                version=opsets.get(domain, 1),
                inputs=tuple(node.input),
                outputs=tuple(node.output),
                attributes={a.name: _attribute(a) for a in node.attribute},
                proto=node,
            )
        )
    return Program(
        model=model,
        weights=weights,
        nodes=tuple(nodes),
        constants=Constants(constants, weights) if weights else constants,
        shapes=static_shapes(graph, values),
        types=types,
        inputs=tuple(v.name for v in graph.input if v.name not in constants and v.name not in weights),
        outputs=tuple(v.name for v in graph.output),
    )


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, (str, int, float, onnx.GraphProto)):
        return value
    return tuple(v.decode() if isinstance(v, bytes) else v for v in value)
