"""Operators that ONNX defines by a function body: expanded where nothing lowers them directly.

Attention, RotaryEmbedding and their like become the primitive
operators of their definition, which constant folding then simplifies.
"""

from __future__ import annotations

import onnx
import onnx.inliner
import onnx.shape_inference

from fadiff.converter.lower import is_known
from fadiff.converter.read.opsets import opset_of

_DEEPEST = 4  # definitions made of operators that have definitions
_FOLDED = frozenset(("Range",))
"""Folded by ONNX Runtime where their inputs are constant: their definitions are loops."""
_NO_TYPE = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
_ALWAYS = frozenset(("CastLike", "Swish"))
"""Element-wise, but unknown to ONNX Runtime, or with a type that only another value tells."""


def expand_functions(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model with such operators expanded, and their names."""
    opset = opset_of(model)
    expanded: list[str] = []
    for _ in range(_DEEPEST):
        wanted = sorted({node.op_type for node in model.graph.node if _is_expandable(node, opset)})
        wanted = [op for op in wanted if op not in expanded]
        if not wanted:
            break
        for i, node in enumerate(model.graph.node):
            node.name = node.name or f"{node.op_type}_{i}"
        for op in wanted:
            model = _expanded(model, op)
        expanded += wanted
    left = {node.op_type for node in model.graph.node}
    return model, tuple(op for op in expanded if op not in left)


def _expanded(model: onnx.ModelProto, op: str) -> onnx.ModelProto:
    opset = opset_of(model)
    try:
        for node in model.graph.node:
            if node.op_type == op:
                _spell_defaults(node, onnx.defs.get_schema(op, opset))
        typed = _with_types(model)
        return onnx.inliner.inline_selected_functions(typed, [("", op)], inline_schema_functions=True)
    except Exception:  # no body for these types: the operator is refused by name later
        return model


def _spell_defaults(node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> None:
    """The inliner does not look at default values of attributes."""
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.name:
            node.attribute.append(attribute.default_value)


def _with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """The inliner picks a function body by the types of values, and does not look at initializers."""
    typed = onnx.shape_inference.infer_shapes(model)
    known = {value.name for value in (*typed.graph.input, *typed.graph.value_info, *typed.graph.output)}
    typed.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in typed.graph.initializer
        if tensor.name not in known
    )
    # absent inputs in front of others need a type, too (Attention with past keys, without a mask)
    typed.graph.value_info.append(onnx.ValueInfoProto(name="", type=_NO_TYPE))
    return typed


def _is_expandable(node: onnx.NodeProto, opset: int) -> bool:
    if node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type) or node.op_type in _FOLDED:
        return False
    # statistics of a LayerNormalization beside its result: only the definition computes them
    statistics = node.op_type == "LayerNormalization" and len([v for v in node.output if v]) > 1
    # newer than what ONNX Runtime quantises: only the definition is in its opsets
    has_order = node.op_type == "SpaceToDepth" and any(a.name == "mode" for a in node.attribute)
    spelled = statistics or has_order or node.op_type in _ALWAYS
    if is_known(node.op_type) and not spelled:
        return False
    try:
        schema = onnx.defs.get_schema(node.op_type, opset)
    except onnx.defs.SchemaError:  # of a later opset: ONNX Runtime writes LayerNormalization in any
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)  # type: ignore[attr-defined]
