"""Values that are known: nodes whose inputs are all constant, sizes, values without elements.

Nodes are evaluated one at a time, with onnx's reference evaluator.  Values without elements are the past of a
first step, or a cache that a chosen branch does not give.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from fadiff.converter.ir.edit import Editor
from fadiff.converter.ir.kinds import Kind, named
from fadiff.converter.ir.program import Program

_LARGEST_FOLD = 2**20
_LARGEST_SIZES = 2**10
_IR_VERSION = 10


def constant_tensors(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Initializers, and what Constant nodes hold, by value name."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    return constants


def fold_sizes(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Replace Shape of values whose shape is known, and what is computed from such sizes, in place.

    Args:
        model: its nodes in topological order.
        shapes: static shapes by value name.
    """
    if constant_sizes(model, shapes, but={value.name for value in model.graph.output}):
        fold_constants(model, keep=named(Kind.QUANTISATION), largest=_LARGEST_SIZES)


def constant_sizes(
    model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], but: Collection[str] = ()
) -> bool:
    """Replace Shape of values whose shape is known, in place, `but` some results; whether there were any."""
    kept = []
    for node in model.graph.node:
        if node.op_type != "Shape" or node.input[0] not in shapes or node.output[0] in but:
            kept.append(node)
            continue
        part = {attribute.name: attribute.i for attribute in node.attribute}
        sizes = shapes[node.input[0]][part.get("start", 0) : part.get("end")]
        model.graph.initializer.append(numpy_helper.from_array(np.array(sizes, np.int64), node.output[0]))
    changed = len(kept) < len(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return changed


def fold_constants(model: onnx.ModelProto, keep: Collection[str] = (), largest: int = _LARGEST_FOLD) -> None:
    """Replace nodes by the constants they compute, in place.

    Args:
        model: its nodes in topological order; constants are initializers and Constant nodes.
        keep: operators to leave as they are.
        largest: bytes of input above which a node is left as it is.
    """
    constants = constant_tensors(model.graph)
    kept = []
    for node in model.graph.node:
        if node.op_type in keep or not _is_folded(model, node, constants, largest):
            kept.append(node)
    del model.graph.node[:]
    model.graph.node.extend(kept)


def _is_folded(
    model: onnx.ModelProto, node: onnx.NodeProto, constants: dict[str, onnx.TensorProto], largest: int
) -> bool:
    """Whether the result of a node became an initializer."""
    named = [name for name in node.input if name]
    inputs = [constants[name] for name in named if name in constants]
    standard = node.domain in ("", "ai.onnx")
    if not named or len(inputs) < len(named) or len(node.output) != 1 or not standard:
        return False
    if sum(tensor.ByteSize() for tensor in inputs) > largest:
        return False
    try:
        feeds = {name: numpy_helper.to_array(constants[name]) for name in named}
        (result,) = ReferenceEvaluator(_alone(node, model)).run(None, feeds)
    except Exception:  # what cannot be evaluated stays, and is judged as an operator
        return False
    constants[node.output[0]] = numpy_helper.from_array(np.asarray(result), node.output[0])
    model.graph.initializer.append(constants[node.output[0]])
    return True


def _alone(node: onnx.NodeProto, model: onnx.ModelProto) -> onnx.ModelProto:
    """A model of one node."""
    inputs = [onnx.helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(node.input) if name]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output]
    graph = onnx.helper.make_graph([node], "fold", inputs, outputs)
    return onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=_IR_VERSION)


def drop_empty(program: Program) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model without what computes and joins values without elements; the outputs left out.

    A model all of whose outputs are empty keeps them, and is refused.
    """
    empty, edit = {name for name, shape in program.shapes.items() if 0 in shape}, Editor(program.model)
    for node in program.nodes if empty else ():
        kept = [value for value in node.inputs if value not in empty]
        if node.outputs and set(filter(None, node.outputs)) <= empty:
            place = edit.node(node)
            for name in filter(None, node.outputs):
                nothing = np.zeros(program.shapes[name], program.numpy_type(name))
                edit.replace(edit.value(name), edit.constant(name, nothing))
            edit.remove(place)
        elif node.op == "Concat" and kept and len(kept) < len(node.inputs):
            place = edit.node(node)
            place.resize_inputs(len(kept))
            for i, name in enumerate(kept):
                place.replace_input_with(i, edit.value(name))
    outputs = tuple(name for name in program.outputs if name in empty)
    if len(outputs) == len(program.outputs):
        outputs = ()
    for name in outputs:
        edit.drop_output(name)
    return edit.model(), outputs
