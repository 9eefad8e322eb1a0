"""Values without elements: the past of a first step, a cache that a chosen branch does not give."""

from __future__ import annotations

import numpy as np
import onnx

from fadiff.converter.ir.edit import Editor
from fadiff.converter.ir.program import Program


def drop_empty(model: onnx.ModelProto, program: Program) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model without what computes and joins values without elements; the outputs left out.

    A model all of whose outputs are empty keeps them, and is refused.
    """
    empty, edit = {name for name, shape in program.shapes.items() if 0 in shape}, Editor(model)
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
