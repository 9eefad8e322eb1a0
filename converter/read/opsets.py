"""Bring a model to float32 and an opset that ONNX Runtime knows, without changing what its operators mean."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from fadiff.converter.errors import ModelError, one_line
from fadiff.converter.ir.edit import Editor

_OLDEST_OPSET = 10  # the first with QuantizeLinear
_CANONICAL_OPSET = 13  # older files are brought to it
_KNOWN_OPSETS = (23, 26)  # of the oldest ONNX Runtime that we support, and of today's
_COUNTS_SPLITS = 18  # Split with num_outputs
_BROADCASTS_TO_CHANNELS = 7  # PRelu before this opset: one slope per channel, whatever the rank


def opset_of(model: onnx.ModelProto) -> int:
    """Version of ONNX's own operators in a model; 1 where it does not say."""
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)


def declare_opset(model: onnx.ModelProto) -> None:
    """Give a model of other domains' operators alone (a scaler of scikit-learn, say), which need not name an
    opset of ONNX, one for what they are written as; in place."""
    if all(entry.domain for entry in model.opset_import) and all(node.domain for node in model.graph.node):
        model.opset_import.append(helper.make_opsetid("", _CANONICAL_OPSET))


def settle_opset(file: str, model: onnx.ModelProto) -> onnx.ModelProto:
    """The model under an opset between 13 and the newest that ONNX Runtime knows (as it is where onnx cannot
    upgrade 10, 11 or 12).

    Raises:
        ModelError: an old opset that onnx cannot upgrade, or operators that came after the installed onnx.
    """
    entry = next((o for o in model.opset_import if o.domain in ("", "ai.onnx")), None)
    if entry is None:
        return model
    if entry.version < _COUNTS_SPLITS:
        _drop_split_counts(model)
    if entry.version > onnx.defs.onnx_opset_version():
        _refuse_newer_operators(file, model, entry.version)
    if entry.version > _KNOWN_OPSETS[0]:
        version = entry.version
        fitting = (
            known for known in _KNOWN_OPSETS if known < version and _means_the_same(model, version, known)
        )
        entry.version = next(fitting, version)
    if entry.version >= _CANONICAL_OPSET:
        return model
    if entry.version < _BROADCASTS_TO_CHANNELS:
        model = _with_shaped_slopes(model)
    try:
        return onnx.version_converter.convert_version(model, _CANONICAL_OPSET)
    except Exception as error:
        if entry.version >= _OLDEST_OPSET:
            return model
        raise ModelError(
            f"{file}: opset {entry.version} is older than {_OLDEST_OPSET} and cannot be upgraded "
            f"({one_line(error)}); export it again with a newer opset"
        ) from error


def _refuse_newer_operators(file: str, model: onnx.ModelProto, opset: int) -> None:
    nodes = (node for node in model.graph.node if node.domain in ("", "ai.onnx"))
    if newer := sorted({node.op_type for node in nodes if not onnx.defs.has(node.op_type)}):
        known = onnx.defs.onnx_opset_version()
        raise ModelError(
            f"{file}: the installed onnx {onnx.__version__} knows opset {known}, not {', '.join(newer)} of "
            f"opset {opset}; install a newer onnx and onnxruntime, or export with an older opset"
        )


def _means_the_same(model: onnx.ModelProto, declared: int, older: int) -> bool:
    """Whether every operator of the main graph may be read as that of an older opset."""
    return all(
        _is_unchanged(node, declared, older) for node in model.graph.node if node.domain in ("", "ai.onnx")
    )


def _is_unchanged(node: NodeProto, declared: int, older: int) -> bool:
    """Whether a newer version of an operator only added types or attributes that the node does not use."""
    if not onnx.defs.has(node.op_type):
        return True
    new = onnx.defs.get_schema(node.op_type, declared)
    if new.since_version <= older:
        return True
    try:
        old = onnx.defs.get_schema(node.op_type, older)
    except onnx.defs.SchemaError:
        return False
    used = {attribute.name for attribute in node.attribute}
    known_inputs = len([value for value in node.input if value]) <= old.max_input
    same_defaults = all(
        _default(attribute) == _default(new.attributes[name])
        for name, attribute in old.attributes.items()
        if name in new.attributes
    )
    return used <= set(old.attributes) and known_inputs and same_defaults


def _default(attribute: onnx.defs.OpSchema.Attribute) -> object:
    value = attribute.default_value
    return helper.get_attribute_value(value) if value.name else None


def _drop_split_counts(model: onnx.ModelProto) -> None:
    """Equal parts are what an older Split has without being told.

    torch.onnx writes num_outputs there all the same, where it converted its own opset to the wanted one.
    """
    for node in model.graph.node:
        if node.op_type == "Split":
            kept = [attribute for attribute in node.attribute if attribute.name != "num_outputs"]
            del node.attribute[:]
            node.attribute.extend(kept)


def _with_shaped_slopes(model: onnx.ModelProto) -> onnx.ModelProto:
    """PRelu slopes [C] with the shape [C, 1, 1] by which today's broadcasting finds the channels."""
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in (*onnx.shape_inference.infer_shapes(model).graph.value_info, *model.graph.input)
    }
    ranks |= {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    edit = Editor(model)
    for node in model.graph.node:
        if node.op_type != "PRelu" or ranks.get(node.input[0], 0) <= 2 or ranks.get(node.input[1]) != 1:
            continue
        place, axes = edit.writer(node.output[0]), list(range(1, ranks[node.input[0]] - 1))
        slopes = edit.value(node.input[1])
        wanted = f"{node.input[1]}.{node.output[0]}"
        place.replace_input_with(1, edit.insert(place, "Unsqueeze", [slopes], wanted, axes=axes)[0])
    return edit.model()


_OTHER_FLOATS = {TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}


def to_float32(model: onnx.ModelProto) -> bool:
    """Change every other floating-point type of a model to float32, in place; True if there was one."""
    graph = model.graph
    changed = False
    for value in (*graph.input, *graph.output, *graph.value_info):
        tensor_type = value.type.tensor_type
        if tensor_type.elem_type in _OTHER_FLOATS:
            tensor_type.elem_type = TensorProto.FLOAT
            changed = True
    for tensor in graph.initializer:
        changed |= _convert(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                changed |= _convert(attribute.t)
            elif attribute.name in ("to", "dtype") and attribute.i in _OTHER_FLOATS:
                attribute.i = TensorProto.FLOAT
                changed = True
    return changed


def _convert(tensor: onnx.TensorProto) -> bool:
    if tensor.data_type not in _OTHER_FLOATS:
        return False
    array = numpy_helper.to_array(tensor).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return True
