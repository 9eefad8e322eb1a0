"""Operators that ONNX defines by a function body: expanded where nothing lowers them directly.

Attention, RotaryEmbedding, GroupNormalization, ReduceL2 and their like become the primitive
operators of their definition, which constant folding then simplifies.
"""

from __future__ import annotations

import onnx
import onnx.inliner
import onnx.shape_inference

from converter.lower import is_known


def expand_functions(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model with such operators expanded, and their names."""
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    wanted = sorted({node.op_type for node in model.graph.node if _is_expandable(node, opset)})
    if not wanted:
        return model, ()
    for i, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{i}"
    names = [("", op) for op in wanted]
    try:
        typed = _with_types(model)
        return onnx.inliner.inline_selected_functions(typed, names, inline_schema_functions=True), tuple(
            wanted
        )
    except Exception:  # no body for these types: the operator is refused by name later
        return model, ()


def _with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """The inliner picks a function body by the types of values, and does not look at initializers."""
    typed = onnx.shape_inference.infer_shapes(model)
    known = {value.name for value in (*typed.graph.input, *typed.graph.value_info, *typed.graph.output)}
    typed.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in typed.graph.initializer
        if tensor.name not in known
    )
    return typed


def _is_expandable(node: onnx.NodeProto, opset: int) -> bool:
    if node.domain not in ("", "ai.onnx") or is_known(node.op_type) or not onnx.defs.has(node.op_type):
        return False
    schema = onnx.defs.get_schema(node.op_type, opset)
    return bool(schema.has_function or schema.has_context_dependent_function)  # type: ignore[attr-defined]
