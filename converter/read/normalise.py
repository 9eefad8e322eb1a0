"""Normalise an ONNX model with ready libraries: fold constants and batch norms, infer shapes.

onnx-ir sorts and cleans the graph, ONNX Runtime's BASIC level folds it, onnx infers the shapes.
The result has only standard operators, constants where constants can be computed, a static shape for
every value, and a name of its own for every node.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir
from onnx_ir.passes.common import (
    NameFixPass,
    RemoveInitializersFromInputsPass,
    RemoveUnusedNodesPass,
    RemoveUnusedOpsetsPass,
    TopologicalSortPass,
)
from onnx_ir.passes.common.naming import SimpleNameGenerator

from fadiff.converter.errors import ModelError, one_line
from fadiff.converter.folders import scratch_folder
from fadiff.converter.read.fold import fold_constants
from fadiff.converter.read.opsets import opset_of, settle_opset
from fadiff.converter.read.runtime import explaining, open_session, session_options
from fadiff.converter.read.windows import drop_windows_behind, write_out_padding

_DISABLED = ["MatMulAddFusion", "TransposeOptimizer"]
"""MatMul + Add stays whole (we fold the bias ourselves, also above two dimensions); transposes stay where
they are: most cost nothing here, and moved ones would compute values that the file has no scale for."""
_KNOWS_NORMS = 17  # LayerNormalization
_NEWEST_IR = 10  # what came later is metadata and element types that are not lowered


def normalise(file: str, model: onnx.ModelProto) -> onnx.ModelProto:
    """The folded, shape-inferred model.

    Raises:
        ModelError: ONNX Runtime or shape inference rejects the model.
    """
    model = settle_opset(file, _sorted(file, model))
    declared = _forget_shapes(model)
    model = _folded(drop_windows_behind(model))
    fold_constants(model)  # what ONNX Runtime leaves: a Cast of newer opsets
    try:
        model = _inferred(model)
    except Exception as error:
        raise ModelError(f"{file}: shape inference failed: {one_line(error)}") from error
    _recall_shapes(model, declared)
    ir_model = onnx_ir.from_proto(write_out_padding(model))
    RemoveUnusedOpsetsPass()(ir_model)
    NameFixPass(_ByOperator())(ir_model)
    return onnx_ir.to_proto(ir_model)


class _ByOperator(SimpleNameGenerator):
    """Nodes without a name are called after what they do."""

    def generate_node_name(self, node: onnx_ir.Node) -> str:
        return node.name or node.op_type


def _sorted(file: str, model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        ir_model = onnx_ir.from_proto(model)
        RemoveInitializersFromInputsPass()(ir_model)
        NameFixPass(_ByOperator())(ir_model)  # ONNX Runtime refuses two nodes of one name
        TopologicalSortPass()(ir_model)
        RemoveUnusedNodesPass()(ir_model)  # (of an auxiliary head, say, whose output was cut off)
        ir_model.ir_version = min(max(ir_model.ir_version, 4), _NEWEST_IR)
        return onnx_ir.to_proto(ir_model)
    except Exception as error:
        raise ModelError(f"{file}: the graph is not well formed: {one_line(error)}") from error


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with inferred shapes, also behind operators that ONNX Runtime's optimiser writes into older
    opsets than ONNX has them in: their results have the shape of what they normalise."""
    early = {}
    for node in model.graph.node if opset_of(model) < _KNOWS_NORMS else ():
        if node.op_type == "LayerNormalization" and not node.domain:
            early[node.output[0]] = onnx.NodeProto()
            early[node.output[0]].CopyFrom(node)
            node.CopyFrom(onnx.helper.make_node("Identity", node.input[:1], node.output[:1]))
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for node in model.graph.node:
        if node.output[0] in early:
            node.CopyFrom(early[node.output[0]])
    return model


def _forget_shapes(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """Take out what the file says about computed values: what contradicts operators is not believed."""
    graph = model.graph
    declared = {}
    inputs = {value.name for value in graph.input}
    for value in (*graph.value_info, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            declared[value.name] = onnx.ValueInfoProto()
            declared[value.name].CopyFrom(value)
    del graph.value_info[:]
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for output in graph.output:  # (clearing what is not there would make a type of none)
        if (tensor := constants.get(output.name)) is not None:
            output.CopyFrom(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        elif output.name not in inputs and output.type.tensor_type.HasField("shape"):
            output.type.tensor_type.ClearField("shape")
    return declared


def _recall_shapes(model: onnx.ModelProto, declared: Mapping[str, onnx.ValueInfoProto]) -> None:
    """Where nothing else tells a shape, what the file says about it."""
    graph = model.graph
    inferred = {value.name: value for value in (*graph.value_info, *graph.output)}
    for name in {value for node in graph.node for value in node.output} & declared.keys():
        if name not in inferred:
            graph.value_info.append(declared[name])
            continue
        found, said = (value.type.tensor_type for value in (inferred[name], declared[name]))
        if not found.HasField("shape"):
            found.shape.CopyFrom(said.shape)
        elif len(found.shape.dim) == len(said.shape.dim):
            for dim, other in zip(found.shape.dim, said.shape.dim, strict=True):
                if not dim.HasField("dim_value"):
                    dim.CopyFrom(other)


def _folded(model: onnx.ModelProto) -> onnx.ModelProto:
    with scratch_folder() as folder:
        folded = folder / "folded.onnx"
        options = session_options("ORT_ENABLE_BASIC")
        options.optimized_model_filepath = str(folded)
        with explaining():
            # from bytes: a model read from a file keeps dangling external-data names when saved
            open_session(model, options, _DISABLED)
        return onnx.load(folded)
