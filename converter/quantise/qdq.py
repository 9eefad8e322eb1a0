"""Write a quantisation back as a QDQ model that ONNX Runtime runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from onnx import helper

from fadiff.converter.ir.edit import names_in
from fadiff.converter.ir.program import Program
from fadiff.converter.ir.scale import Scale
from fadiff.converter.ir.stored import WeightFile, initializer
from fadiff.converter.names import free_name
from fadiff.converter.plan.floats import float_states
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.weights import Quantisation, Quantised


@dataclass(frozen=True)
class Pair:
    """What a stored value has in the quantised model: names of scale, zero point, integers, and of the value
    before it is rounded."""

    scale: str
    zero: str
    integers: str
    exact: str


@dataclass(frozen=True)
class Written:
    """A quantised model, and where in it is what it was made of."""

    model: onnx.ModelProto
    pairs: Mapping[str, Pair]
    """Of values of the float model."""
    constants: Mapping[tuple[str, str], str]
    """What integers of constants mean, as `stored_constants` keys them."""

    def exact(self, value: str) -> str:
        """A value before it is rounded, if it is."""
        return self.pairs[value].exact if value in self.pairs else value


def written(
    program: Program,
    steps: Sequence[Step],
    quantisation: Quantisation,
    file: WeightFile | None = None,
) -> Written:
    """The float model with a QuantizeLinear / DequantizeLinear pair on every stored value (none between steps
    that are kept in float; where a state is, only in front of steps that read it in int8; of what an output
    joins, on the parts).

    Weights become int8, biases int32 initializers behind a DequantizeLinear, so the file holds
    the very integers that are lowered.  Graph input and output names stay.  Large constants go to
    `file`, if there is one; the model then belongs beside it.
    """
    out = onnx.ModelProto()
    out.CopyFrom(program.model)
    graph = out.graph
    pairs = _Pairs(names_in(program.model.graph), file)
    replaced = {
        place: pairs.constant(label, content)
        for place, (label, content) in stored_constants(program, steps, quantisation).items()
    }
    stored = {
        value: scale for value, scale in quantisation.scales.items() if value not in quantisation.joined
    }
    floats = {name for step in steps if step.is_float for name in step.onnx_nodes}
    states = {end for state in float_states(program, steps) for end in (state.input, state.output)}
    states |= program.float_inputs
    for node in graph.node:
        for i, value in enumerate(node.input):
            if node.name in floats and value in states:
                continue
            writer = program.producer.get(value)
            if node.name in floats and value in stored and writer is not None and writer.name in floats:
                node.input[i] = pairs.name(value, "float")
                continue
            value_is_weight = ("", value) in replaced and _reads_quantised(steps, node.name, value)
            if (node.name, value) in replaced:
                node.input[i] = replaced[(node.name, value)]
            elif value_is_weight:
                node.input[i] = replaced[("", value)]
            elif value in program.byte_inputs and program.is_float(value):
                scale, zero = program.byte_inputs[value]
                meant = Scale(scale, zero)
                node.input[i] = pairs.activation(value, value, pairs.name(value, "dq"), meant, np.uint8)
            elif value in stored and (value in program.inputs or value in states):
                node.input[i] = pairs.activation(value, value, pairs.name(value, "dq"), stored[value])
        for i, value in enumerate(node.output):
            if value in stored and value not in states:
                node.output[i] = pairs.name(value, "float")
                pairs.activation(node.output[i], value, value, stored[value])
    graph.node.extend(pairs.nodes)
    graph.initializer.extend(pairs.initializers)
    used = {value for node in graph.node for value in node.input} | set(program.outputs)
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    inputs = [value for value in graph.input if value.name in program.inputs]  # not weights on disk
    del graph.input[:]
    graph.input.extend(inputs)
    return Written(_sorted(out), pairs.done, replaced)


def stored_constants(
    program: Program, steps: Sequence[Step], quantisation: Quantisation
) -> dict[tuple[str, str], tuple[str, Quantised]]:
    """What the QDQ model holds as integers, and its label: by node ("": all that read integers) and name."""
    found = {}
    for step in steps:
        bias = quantisation.biases.get(step.name)
        if bias is None:
            continue
        node = step.nodes[1] if step.bias else step.head
        name = step.bias or step.head.input(2)
        data = bias.data.reshape(program.constants[name].shape)
        beta = step.head.attributes.get("beta", 1.0) if node.op == "Gemm" else 1.0
        steps_of_bias = bias.step / np.float32(beta or 1.0)
        if steps_of_bias.ndim:
            steps_of_bias = steps_of_bias.reshape(data.shape)
        found[node.name, name] = (f"{step.name}.bias", Quantised(data, steps_of_bias))
    for name, weight in quantisation.weights.items():
        found["", name] = (name, weight)
    return found


def _reads_quantised(steps: Sequence[Step], node: str, value: str) -> bool:
    """Whether `node` heads a step (only heads read int8 constants) that is not kept in float."""
    return any(
        step.head.name == node and step.kind == "node" and value in step.head.inputs and not step.is_float
        for step in steps
    )


class _Pairs:
    """Nodes and initializers of Q/DQ pairs, each made once."""

    def __init__(self, taken: Collection[str], file: WeightFile | None) -> None:
        self._taken, self._file = taken, file
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.done: dict[str, Pair] = {}
        self._constants: set[str] = set()

    def name(self, value: str, part: Literal["scale", "zero", "q", "dq", "float"]) -> str:
        """Of what is made for a value: `y.scale`, if none is called so."""
        return free_name(f"{value}.{part}", self._taken)

    def _initializer(self, name: str, array: np.ndarray) -> str:
        self.initializers.append(initializer(name, np.asarray(array, order="C"), self._file))
        return name

    def constant(self, name: str, content: Quantised) -> str:
        out = self.name(name, "dq")
        if out not in self._constants:
            self._constants.add(out)
            data = self._initializer(self.name(name, "q"), content.data)
            steps, axis = np.asarray(content.step, np.float32), dict[str, Any]()
            if steps.ndim:
                steps, axis = steps.reshape(-1), {"axis": int(np.argmax(steps.shape))}
            scale = self._initializer(self.name(name, "scale"), steps)
            zero = self._initializer(self.name(name, "zero"), np.zeros(steps.shape, content.data.dtype))
            self.nodes.append(
                helper.make_node("DequantizeLinear", [data, scale, zero], [out], name=out, **axis)
            )
        return out

    def activation(
        self, source: str, value: str, out: str, meant: Scale, dtype: type[np.integer[Any]] = np.int8
    ) -> str:
        if value not in self.done:
            scale = self._initializer(self.name(value, "scale"), np.asarray(meant.step, np.float32))
            zero = self._initializer(self.name(value, "zero"), np.asarray(meant.zero, dtype))
            q = self.name(value, "q")
            self.done[value] = Pair(scale, zero, q, source)
            self.nodes.append(
                helper.make_node("QuantizeLinear", [source, scale, zero], [q], name=f"{value}.Q")
            )
            self.nodes.append(
                helper.make_node("DequantizeLinear", [q, scale, zero], [out], name=f"{value}.DQ")
            )
        return out


def _sorted(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnx_ir
    from onnx_ir.passes.common import TopologicalSortPass

    ir_model = onnx_ir.from_proto(model)
    TopologicalSortPass()(ir_model)
    return onnx_ir.to_proto(ir_model)
