"""If, Loop and Scan without decisions: constant branches are inlined, constant trip counts unrolled.

What stays has a condition or a trip count that is computed at run time, and is refused later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from fadiff.converter.ir.edit import FreshNames
from fadiff.converter.ir.program import static_shapes
from fadiff.converter.read.fold import constant_sizes, constant_tensors, fold_constants
from fadiff.converter.read.opsets import opset_of

_CONTROL = ("If", "Loop", "Scan")
_DEEPEST = 16
"""Branches within branches: each round of folding opens one level."""
_MOST_STEPS = 1024
_MOST_NODES = 50_000
_AXES_AS_INPUT = 13


def flatten_control_flow(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every If, Loop and Scan inlined whose course is known."""
    for _ in range(_DEEPEST):
        if not any(node.op_type in _CONTROL for node in model.graph.node):
            return model
        model = _with_constant_shapes(model)
        fold_constants(model)
        if not _Inliner(model).inline():
            return model
    return model


def _with_constant_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Shape operators replaced by constants where the shape is static."""
    del model.graph.value_info[:]
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    constant_sizes(model, _shapes(model.graph))
    return model


def _shapes(graph: GraphProto) -> dict[str, tuple[int, ...]]:
    return static_shapes(graph, (*graph.input, *graph.value_info))


class _Inliner:
    """Copies subgraphs into the main graph of a model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self.opset = opset_of(model)
        self.shapes = _shapes(model.graph)
        self.nodes: list[NodeProto] = []
        self.constants = constant_tensors(model.graph)
        self.fresh = FreshNames(model.graph)

    def inline(self) -> bool:
        """Whether anything was inlined."""
        changed = False
        for node in list(self.graph.node):
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            inlined = node.op_type in _CONTROL and {
                "If": self._branch,
                "Loop": self._loop,
                "Scan": self._scan,
            }[node.op_type](node, attributes)
            changed |= inlined
            if not inlined:
                self.nodes.append(node)
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)
        return changed

    def _value(self, name: str) -> np.ndarray | None:
        return numpy_helper.to_array(self.constants[name]) if name in self.constants else None

    def _constant(self, wanted: str, array: np.ndarray | np.generic) -> str:
        name = self.fresh.new(wanted)
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def _node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], output, **attributes))
        return output

    def _new(self, op: str, inputs: list[str], wanted: str, **attributes: Any) -> str:
        return self._node(op, inputs, self.fresh.new(wanted), **attributes)

    def _copy(
        self, body: GraphProto, prefix: str, given: Mapping[str, str], constants: Mapping[str, str]
    ) -> list[str]:
        """The body's nodes in the main graph under new names; where its outputs are.

        `constants` says where those of the body are (`_constants`).
        """
        names = {**given, **constants}
        nodes = [node for node in body.node if not names.keys() & set(node.output)]
        for node in nodes:
            names.update((value, self.fresh.new(f"{prefix}{value}")) for value in node.output if value)
        for node in nodes:
            copied = NodeProto()
            copied.CopyFrom(node)
            copied.name = self.fresh.node(f"{prefix}{node.name or node.output[0]}")
            _rename(copied, names)
            self.nodes.append(copied)
        return [names.get(value.name, value.name) for value in body.output]

    def _constants(self, body: GraphProto, prefix: str) -> dict[str, str]:
        """Constants of a body, once in the main graph for all its steps; their names there."""
        names = {}
        for name, tensor in constant_tensors(body).items():
            names[name] = self.fresh.new(f"{prefix}{name}")
            copy = self.graph.initializer.add()
            copy.CopyFrom(tensor)
            copy.name = names[name]
        return names

    def _give(self, values: list[str], outputs: list[str]) -> None:
        for value, output in zip(values, outputs, strict=False):
            if output:
                self._node("Identity", [value], output)

    def _branch(self, node: NodeProto, attributes: Mapping[str, GraphProto]) -> bool:
        condition = self._value(node.input[0])
        if condition is None:
            return False
        body = attributes["then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"]
        prefix = f"{_name(node)}/"
        self._give(self._copy(body, prefix, {}, self._constants(body, prefix)), list(node.output))
        return True

    def _loop(self, node: NodeProto, attributes: Mapping[str, GraphProto]) -> bool:
        body = attributes["body"]
        trips = self._value(node.input[0]) if node.input[0] else None
        go = self._value(node.input[1]) if len(node.input) > 1 and node.input[1] else np.asarray(True)
        if trips is None or go is None or not self._fits(body, int(trips.reshape(-1)[0])):
            return False
        if not _goes_on(body, self.constants):
            return False
        states, count = list(node.input[2:]), len(node.input) - 2
        collected: list[list[str]] = [[] for _ in body.output[1 + count :]]
        steps = int(trips.reshape(-1)[0]) if bool(go.reshape(-1)[0]) else 0
        if collected and not steps:
            return False
        true = self._constant(f"{_name(node)}/go", np.asarray(True)) if steps else ""
        constants = self._constants(body, f"{_name(node)}/") if steps else {}
        for t in range(steps):
            prefix = f"{_name(node)}/{t}/"
            number = self._constant(f"{prefix}number", np.int64(t))
            given = dict(zip([v.name for v in body.input], [number, true, *states], strict=True))
            results = self._copy(body, prefix, given, constants)[1:]
            states = results[:count]
            for values, value in zip(collected, results[count:], strict=True):
                values.append(value)
        joined = [self._stacked(node, i, values, 0) for i, values in enumerate(collected)]
        self._give([*states, *joined], list(node.output))
        return True

    def _scan(self, node: NodeProto, attributes: Mapping[str, GraphProto]) -> bool:
        body, inputs = attributes["body"], int(attributes["num_scan_inputs"])
        states, scanned = list(node.input[: len(node.input) - inputs]), list(node.input)[-inputs:]
        outputs = len(node.output) - len(states)
        axes_in, backwards_in = (
            _listed(attributes, f"scan_input_{k}", inputs) for k in ("axes", "directions")
        )
        axes_out, backwards_out = (
            _listed(attributes, f"scan_output_{k}", outputs) for k in ("axes", "directions")
        )
        if self.opset < 9 or any(value not in self.shapes for value in scanned):
            return False
        steps = self.shapes[scanned[0]][axes_in[0]]
        if not steps or not self._fits(body, steps):
            return False
        collected: list[list[str]] = [[] for _ in range(outputs)]
        constants = self._constants(body, f"{_name(node)}/")
        for t in range(steps):
            prefix = f"{_name(node)}/{t}/"
            slices = []
            for i, value in enumerate(scanned):
                at = self._constant(f"{prefix}at{i}", np.int64(steps - 1 - t if backwards_in[i] else t))
                slices.append(self._new("Gather", [value, at], f"{prefix}slice{i}", axis=axes_in[i]))
            given = dict(zip([v.name for v in body.input], [*states, *slices], strict=True))
            results = self._copy(body, prefix, given, constants)
            states = results[: len(states)]
            for values, value in zip(collected, results[len(states) :], strict=True):
                values.append(value)
        joined = [
            self._stacked(node, i, values[::-1] if backwards_out[i] else values, axes_out[i])
            for i, values in enumerate(collected)
        ]
        self._give([*states, *joined], list(node.output))
        return True

    def _fits(self, body: GraphProto, steps: int) -> bool:
        return steps <= _MOST_STEPS and steps * len(body.node) <= _MOST_NODES

    def _stacked(self, node: NodeProto, index: int, values: list[str], axis: int) -> str:
        """The values of all steps along a new axis."""
        name = f"{_name(node)}/all{index}"
        parts = []
        for t, value in enumerate(values):
            out = f"{name}.{t}"
            if self.opset >= _AXES_AS_INPUT:
                axes = self._constant(f"{out}.axes", np.asarray([axis], np.int64))
                parts.append(self._new("Unsqueeze", [value, axes], out))
            else:
                parts.append(self._new("Unsqueeze", [value], out, axes=[axis]))
        return self._new("Concat", parts, name, axis=axis)


def _listed(attributes: Mapping[str, object], name: str, count: int) -> list[int]:
    values = attributes.get(name)
    return [int(v) for v in values] if isinstance(values, (list, tuple)) else [0] * count


def _name(node: NodeProto) -> str:
    return node.name or node.output[0]


def _goes_on(body: GraphProto, outside: Mapping[str, TensorProto]) -> bool:
    """Whether a loop body never ends the loop: it returns true, or the condition it was given.

    `outside` are constants of the graph around it.
    """
    value = body.output[0].name
    producers = {output: node for node in body.node for output in node.output}
    while value in producers and producers[value].op_type in ("Identity", "Cast"):
        value = producers[value].input[0]
    if value == body.input[1].name:
        return True
    tensors = {**outside, **constant_tensors(body)}
    return value in tensors and bool(numpy_helper.to_array(tensors[value]).all())


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    """Names of values replaced, also where nested subgraphs read them."""
    for values in (node.input, node.output):
        for i, value in enumerate(values):
            values[i] = names.get(value, value)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            inner = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            inner |= {value for n in graph.node for value in n.output}
            outer = {name: new for name, new in names.items() if name not in inner}
            for inner_node in graph.node:
                _rename(inner_node, outer)
            for output in graph.output:
                output.name = outer.get(output.name, output.name)
