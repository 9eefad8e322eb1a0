"""Editor: a model while a pass changes it, as onnx_ir has it; FreshNames: names that it does not have yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx_ir
from onnx import helper
from onnx_ir import Value

from fadiff.converter.ir.program import Node
from fadiff.converter.names import free_name


class FreshNames:
    """Names for what is made beside a graph: none is that of something else in it, its loops and branches.

    Nodes and values do not see each other's names.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._values = names_in(graph)
        self._nodes = set(self._values)

    def new(self, wanted: str) -> str:
        """For a value: the name, or with a number.

        >>> fresh = FreshNames(onnx.parser.parse_graph("g (float[1] a) => (float[1] y) { y = Relu (a) }"))
        >>> fresh.new("a"), fresh.new("b"), fresh.new("b"), fresh.node("b")
        ('a_2', 'b', 'b_2', 'b')
        """
        return _taken(wanted, self._values)

    def node(self, wanted: str) -> str:
        """For a node."""
        return _taken(wanted, self._nodes)


def _taken(wanted: str, names: set[str]) -> str:
    name = free_name(wanted, names)
    names.add(name)
    return name


def names_in(graph: onnx.GraphProto) -> set[str]:
    """All names of nodes and values, those of loops and branches, too."""
    found = {named.name for named in (*graph.input, *graph.output, *graph.initializer)}
    for node in graph.node:
        found.update((node.name, *node.input, *node.output))
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                found |= names_in(inner)
    return found


class Editor:
    """Changes a copy of a model, which `model` gives; one that asks for nothing costs nothing.

    Nodes and values are found by what a Program says of the model as it was.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._before = model

    @cached_property
    def _model(self) -> onnx_ir.Model:
        return onnx_ir.from_proto(self._before)

    @cached_property
    def _graph(self) -> onnx_ir.Graph:
        return self._model.graph

    @cached_property
    def _fresh(self) -> FreshNames:
        return FreshNames(self._before.graph)

    @cached_property
    def _values(self) -> dict[str, Value]:
        return onnx_ir.convenience.create_value_mapping(self._graph, include_subgraphs=False)

    @cached_property
    def _nodes(self) -> Mapping[str | None, onnx_ir.Node]:
        return {value.name: node for node in self._graph for value in node.outputs}

    def model(self) -> onnx.ModelProto:
        """What became of it, without constants that nothing reads any more; itself if nobody looked at it."""
        if "_model" not in self.__dict__:
            return self._before
        for name, value in list(self._graph.initializers.items()):
            if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
                del self._graph.initializers[name]
        return onnx_ir.to_proto(self._model)

    def nodes(self) -> tuple[onnx_ir.Node, ...]:
        """All nodes of the main graph, in order."""
        return tuple(self._graph)

    def inputs(self) -> tuple[Value, ...]:
        """Inputs of the graph."""
        return tuple(self._graph.inputs)

    def value(self, name: str) -> Value:
        """The value that has this name now."""
        return self._values[name]

    def node(self, node: Node) -> onnx_ir.Node:
        """A node of the program."""
        return self.writer(next(filter(None, node.outputs)))

    def writer(self, name: str) -> onnx_ir.Node:
        """The node that gave a value at first."""
        return self._nodes[name]

    def constant(self, wanted: str, array: np.ndarray | np.generic) -> Value:
        """A new initializer, called so or nearly so."""
        name = self._fresh.new(wanted)
        content = onnx_ir.tensor(np.asarray(array, order="C"), name=name)
        kind = onnx_ir.TensorType(content.dtype)
        value = Value(name=name, shape=onnx_ir.Shape(content.numpy().shape), type=kind, const_value=content)
        self._graph.register_initializer(value)
        self._values[name] = value
        return value

    def input(self, wanted: str, dtype: onnx_ir.DataType, shape: Sequence[int]) -> Value:
        """A new input of the graph, called so or nearly so."""
        name, kind = self._fresh.new(wanted), onnx_ir.TensorType(dtype)
        value = self._values[name] = Value(name=name, shape=onnx_ir.Shape(shape), type=kind)
        self._graph.inputs.append(value)
        return value

    def drop_output(self, name: str) -> None:
        """Give a value out no more."""
        self._graph.outputs.remove(self._values[name])

    def insert(
        self,
        place: onnx_ir.Node,
        op: str,
        inputs: Sequence[Value | None],
        wanted: str,
        *,
        called: str = "",
        outputs: int = 1,
        behind: bool = False,
        **attributes: Any,
    ) -> Sequence[Value]:
        """What a new node gives, before or behind another; values and node are called so or nearly so."""
        node = onnx_ir.Node(
            "",
            op,
            inputs,
            [_attribute(key, value) for key, value in attributes.items()],
            outputs=[Value(name=self._fresh.new(f"{wanted}{i or ''}")) for i in range(outputs)],
            name=self._fresh.node(called or wanted),
        )
        (self._graph.insert_after if behind else self._graph.insert_before)(place, node)
        self._values.update((value.name, value) for value in node.outputs if value.name)
        return node.outputs

    def elementwise(
        self,
        place: onnx_ir.Node,
        op: str,
        inputs: Sequence[Value],
        wanted: str,
        *,
        called: str = "",
        behind: bool = False,
    ) -> Value:
        """The same of a node that gives what its first input is like."""
        (value,) = self.insert(place, op, inputs, wanted, called=called, behind=behind)
        value.shape, value.type = inputs[0].shape, inputs[0].type
        return value

    def set(self, node: onnx_ir.Node, **attributes: Any) -> None:
        """Give attributes of a node other values."""
        node.attributes.update((name, _attribute(name, value)) for name, value in attributes.items())

    def change_constant(self, node: Node, place: int, change: Callable[[np.ndarray], np.ndarray]) -> None:
        """A node of the program reads another constant; others who read the one before keep it."""
        reader = self.node(node)
        array = content_of(reader.inputs[place])
        assert array is not None
        reader.replace_input_with(place, self.constant(node.inputs[place], change(array)))

    def become(self, node: onnx_ir.Node, op: str, inputs: Sequence[Value | None]) -> None:
        """A node is another operator of ONNX, of these inputs."""
        node.op_type, node.domain = op, ""
        node.resize_inputs(len(inputs))
        for place, value in enumerate(inputs):
            node.replace_input_with(place, value)

    def name_of(self, value: Value) -> str:
        """The name of the node that gives a value."""
        node = value.producer()
        assert node is not None and node.name
        return node.name

    def put_behind_input(self, name: str, op: str, **attributes: Any) -> None:
        """A node that alone reads an input: the others read what it gives, which is like it."""
        source, readers = self._values[name], tuple(self._values[name].uses())
        if not readers:
            return
        (value,) = self.insert(self._graph[0], op, [source], f"{name}.number", **attributes)
        value.shape, value.type = source.shape, source.type
        for reader, place in readers:
            reader.replace_input_with(place, value)

    def give(self, place: onnx_ir.Node, values: Sequence[Value]) -> None:
        """Outputs of a node, which goes, are these values."""
        for before, value in zip(place.outputs, values, strict=False):
            if before.name:
                self.replace(before, self.insert(place, "Identity", [value], before.name)[0])
        self.remove(place)

    def forget_types(self) -> None:
        """Types and shapes of computed values are to be inferred again."""
        for value in (value for node in self._graph for value in node.outputs):
            if not value.is_graph_output():
                value.shape = value.type = None

    def hoisted(self, body: onnx_ir.Graph, prefix: str) -> dict[str, Value]:
        """Constants of a body in the main graph, where all copies of it read them; by their names there."""
        values = [*body.initializers.values(), *(n.outputs[0] for n in body if n.op_type == "Constant")]
        arrays = [(str(value.name), content_of(value)) for value in values]
        return {name: self.constant(f"{prefix}{name}", array) for name, array in arrays if array is not None}

    def inline(
        self,
        place: onnx_ir.Node,
        body: onnx_ir.Graph,
        prefix: str,
        given: Sequence[Value],
        constants: Mapping[str, Value],
    ) -> list[Value]:
        """What a body gives, copied in front of a node: with inputs as `given`, and `hoisted` constants."""
        copy = body.clone(allow_outer_scope_values=True)
        stands = dict(zip(copy.inputs, given, strict=True))
        inner = [*copy.initializers.values(), *(value for node in copy for value in node.outputs)]
        stands |= {value: there for value in inner if (there := constants.get(str(value.name))) is not None}
        results = [stands.get(value, value) for value in copy.outputs]
        copy.outputs.clear()
        for value, there in stands.items():
            for reader, at in tuple(value.uses()):
                reader.replace_input_with(at, there)
        nodes = [node for node in copy if not stands.keys() & set(node.outputs)]
        wanted = [f"{prefix}{node.name or node.outputs[0].name}" for node in nodes]
        for value in (value for node in nodes for value in node.outputs if value.name):
            value.name = self._fresh.new(f"{prefix}{value.name}")
        for node, name in zip(nodes, wanted, strict=True):
            node.name = self._fresh.node(name)
            copy.remove(node)
            self._graph.insert_before(place, node)
        return results

    def replace(self, before: Value, after: Value) -> None:
        """All who read a value, but for the node that gives the other, read that: it has the name now."""
        for reader, place in tuple(before.uses()):
            if reader is not after.producer():
                reader.replace_input_with(place, after)
        for place, output in enumerate(self._graph.outputs):
            if output is before:
                self._graph.outputs[place] = after
        after.shape, after.type = after.shape or before.shape, after.type or before.type
        before.name, after.name = after.name, before.name
        self._values.update((value.name, value) for value in (before, after) if value.name)

    def remove(self, node: onnx_ir.Node) -> None:
        """Take out a node that nobody reads any more."""
        self._graph.remove(node, safe=True)

    def take_over(self, node: onnx_ir.Node, value: Value) -> None:
        """Take out a node that nobody reads any more: what gives a value in its place is called as it was."""
        heir = value.producer()
        assert heir is not None
        self.remove(node)
        heir.name = node.name

    def move(self, node: onnx_ir.Node, before: onnx_ir.Node) -> None:
        """Put a node in front of another."""
        self._graph.remove(node)
        self._graph.insert_before(before, node)


def input_of(node: onnx_ir.Node, place: int) -> Value | None:
    """An input of a node, None where it is absent."""
    return node.inputs[place] if place < len(node.inputs) else None


def content_of(value: Value | None) -> np.ndarray | None:
    """The content of a constant, None of another value or none."""
    tensor = None if value is None else onnx_ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def _attribute(name: str, value: Any) -> onnx_ir.Attr:
    return onnx_ir.serde.deserialize_attribute(helper.make_attribute(name, value))
