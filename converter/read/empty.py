"""Values without elements: the past of a first step, a cache that a chosen branch does not give."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fadiff.converter.ir.program import Program


def drop_empty(model: onnx.ModelProto, program: Program) -> tuple[str, ...] | None:
    """Leave out, in place, what computes and joins values without elements; the outputs left out.

    None where there is no such value.  A model all of whose outputs are empty keeps them, and is refused.
    """
    empty = {name for name, shape in program.shapes.items() if 0 in shape}
    computed = [node for node in model.graph.node if node.output and set(filter(None, node.output)) <= empty]
    joins = [n for n in model.graph.node if n.op_type == "Concat" and set(n.input) & empty]
    outputs = [value for value in model.graph.output if value.name in empty]
    if not computed and not joins and not outputs:
        return None
    graph = model.graph
    for node in computed:
        graph.node.remove(node)
        for value in filter(None, node.output):
            kind = helper.tensor_dtype_to_np_dtype(program.types[value])
            graph.initializer.append(numpy_helper.from_array(np.zeros(program.shapes[value], kind), value))
    for node in joins:
        kept = [value for value in node.input if value not in empty]
        if node not in computed and kept:
            del node.input[:]
            node.input.extend(kept)
    if len(outputs) == len(graph.output):
        return ()
    for value in outputs:
        graph.output.remove(value)
    return tuple(value.name for value in outputs)
