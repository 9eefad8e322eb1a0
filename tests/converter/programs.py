"""Small programs from text, for tests of single steps."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from fadiff.converter.ir.program import Program, program_of

W = np.eye(4, dtype=np.float32)


def model(
    body: str, given: str = "float[2,4] x", gives: str = "float[2,4] y", **constants: object
) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["": 17]> net ({given}) => ({gives}) {{ {body} }}'
    found = onnx.parser.parse_model(text)
    arrays = {"w": W, "v": W} | {name: np.asarray(array) for name, array in constants.items()}
    used = {name for node in found.graph.node for name in node.input}
    for name, array in arrays.items():
        if name in used:
            kind = np.float32 if array.dtype == np.float64 else array.dtype
            found.graph.initializer.append(numpy_helper.from_array(array.astype(kind), name))
    for node in found.graph.node:
        node.name = node.output[0]
    return onnx.shape_inference.infer_shapes(found)


def program(*text: str, **more: object) -> Program:
    """The same as a Program."""
    return program_of(model(*text, **more))
