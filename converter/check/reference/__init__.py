"""The reference: a Graph as an ONNX model with explicit integer (for float32 arrays: float) arithmetic.

ONNX Runtime runs it; there is no interpreter of ours.  The formulas are those of
docs/execution-contract.md section 5 and docs/host-ops.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from fadiff.converter.check.reference.emit import OPSET, Emit
from fadiff.converter.check.reference.host import host_layer
from fadiff.converter.check.reference.products import product
from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.converter.ir.stored import WeightFile
from fadiff.converter.read.runtime import NOT_OPTIMISED, explaining, open_session, session_options

__all__ = ["MEASURED", "UNCLIPPED", "integer_reference", "reference_session", "run_reference"]

MEASURED = "measured:"
"""Prefix of the inputs that bring what a run measured."""

UNCLIPPED = "unclipped:"
"""Prefix of the outputs that say how large the sums behind a ReLU were."""

_ELEM_TYPES = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int32": TensorProto.INT32,
    "float32": TensorProto.FLOAT,
}


def integer_reference(
    graph: Graph, *, by_layer: bool = False, file: WeightFile | None = None
) -> onnx.ModelProto:
    """The graph as an ONNX model: inputs and outputs are tensors in storage order, by tensor name.

    There is one output per tensor that a layer writes, in the order of first writing, so that a
    run shows every intermediate.  Run it with `reference_session`.

    With `by_layer` every layer reads what a run measured (inputs MEASURED + tensor name) instead of what
    the reference computed: float32 differences then do not add up from layer to layer.  Outputs
    UNCLIPPED + tensor name are the largest magnitudes [] of float32 sums before their ReLU.

    Large constants go to `file`, if there is one; the model then belongs beside it.
    """
    emit = Emit(graph, file)
    for name in graph.inputs:
        emit.current[name] = emit.reshape(name, [graph.tensors[name].size])
    computed = list(dict.fromkeys(name for layer in graph.layers for name in layer.outputs))
    measured = computed if by_layer else []
    given = {name: emit.reshape(MEASURED + name, [graph.tensors[name].size]) for name in measured}
    written: dict[str, str] = {}
    for layer in graph.layers:
        if by_layer:
            emit.current.update({name: given[name] for name in layer.inputs if name in given})
            for name in layer.outputs:  # parts that other layers wrote stay
                emit.current.pop(name, None)
                emit.current.update({name: written[name]} if name in written else {})
        if isinstance(layer, TensorCoreLayer):
            product(emit, layer)
        else:
            host_layer(emit, layer)
        written.update({name: emit.current[name] for name in layer.outputs})
    for name in computed:
        emit.output(name, written[name], graph.tensors[name].shape)
    sums = emit.unclipped if by_layer else {}
    for name, values in sums.items():
        largest = [emit.op("ReduceMax", emit.op("Abs", value), keepdims=0) for value in values]
        emit.output(UNCLIPPED + name, emit.op("Max", *largest), [])
    onnx_graph = helper.make_graph(
        emit.nodes,
        graph.name,
        [
            *(_value_info(graph, name, name) for name in graph.inputs),
            *(_value_info(graph, name, MEASURED + name) for name in measured),
        ],
        [
            *(_value_info(graph, name, name) for name in computed),
            *(helper.make_tensor_value_info(UNCLIPPED + name, TensorProto.FLOAT, []) for name in sums),
        ],
        emit.initializers,
    )
    return helper.make_model(
        onnx_graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=9,
        producer_name="fadiff",
    )


def reference_session(
    model: onnx.ModelProto, folder: Path | None = None, *, in_order: bool = True
) -> onnxruntime.InferenceSession:
    """A session without graph optimisations: every rounding happens where it is written.

    `folder` has the file with the model's large constants; `in_order` says that each is then best
    converted where the model's list of nodes has it.
    """
    options = session_options(NOT_OPTIMISED)
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        options.enable_cpu_mem_arena = False  # the float32 copy of a large weight goes when it was used,
        if in_order:  # and is made when it is needed
            options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    with explaining():
        return open_session(model, options)


def run_reference(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every tensor that the integer reference computes from stored `inputs`; both by tensor name."""
    session = reference_session(integer_reference(graph))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def _value_info(graph: Graph, tensor_name: str, name: str) -> onnx.ValueInfoProto:
    tensor = graph.tensors[tensor_name]
    return helper.make_tensor_value_info(name, _ELEM_TYPES[tensor.dtype], tensor.shape)
