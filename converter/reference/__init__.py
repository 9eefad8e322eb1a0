"""The reference: a Graph as an ONNX model with explicit integer (for float32 arrays: float) arithmetic.

ONNX Runtime runs it; there is no interpreter of ours.  The formulas are those of
docs/execution-contract.md section 5 and docs/host-ops.md.
"""

from __future__ import annotations

import onnx
import onnxruntime
from onnx import TensorProto, helper

from converter.graph import Graph, TensorCoreLayer
from converter.normalise import session_options
from converter.reference.emit import OPSET, Emit
from converter.reference.host import HOST_OPS
from converter.reference.products import product

__all__ = ["integer_reference", "reference_session"]

_ELEM_TYPES = {"int8": TensorProto.INT8, "int32": TensorProto.INT32, "float32": TensorProto.FLOAT}


def integer_reference(graph: Graph) -> onnx.ModelProto:
    """The graph as an ONNX model: inputs and outputs are tensors in storage order, by tensor name.

    There is one output per tensor that a layer writes, in the order of first writing, so that a
    run shows every intermediate.  Run it with `reference_session`.
    """
    emit = Emit(dict(graph.tensors), graph.element_type)
    for name in graph.inputs:
        emit.current[name] = emit.reshape(name, [graph.tensors[name].size])
    for layer in graph.layers:
        if isinstance(layer, TensorCoreLayer):
            product(emit, layer)
        else:
            HOST_OPS[layer.op](emit, layer)
    written = list(dict.fromkeys(name for layer in graph.layers for name in layer.outputs))
    for name in written:
        shape = emit.ints(graph.tensors[name].shape)
        emit.nodes.append(
            helper.make_node("Reshape", [emit.current[name], shape], [name], name=f"out {name}")
        )
    onnx_graph = helper.make_graph(
        emit.nodes,
        graph.name,
        [_value_info(graph, name) for name in graph.inputs],
        [_value_info(graph, name) for name in written],
        emit.initializers,
    )
    return helper.make_model(
        onnx_graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=9,
        producer_name="fadiff",
    )


def reference_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A session without graph optimisations: every rounding happens where it is written."""
    options = session_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _value_info(graph: Graph, name: str) -> onnx.ValueInfoProto:
    tensor = graph.tensors[name]
    return helper.make_tensor_value_info(name, _ELEM_TYPES[tensor.dtype], tensor.shape)
