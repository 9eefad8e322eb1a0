"""Write a quantisation back as a QDQ model that ONNX Runtime runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import onnx
from onnx import helper

from fadiff.converter.ir.edit import names_in
from fadiff.converter.ir.program import Program
from fadiff.converter.ir.scale import Scale
from fadiff.converter.ir.stored import WeightFile, initializer
from fadiff.converter.plan.floats import float_states
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.weights import Quantisation, Quantised


class PartNames:
    """Names of what a quantised model has beside values of the float one: `y.scale`, if none is called so."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._taken = names_in(model.graph)

    def of(self, value: str, part: Literal["scale", "zero", "q", "dq", "float", "forced"]) -> str:
        """Scale, zero point, integers, what they mean, the value before it is rounded, other integers."""
        name = f"{value}.{part}"
        while name in self._taken:
            name += "_"
        return name


def quantised_model(
    model: onnx.ModelProto,
    program: Program,
    steps: Sequence[Step],
    quantisation: Quantisation,
    file: WeightFile | None = None,
) -> onnx.ModelProto:
    """`model` with a QuantizeLinear / DequantizeLinear pair on every stored value (none between steps that
    are kept in float; where a state is, only in front of steps that read it in int8; of what an output
    joins, on the parts).

    Weights become int8, biases int32 initializers behind a DequantizeLinear, so the file holds
    the very integers that are lowered.  Graph input and output names stay.  Large constants go to
    `file`, if there is one; the model then belongs beside it.
    """
    out = onnx.ModelProto()
    out.CopyFrom(model)
    graph = out.graph
    names = PartNames(model)
    pairs = _Pairs(names, file)
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
                node.input[i] = names.of(value, "float")
                continue
            value_is_weight = ("", value) in replaced and _reads_quantised(steps, node.name, value)
            if (node.name, value) in replaced:
                node.input[i] = replaced[(node.name, value)]
            elif value_is_weight:
                node.input[i] = replaced[("", value)]
            elif value in program.byte_inputs and program.is_float(value):
                scale, zero = program.byte_inputs[value]
                node.input[i] = pairs.activation(
                    value, value, names.of(value, "dq"), Scale(scale, zero), np.uint8
                )
            elif value in stored and (value in program.inputs or value in states):
                node.input[i] = pairs.activation(value, value, names.of(value, "dq"), stored[value])
        for i, value in enumerate(node.output):
            if value in stored and value not in states:
                node.output[i] = names.of(value, "float")
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
    return _sorted(out)


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

    def __init__(self, names: PartNames, file: WeightFile | None) -> None:
        self._names = names
        self._file = file
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._done: set[str] = set()

    def _initializer(self, name: str, array: np.ndarray) -> str:
        self.initializers.append(initializer(name, np.asarray(array, order="C"), self._file))
        return name

    def constant(self, name: str, content: Quantised) -> str:
        out = self._names.of(name, "dq")
        if out not in self._done:
            self._done.add(out)
            data = self._initializer(self._names.of(name, "q"), content.data)
            steps, axis = np.asarray(content.step, np.float32), dict[str, Any]()
            if steps.ndim:
                steps, axis = steps.reshape(-1), {"axis": int(np.argmax(steps.shape))}
            scale = self._initializer(self._names.of(name, "scale"), steps)
            zero = self._initializer(self._names.of(name, "zero"), np.zeros(steps.shape, content.data.dtype))
            self.nodes.append(
                helper.make_node("DequantizeLinear", [data, scale, zero], [out], name=out, **axis)
            )
        return out

    def activation(
        self, source: str, label: str, out: str, meant: Scale, dtype: type[np.integer[Any]] = np.int8
    ) -> str:
        if out not in self._done:
            self._done.add(out)
            scale = self._initializer(self._names.of(label, "scale"), np.asarray(meant.step, np.float32))
            zero = self._initializer(self._names.of(label, "zero"), np.asarray(meant.zero, dtype))
            q = self._names.of(label, "q")
            self.nodes.append(
                helper.make_node("QuantizeLinear", [source, scale, zero], [q], name=f"{label}.Q")
            )
            self.nodes.append(
                helper.make_node("DequantizeLinear", [q, scale, zero], [out], name=f"{label}.DQ")
            )
        return out


def _sorted(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnx_ir
    from onnx_ir.passes.common import TopologicalSortPass

    ir_model = onnx_ir.from_proto(model)
    TopologicalSortPass()(ir_model)
    return onnx_ir.to_proto(ir_model)
