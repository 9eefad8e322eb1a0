"""Bring float16, bfloat16 and double models to float32 (they become int8 anyway)."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

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
